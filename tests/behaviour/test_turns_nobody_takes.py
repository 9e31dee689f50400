"""A turn was offered, and nobody takes it: its message is lost, or waits, or somebody else ran it.

The holder, and who looks after the room, are on a worker of another queue.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.behaviour.conftest import HOUSE
from tests.behaviour.looking import starts
from tests.support.servers import RedisServer
from tests.support.waiting import eventually, never

OTHER = "turns-other"
NO_PLUGINS = Path(__file__).parent / "apps/no_plugins"


@pytest.fixture(scope="module")
def own_redis():
    """A lock server of this module's own."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def other(start_module_worker, own_redis):
    """The worker of the other queue."""
    conf = {"redislock_url": f"{own_redis.url}/0"}
    return start_module_worker(app=HOUSE, queues=OTHER, concurrency=3, conf=conf)


@pytest.fixture
def offered(other, sender, tasks, room, hold, journal, label, queue, broker):
    """A task whose turn was offered while no worker consumes its queue, and its room."""
    at_other = {"destination": [other.node], "reply": True, "timeout": 2.0}
    holder = hold("quick_job", queue=OTHER)
    eventually(lambda: sender.control.add_consumer(queue, **at_other), "it consumes")
    result = sender.send_task("quick_job", [label, 0.1], queue=queue)
    here = room(tasks["quick_job"], label)
    eventually(lambda: here.ids() == [result.id], "it waits")
    eventually(lambda: sender.control.cancel_consumer(queue, **at_other), "nobody consumes")
    journal.let_go(holder.id)
    eventually(lambda: broker.llen(queue), "its message is in the queue")
    return result, here


@pytest.fixture
def broker(redis_server):
    """The broker's own database."""
    with redis_server.client(db=1) as client:
        yield client


@pytest.fixture
def unaware(start_worker, monkeypatch, queue):
    """A worker that knows no lock. It consumes the queue when it is told to: while it starts, on a
    busy machine, the turn could be offered twice, and it would run both messages.
    """
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(NO_PLUGINS))
        return start_worker(app="tests.behaviour.apps.plain", queues=f"{queue}-none")


@pytest.mark.timeout(240)
def test_what_a_worker_that_knows_no_lock_has_run_is_not_run_again(
    unaware, offered, sender, journal, label, queue
):
    result, here = offered
    sender.control.add_consumer(queue, destination=[unaware.node])
    assert result.get(timeout=30) == label
    (entry,) = journal.read(label, "unlocked")
    assert entry.data is False, "celery_redislock was imported there after all"
    eventually(here.is_empty, "the room is empty", 60)
    never(lambda: starts(journal, label, result.id) > 1, "it ran again", 1)
    fresh = sender.send_task("quick_job", [label, 0.1], queue=OTHER)
    assert fresh.get(timeout=20) == label
    assert starts(journal, label, result.id) == 1
