"""A full lock server (`noeviction`) takes no new locks. Those that are held are kept, left to a
retry or a pause, and given back as ever.
"""

from __future__ import annotations

import pytest

from celery_redislock import LockUnavailable, RedisLock
from tests.support.waiting import eventually, never


@pytest.fixture
def fill(lock_client, own_redis, label):
    """Fills the server, and proves that it is full."""

    def fill():
        lock_client.set("big", "x" * 1_000_000)
        lock_client.config_set("maxmemory", "1mb")
        with pytest.raises(LockUnavailable, match=r"OOM|used memory"):
            RedisLock(own_redis.url, f"{label} other").acquire(0)

    return fill


@pytest.fixture
def begin(start_house, sender, queue, journal, label):
    """Starts a worker, and a run of which the test says when it goes on."""

    def begin(name, how):
        worker = start_house(concurrency=2)
        result = sender.send_task(name, [label, how], queue=queue)
        journal.await_start(label, result.id)
        return worker, result

    return begin


def test_a_run_that_describes_itself_keeps_its_lock(begin, fill, tasks, journal, label):
    worker, result = begin("describes", "describe and stand")
    fill()

    def holder():
        return tasks["describes"].lock_holder(label)

    eventually(lambda: holder().description, "a heartbeat brings what it says")
    never(lambda: holder() is None, "its lock, with a ttl of 2 s, lapsed", 2.5)
    journal.let_go(result.id)
    eventually(lambda: "page 2" in holder().description, "the next heartbeat brings the next")
    journal.let_go(result.id)
    assert result.get(timeout=20) == label
    assert holder() is None
    assert "LOST" not in worker.log()


@pytest.mark.parametrize(
    ("name", "how"),
    [("pauses_as_asked", "pause and stand"), ("retries_and_waits", "stand and retry")],
    ids=["a-pause", "a-retry"],
)
def test_what_stays_taken_after_a_run_is_free_when_that_is_over(
    begin, fill, tasks, journal, label, name, how
):
    """When the pause ends; and after the retry, which takes over what was kept for it."""
    worker, result = begin(name, how)
    fill()
    journal.let_go(result.id)
    eventually(lambda: journal.count(label, "end"), "the body ends")
    holder = eventually(lambda: tasks[name].lock_holder(label), "the lock is still taken")
    assert holder.cooling_down or holder.held_for_retry or holder.attempt
    assert result.get(timeout=20) == label
    eventually(lambda: tasks[name].lock_holder(label) is None, "the lock is free", 5)
    assert "could not release" not in worker.log()
