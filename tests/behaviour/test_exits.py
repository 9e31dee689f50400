"""Every exit frees the lock: at once where code can run, by the main process where none can."""

from __future__ import annotations

import os
import re
import signal

import pytest
from celery.exceptions import TaskRevokedError, TimeLimitExceeded, WorkerLostError

from tests.behaviour.looking import celery
from tests.conftest import POOLS
from tests.support.waiting import eventually, never
from tests.support.workers import ROOT, is_running

QUEUE = "exits"


@pytest.fixture(scope="module")
def worker(start_module_worker):
    return start_module_worker(queues=QUEUE, concurrency=3)


def start_of(journal, label, index=0, timeout=30):
    return eventually(lambda: journal.read(label, "start")[index:], "it runs", timeout)[0]


def test_a_soft_time_limit_that_the_body_catches_frees_the_lock(worker, sender, label, locks_of):
    result = sender.send_task("soft_limit_in_finally", [label], queue=QUEUE)
    assert result.get(timeout=20) == "limited"
    assert not locks_of(result.id)


def test_a_hard_time_limit_frees_the_lock_and_not_before_the_body_ended(
    worker, sender, journal, label, locks_of
):
    result = sender.send_task("hard_limited", [label], queue=QUEUE)
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=20)
    entry = start_of(journal, label)
    eventually(lambda: not locks_of(result.id), "the lock is free long before its ttl")
    # The next run proves it: no line of the dead one comes after its start.
    assert sender.send_task("hard_limited", [label], queue=QUEUE)
    second = start_of(journal, label, 1)
    assert not is_running(entry.pid)
    working = [e.at for e in journal.read(label, "working") if e.pid == entry.pid]
    assert working, "the first one's finally block worked while it was being killed"
    assert max(working) < second.at


def test_what_the_runbook_says_first_ends_a_run_that_hangs_and_frees_its_lock(
    worker, sender, conf, journal, label, locks_of
):
    result = sender.send_task("long_ttl", [label, 60.0], queue=QUEUE)
    start_of(journal, label)
    runbook = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^\$ celery -A proj (control .*)$", runbook, re.M)[:1]
    *words, _ = line.split()
    told = celery("tests.support.tasks", conf, *words, result.id)
    assert told.returncode == 0, told.stderr
    with pytest.raises(TaskRevokedError):
        result.get(timeout=20)
    eventually(lambda: not locks_of(result.id), "the lock is free long before its ttl")


def test_killed_children_free_their_locks(worker, sender, journal, label, locks_of):
    """Every time: Celery itself notices some of the deaths only five seconds later."""
    for number in range(4):
        own = f"{label}-{number}"
        result = sender.send_task("long_ttl", [own, 60.0], queue=QUEUE)
        entry = start_of(journal, own)
        os.kill(entry.pid, signal.SIGKILL)
        eventually(lambda result=result: not locks_of(result.id), "the lock is free", 4)
    with pytest.raises(WorkerLostError):
        result.get(timeout=20)
    journal.killed(entry)
    second = sender.send_task("long_ttl", [own, 0.1], queue=QUEUE)
    assert second.get(timeout=30)
    assert journal.overlaps(own) == []


def test_a_body_that_exits_its_process_frees_the_lock(worker, sender, journal, label, locks_of):
    result = sender.send_task("long_ttl", [label, 0.1, "exit"], queue=QUEUE)
    eventually(lambda: journal.count(label, "end") == 1, "it ended")
    eventually(lambda: not locks_of(result.id), "the lock is free long before its ttl")


def test_children_that_are_replaced_leave_no_lock(
    start_worker, sender, queue, journal, label, locks_of
):
    start_worker("--max-tasks-per-child", "1", queues=queue, concurrency=1)
    results = [sender.send_task("long_ttl", [label, 0.05], queue=queue) for _ in range(3)]
    ran = 0
    for result in results:
        ran += result.get(timeout=30, propagate=False) is not None
        assert not locks_of(result.id)
    pids = {entry.pid for entry in journal.read(label, "start")}
    assert len(pids) == 3


@pytest.mark.parametrize("pool", POOLS)
def test_a_warm_shutdown_waits_for_the_body_and_frees_the_lock(
    start_worker, sender, queue, journal, label, locks_of, pool
):
    worker = start_worker(queues=queue, pool=pool, concurrency=1)
    result = sender.send_task("long_ttl", [label, 2.0], queue=queue)
    start_of(journal, label)
    worker.signal(signal.SIGTERM)

    def freed_while_running():
        # In this order: the body writes its end before the lock is released.
        return not locks_of(result.id) and not journal.read(label, "end")

    never(freed_while_running, "the lock was freed and the body still ran", 0.5)
    worker.wait(30)
    assert journal.count(label, "end") == 1
    assert not locks_of(result.id)


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_a_cold_shutdown_never_frees_the_lock_before_the_body_ended(
    start_worker, sender, queue, journal, label, locks_of, pool
):
    worker = start_worker(queues=queue, pool=pool, concurrency=1)
    result = sender.send_task("skip", [label, 3.0], queue=queue)
    entry = start_of(journal, label)
    worker.signal(signal.SIGQUIT)

    def freed_while_running():
        # In this order: the body writes its end before the lock is released.
        free = not locks_of(result.id)
        return free and is_running(entry.pid) and not journal.read(label, "end")

    never(freed_while_running, "the lock was freed and the body still ran", 1.5)
    # When the body has ended, which a thread does not before its time; or else by the ttl of 6 s.
    eventually(lambda: not locks_of(result.id), "the lock is free")


def test_a_killed_worker_frees_the_lock_within_the_ttl(
    start_worker, sender, queue, journal, label, client, locks_of
):
    worker = start_worker(queues=queue, concurrency=1)
    result = sender.send_task("watches_lock", [label, 60.0], queue=queue)
    entry = start_of(journal, label)
    (key,) = locks_of(result.id)
    worker.signal(signal.SIGKILL)
    assert client.pttl(key) <= 2000
    eventually(lambda: not is_running(entry.pid), "its children died with it")
    eventually(lambda: not locks_of(result.id), "the lock lapsed")
