"""Debounce: of a burst of calls the last one runs, once it is quiet, or after the longest wait."""

from __future__ import annotations

import itertools
import time

import pytest

from celery_redislock import RedisLock, TaskReplaced
from tests.behaviour.looking import Keys, Room
from tests.support.waiting import eventually

QUEUE = "debounced"
#: Seconds, as `debounced` has it.
QUIET = 1.0


@pytest.fixture(scope="module", autouse=True)
def worker(start_module_worker):
    return start_module_worker(queues=QUEUE, concurrency=4)


@pytest.fixture
def keys(conf, label):
    return Keys(RedisLock(conf["redislock_url"], f"debounced:{label}").key)


@pytest.fixture
def room(client, keys):
    """The waiting room of the label's lock."""
    return Room(client, keys.lock)


def starts(journal, label):
    return [(entry.task_id, entry.at) for entry in journal.read(label, "start")]


def test_of_a_burst_the_last_runs_when_it_is_quiet_and_the_others_name_their_successors(
    send, room, journal, label
):
    results = []
    for _ in range(5):
        sent = time.monotonic()
        results.append(send("debounced", label, 0.0))
        eventually(lambda: room.ids() == [results[-1].id], "it is the one that waits")
    assert results[-1].get(timeout=20)[0] == label
    ((ran, at),) = starts(journal, label)
    assert ran == results[-1].id
    assert at >= sent + QUIET - 0.2, "it was not quiet yet"
    for replaced, successor in itertools.pairwise(results):
        with pytest.raises(TaskReplaced) as caught:
            replaced.get(timeout=60)
        assert caught.value.holder.task_id == successor.id
    eventually(room.is_empty, "nothing waits")
