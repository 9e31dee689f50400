"""What docs/deploying.md says of shutdowns, of pools that shrink, and of rolling releases."""

from __future__ import annotations

import os
import signal

import pytest
from celery.exceptions import WorkerLostError

from tests.behaviour.looking import starts
from tests.support.waiting import eventually, never

QUEUE = "deploying"
RELEASES = ("old", "between", "new")


@pytest.fixture(scope="module")
def worker(start_module_worker):
    return start_module_worker(queues=QUEUE, concurrency=3)


@pytest.fixture(scope="module")
def releases(start_module_worker):
    """A worker of each release of a task whose lock gets another key."""
    for each in RELEASES:
        where = {"app": "tests.behaviour.apps.rekeyed", "queues": f"{QUEUE}-{each}"}
        start_module_worker(conf={"test_release": each}, **where)


def holds(journal, locks_of, result, label):
    """The process of the task's run, which has its lock."""
    (entry,) = eventually(lambda: journal.read(label, "start"), "it runs")
    assert locks_of(result.id)
    return entry.pid


@pytest.mark.parametrize(("name", "runs"), [("long_ttl", 1), ("late_hour", 1), ("late", 2)])
def test_a_term_to_a_pool_process_ends_its_body_and_only_a_rejected_message_comes_back(
    worker, send, journal, label, locks_of, name, runs
):
    """As systemd's KillMode=control-group sends it."""
    result = send(name, label, 1.5)
    pid = holds(journal, locks_of, result, label)
    (key,) = locks_of(result.id)
    os.kill(pid, signal.SIGTERM)
    if runs == 1:  # with acks_late too
        eventually(lambda: key not in locks_of(result.id), "the lock is free")
        with pytest.raises(WorkerLostError, match="SIGTERM"):
            result.get(timeout=20)
    else:
        assert result.get(timeout=40)
    assert starts(journal, label, result.id) == runs
    assert journal.overlaps(label) == []


def test_a_soft_shutdown_waits_and_then_frees_the_lock_and_gives_the_message_back(
    start_worker, sender, queue, journal, label, locks_of
):
    soft = {"worker_soft_shutdown_timeout": 1.5}
    worker = start_worker(queues=queue, concurrency=1, conf=soft)
    result = sender.send_task("late_hour", [label, 4.0], queue=queue)
    holds(journal, locks_of, result, label)
    worker.signal(signal.SIGQUIT)
    never(lambda: not locks_of(result.id), "it was ended at once", 0.7)
    worker.wait(30)
    assert not locks_of(result.id)
    start_worker(queues=queue, concurrency=1)
    assert result.get(timeout=40)
    assert starts(journal, label, result.id) == 2


def test_a_pool_that_shrinks_ends_no_run(worker, sender, send, journal, label, locks_of):
    results = [send("long_ttl", f"{label}-{n}", 3.0) for n in range(3)]
    for n, result in enumerate(results):
        holds(journal, locks_of, result, f"{label}-{n}")
    for _ in range(2):
        sender.control.pool_shrink(1, destination=[worker.node], reply=True)
    assert all(result.get(timeout=20) for result in results)
    sender.control.pool_grow(2, destination=[worker.node], reply=True)


@pytest.mark.parametrize("two", [RELEASES[:2], RELEASES[1:]])
def test_a_release_that_takes_both_locks_excludes_the_one_before_and_the_one_after(
    releases, sender, journal, label, two
):
    results = [
        sender.send_task("charge", [label], queue=f"{QUEUE}-{each}")
        for _ in range(4)
        for each in two
    ]
    for result in results:
        result.get(timeout=60)
    assert journal.count(label, "start") == len(results)
    assert journal.overlaps(label) == []
