"""The newer run wins: the running one is told, then terminated; the lock passes when it is gone."""

from __future__ import annotations

import pytest

from celery_redislock import ConfigError, RedisLock, Replace, TaskReplaced
from tests.support.sending import app, define, ended
from tests.support.waiting import eventually, never
from tests.support.workers import is_running

__all__ = ["app"]  # a fixture

QUEUE = "replace"


@pytest.fixture(scope="module", autouse=True)
def worker(start_module_worker):
    return start_module_worker(queues=QUEUE, concurrency=4)


@pytest.fixture
def started(journal, label):
    """Waits for so many runs of the label, and gives the last."""

    def started(count=1):
        eventually(lambda: journal.count(label, "start") == count, f"{count} started")
        return journal.read(label, "start")[-1]

    return started


def test_the_running_one_is_terminated_and_the_lock_passes_when_it_is_gone(
    send, journal, label, started
):
    first = send("replaced_late", label, 60)
    victim = started()
    second = send("replaced_late", label, 0.2)
    entry = started(2)
    assert entry.task_id == second.id
    assert journal.overlaps(label) == []
    eventually(lambda: not is_running(victim.pid), "its process is gone")
    error = ended(first)
    assert isinstance(error, TaskReplaced)
    assert first.state == "REVOKED"
    assert (error.holder.task, error.holder.task_id) == ("replaced_late", second.id)
    assert "replaced by a newer run" in str(error)
    assert second.get(timeout=30)[0] == label
    never(lambda: journal.count(label, "start") > 2, "the first one runs again", 1.5)


def test_the_running_one_is_told_and_may_end_by_itself(send, label, started):
    first = send("replaced_gently", label)
    victim = started()
    second = send("replaced_gently", label, 0.2)
    assert isinstance(ended(first), TaskReplaced)
    assert first.state == "REVOKED"
    assert second.get(timeout=30) == label
    assert is_running(victim.pid), "its process lives on"


def test_a_process_that_stands_the_signal_is_killed(send, label, started):
    first = send("stubborn", label, 60)
    victim = started()
    second = send("stubborn", label, 0.1)
    assert started(2).task_id == second.id
    assert not is_running(victim.pid)
    assert second.get(timeout=20)
    assert ended(first).holder.task_id == second.id


@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_where_nothing_can_be_terminated_the_newcomer_waits(
    start_worker, send, journal, queue, label, started, pool
):
    start_worker(queues=queue, pool=pool, concurrency=4)
    first = send("replaced", label, 2, queue=queue)
    started()
    second = send("replaced", label, 0.1, queue=queue)
    assert first.get(timeout=20)[0] == label
    assert second.get(timeout=20)[0] == label
    assert journal.overlaps(label) == []
    assert [entry.data["lost"] for entry in journal.read(label, "end")] == [True, False]
    gentle = send("replaced_gently", f"{label}-2", queue=queue)
    eventually(lambda: journal.count(f"{label}-2", "start") == 1, "it runs")
    third = send("replaced_gently", f"{label}-2", 0.1, queue=queue)
    assert isinstance(ended(gentle), TaskReplaced)
    assert third.get(timeout=20)


def test_a_redis_lock_is_told_too(send, conf, app, label):
    task = define(app, "replaced")
    key = task.lock_key_for(label)
    name = key.split(":lock:")[1]
    lock = RedisLock(conf["redislock_url"], name, ttl=1)
    assert lock.acquire(0)
    result = send("replaced", label, 0.1)
    eventually(lambda: lock.lost, "it is told")
    holder = task.lock_holder(label)
    assert holder.replaced_by == result.id
    assert f"to be replaced by {result.id}" in str(holder)
    never(result.ready, "it runs beside the holder", 1.5)
    assert lock.release()
    assert result.get(timeout=30)


def test_it_makes_no_sense_for_a_lock_that_several_hold(make_app):
    app = make_app()
    task = define(app, "contradicts", lock_limit=2, on_conflict=Replace())
    app.finalize()
    with pytest.raises(ConfigError, match="lock_limit=2"):
        task.delay()
