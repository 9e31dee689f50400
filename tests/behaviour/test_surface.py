"""Where a lock is taken, whoever sends the work and however the task is made; and where not."""

from __future__ import annotations

import pytest

from celery_redislock import (
    SingletonTask,
    TaskSkipped,
)
from tests.conftest import POOLS
from tests.contract.tasks.test_locked import app
from tests.support.waiting import eventually

__all__ = ["app"]  # a fixture

QUEUE = "surface"


# -- enforced ---------------------------------------------------------------------------------


def test_two_workers_run_a_task_once_at_a_time(start_worker, sender, queue, journal, label):
    for _ in range(2):
        start_worker(queues=queue, concurrency=2)
    results = [sender.send_task("defer", [label, 0.1], queue=queue) for _ in range(10)]
    for result in results:
        assert result.get(timeout=60)
    assert journal.count(label, "start") == 10
    assert journal.overlaps(label) == []


@pytest.mark.parametrize("pool", POOLS)
def test_every_pool_takes_the_lock(start_worker, sender, queue, journal, label, pool):
    start_worker(queues=queue, pool=pool, concurrency=1 if pool == "solo" else 4)
    if pool == "solo":
        start_worker(queues=queue, pool=pool, concurrency=1)
    first = sender.send_task("skip", [label, 4.0], queue=queue)
    eventually(lambda: journal.read(label, "start"), "it runs")
    duplicates = [sender.send_task("skip", [label], queue=queue) for _ in range(3)]
    if pool == "solo":  # what the busy worker takes runs after the first
        duplicates = duplicates[:1]
    for duplicate in duplicates:
        with pytest.raises(TaskSkipped):
            duplicate.get(timeout=20)
    assert first.get(timeout=20)
    assert journal.overlaps(label) == []


def test_shared_tasks_and_a_task_cls_for_the_whole_app_take_the_lock(
    start_worker, sender, queue, journal, label
):
    worker = start_worker(
        queues=queue,
        concurrency=3,
        conf={"test_task_cls": "celery_redislock:SingletonTask"},
    )
    for name in ("shared", "plain"):
        own = f"{label}-{name}"
        first = sender.send_task(name, [own, 1.5], queue=queue)
        eventually(lambda own=own: journal.read(own, "start"), "it runs")
        with pytest.raises(TaskSkipped):
            sender.send_task(name, [own, 1.5], queue=queue).get(timeout=20)
        assert first.get(timeout=20)
    assert "Traceback" not in worker.log()


def test_tasks_one_does_not_own_are_protected_by_name_or_glob(
    start_worker, sender, queue, journal, label, client, locks_of
):
    worker = start_worker(
        queues=queue,
        concurrency=3,
        conf={
            "redislock_tasks": {
                "pla*": {"lock_key": ["label"], "lock_ttl": 60},
                "no.such.task": {},
            }
        },
    )
    assert "'no.such.task'" in worker.log(), "a name that matches nothing is said"
    first = sender.send_task("plain", [label, 4.0], queue=queue)
    entry = eventually(lambda: journal.read(label, "start"), "it runs")[0]
    (key,) = locks_of(entry.task_id)
    assert client.pttl(key) > 30_000
    with pytest.raises(TaskSkipped):
        sender.send_task("plain", [label, 0.1], queue=queue).get(timeout=20)
    assert first.get(timeout=20)


def test_an_unknown_option_for_tasks_one_does_not_own_ends_the_worker(start_worker, queue):
    worker = start_worker(
        queues=queue, conf={"redislock_tasks": {"plain": {"lock_tll": 1}}}, wait=False
    )
    assert worker.wait(60) != 0
    assert "lock_tll" in worker.log()
    assert "lock_ttl" in worker.log(), "it says what is accepted"


# -- asking and breaking ----------------------------------------------------------------------


def test_the_holder_can_be_asked_and_the_lock_broken(
    start_worker, sender, app, queue, journal, label
):
    worker = start_worker(queues=queue)

    @app.task(shared=False, base=SingletonTask, name="watches_lock", lock_key=["label"], lock_ttl=2)
    def watches_lock(label): ...

    assert watches_lock.lock_holder(label) is None
    assert watches_lock.break_lock(label) is False
    result = sender.send_task("watches_lock", [label], queue=queue)
    entry = eventually(lambda: journal.read(label, "start"), "it runs")[0]
    holder = watches_lock.lock_holder(label)
    assert (holder.task_id, holder.attempt) == (result.id, 0)
    assert (holder.node, holder.pid) == (worker.node, entry.pid)
    assert 0 < holder.ttl <= 2
    assert holder.fence == entry.data["fence"]
    assert watches_lock.break_lock(label) is True
    assert result.get(timeout=20).startswith("lost"), "its holder learns of it"
    assert watches_lock.lock_holder(label) is None
