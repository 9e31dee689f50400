"""Where a lock is taken, whoever sends the work and however the task is made."""

from __future__ import annotations

import pytest

from celery_redislock import SingletonTask, TaskSkipped
from tests.support.workers import make_app

QUEUE = "surface"
THEIRS = {"pla*": {"lock_key": ["label"], "lock_ttl": 60}, "no.such.task": {}}


@pytest.fixture(scope="module")
def workers(start_module_worker):
    """Two, which protect a task that they do not own."""
    conf = {"redislock_tasks": THEIRS}
    return [start_module_worker(queues=QUEUE, concurrency=2, conf=conf) for _ in range(2)]


def test_shared_tasks_and_a_task_cls_for_the_whole_app_take_the_lock(
    start_worker, sender, queue, journal, label
):
    conf = {"test_task_cls": "celery_redislock:SingletonTask"}
    worker = start_worker(queues=queue, concurrency=3, conf=conf)
    for name in ("shared", "plain"):
        own = f"{label}-{name}"
        first = sender.send_task(name, [own, 3.0], queue=queue)
        journal.await_start(own, first.id)
        with pytest.raises(TaskSkipped):
            sender.send_task(name, [own, 3.0], queue=queue).get(timeout=20)
        assert first.get(timeout=20)
    assert "Traceback" not in worker.log()


def test_tasks_one_does_not_own_are_protected_by_name_or_glob(
    workers, send, journal, label, client, locks_of
):
    first = send("plain", label, 4.0)
    journal.await_start(label, first.id)
    (key,) = locks_of(first.id)
    assert client.pttl(key) > 30_000
    with pytest.raises(TaskSkipped):
        send("plain", label, 0.1).get(timeout=20)
    assert first.get(timeout=20)
    for worker in workers:
        assert "'no.such.task'" in worker.log(), "a name that matches nothing is said"


def test_the_holder_can_be_asked_and_the_lock_broken(workers, send, conf, journal, label):
    with make_app(conf) as app:

        @app.task(shared=False, base=SingletonTask, name="watches_lock", lock_key=["label"])
        def watches_lock(label): ...

        assert watches_lock.lock_holder(label) is None
        assert watches_lock.break_lock(label) is False
        result = send("watches_lock", label, 60.0)
        entry = journal.await_start(label, result.id)
        holder = watches_lock.lock_holder(label)
        assert (holder.task_id, holder.attempt) == (result.id, 0)
        assert holder.pid == entry.pid
        (worker,) = [each for each in workers if entry.pid in each.children()]
        assert holder.node == worker.node
        assert 0 < holder.ttl <= 2
        assert holder.fence == entry.data["fence"]
        assert watches_lock.break_lock(label) is True
        assert result.get(timeout=50).startswith("lost"), "its holder learns of it"
        assert watches_lock.lock_holder(label) is None
