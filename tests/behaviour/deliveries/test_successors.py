"""What a task replaces itself with is its own successor, never its duplicate."""

from __future__ import annotations

import pytest

from tests.behaviour.deliveries.conftest import APP
from tests.support.servers import Proxy
from tests.support.waiting import eventually

ENDS_IN = {"alone": "second", "chain": "last"}


@pytest.fixture(scope="module")
def slow_way(redis_server):
    with Proxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def queues(start_module_worker, conf, slow_way):
    """Of a worker whose way to the lock server may be slow, and of one whose way is fast."""
    slow = {"redislock_url": slow_way.in_front_of(conf["redislock_url"])}
    start_module_worker(app=APP, queues="successors-slow", conf=slow, concurrency=1)
    start_module_worker(app=APP, queues="successors", concurrency=4)
    return "successors-slow", "successors"


@pytest.mark.parametrize("how", ENDS_IN)
def test_a_replacement_that_comes_before_the_release_runs(
    queues, slow_way, sender, journal, label, how
):
    """The release is late: it goes by the slow way, and the replacement asks by the fast one."""
    here, there = queues
    result = sender.send_task("hands_on", [label, how, there], queue=here)
    eventually(lambda: journal.count(label, "start") == 1, "it runs")
    slow_way.to_server.delay = 0.3
    journal.let_go(result.id)
    assert result.get(timeout=30) == ENDS_IN[how]
    slow_way.heal()
    assert [entry.data for entry in journal.read(label, "start")] == ["first", "second"]
    assert journal.overlaps(label) == []
    assert journal.count(label, "last") == (how == "chain")
