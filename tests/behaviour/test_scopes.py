"""Unique while queued: the lock stands from when a task is sent, and never without its message."""

from __future__ import annotations

import os
import signal
import uuid

import pytest
from celery.exceptions import TimeLimitExceeded, WorkerLostError

from tests.support.sending import app, length, tasks
from tests.support.waiting import eventually
from tests.support.workers import is_running

__all__ = ["app", "length", "tasks"]  # fixtures

QUEUE = "scopes"


@pytest.fixture(scope="module")
def worker(start_module_worker):
    """Of all tests' queues, each as long as its test wants it."""
    return start_module_worker(queues=f"q{uuid.uuid4().hex}", concurrency=4)


@pytest.fixture
def consume(worker, sender, queue):
    """Lets the worker have this test's queue: from now on what was sent runs."""

    def tell(command):
        # A worker that is just ready may not listen yet.
        return command(queue, destination=[worker.node], reply=True, timeout=2.0)

    yield lambda: eventually(lambda: tell(sender.control.add_consumer), "the worker consumes it")
    tell(sender.control.cancel_consumer)


# -- sending ----------------------------------------------------------------------------------


def test_the_lock_passes_from_the_message_to_the_run_and_stands_until_its_end(
    tasks, label, consume, journal
):
    first = tasks.send("unique", label, "stand")
    consume()
    eventually(lambda: journal.count(label, "start") == 1, "it runs")
    assert not tasks.unique.lock_holder(label).queued
    assert tasks.send("unique", label).id == first.id
    journal.let_go(first.id)
    assert first.get(timeout=20)[1] > 0
    eventually(lambda: tasks.unique.lock_holder(label) is None, "the lock is free")
    second = tasks.send("unique", label)
    assert second.id != first.id
    assert second.get(timeout=20)
    assert journal.count(label, "start") == 2


def test_a_lock_of_the_queue_alone_is_free_as_soon_as_the_task_starts(
    tasks, label, consume, journal
):
    first = tasks.send("unique_queued", label, "stand")
    assert tasks.send("unique_queued", label).id == first.id
    consume()
    eventually(lambda: journal.count(label, "start") == 1, "it runs")
    assert tasks.unique_queued.lock_holder(label) is None
    second = tasks.send("unique_queued", label, 0.1)
    assert second.id != first.id
    assert second.get(timeout=20) == [label, 0]
    assert len(journal.overlaps(label)) == 1, "the second ran beside the first"
    journal.let_go(first.id)
    assert first.get(timeout=20) == [label, 0]


def test_a_task_that_sends_itself_is_its_own_duplicate(sender, label, queue, consume):
    consume()
    assert sender.send_task("sends_itself", (label,), queue=queue).get(timeout=20) is True


# -- retries and copies -----------------------------------------------------------------------


def test_a_run_that_met_its_hard_time_limit_is_nobodys_original(tasks, label, consume):
    """Celery stores the result some 100 ms before the process is dead and the lock is free."""
    consume()
    first = tasks.send("unique_limited", label, 60.0)
    with pytest.raises(TimeLimitExceeded):
        first.get(timeout=30, interval=0.01)
    second = tasks.send("unique_limited", label, 0.1)
    assert second.id != first.id
    assert second.get(timeout=20)[0] == label, "it ran, and met no lock"


def test_a_child_that_dies_before_it_takes_its_lock_fails_its_task_and_frees_what_was_kept(
    tasks, label, consume, length
):
    """Its own reservation is no other delivery that would go on with the task."""
    consume()
    result = tasks.send("unique_killed", label)
    with pytest.raises(WorkerLostError):
        result.get(timeout=30)
    eventually(lambda: tasks.unique_killed.lock_holder(label) is None, "the lock is free")
    assert length() == 0


def test_what_a_child_could_not_free_before_it_ended_is_freed_when_the_server_answers(
    tasks, label, queue, start_worker, journal, proxy, conf
):
    url = proxy.in_front_of(conf["redislock_url"])
    start_worker(queues=f"{queue}-now", concurrency=1, conf={"redislock_url": url})
    proxy.cut_off()
    result = tasks.send("unique_queued", label, 0.1, queue=f"{queue}-now")
    assert result.get(timeout=20)
    (run,) = journal.read(label, "start")
    os.kill(run.pid, signal.SIGKILL)
    eventually(lambda: not is_running(run.pid), "its process has ended")
    holder = tasks.unique_queued.lock_holder(label)
    assert (holder.task_id, holder.queued) == (result.id, True)
    proxy.reconnect()
    eventually(lambda: tasks.unique_queued.lock_holder(label) is None, "it is free", 20)
