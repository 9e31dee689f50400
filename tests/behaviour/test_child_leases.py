"""In prefork the worker's main process extends what its children hold: they may not be able to."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.waiting import eventually, never
from tests.support.workers import is_running

QUEUE = "child-leases"


@pytest.fixture(scope="module")
def worker(start_module_worker):
    """What runs on when its test is over takes a slot for as long."""
    return start_module_worker(queues=QUEUE, concurrency=8)


@pytest.fixture
def start(worker, send, journal, label):
    """Starts a task and gives its result and the entry of its start."""

    def start(name, *args):
        result = send(name, label, *args)
        return result, journal.await_start(label, result.id)

    return start


@pytest.fixture
def fifo(tmp_path):
    """For `holds_gil`."""
    os.mkfifo(path := tmp_path / "fifo")
    return path


@pytest.fixture
def stop():
    """Stops a process until the test ends, or `go_on` is called with it."""
    stopped = []

    def stop(pid):
        os.kill(pid, signal.SIGSTOP)
        stopped.append(pid)

    yield stop
    for pid in stopped:
        go_on(pid)


def go_on(pid):
    if is_running(pid):
        os.kill(pid, signal.SIGCONT)


def test_a_body_that_holds_the_interpreters_lock_beyond_its_ttl_keeps_its_lock(
    start, send, label, locks_of, fifo
):
    result, _ = start("holds_gil", str(fifo))
    (key,) = locks_of(result.id)
    never(lambda: not locks_of(result.id), "the lock, with a ttl of 2 s, lapsed", 3.5)
    duplicate = send("holds_gil", label, str(fifo))
    eventually(lambda: duplicate.state == "REVOKED", "the duplicate is skipped")
    fifo.write_bytes(b".")
    assert result.get(timeout=30) == {"key": key, "lost": False}


def test_a_stopped_child_is_told_when_its_lock_is_lost(start, stop, client, locks_of):
    result, entry = start("watches_lock", 15.0)
    (key,) = locks_of(result.id)
    stop(entry.pid)
    client.set(key, "thief")
    go_on(entry.pid)
    assert result.get(timeout=20) == f"lost {key}"
    assert client.getdel(key) == "thief", "what is not ours is neither extended nor deleted"


def test_a_stopped_child_holds_no_longer_than_it_may(start, stop, locks_of):
    result, entry = start("max_hold", 15.0)
    stop(entry.pid)
    eventually(lambda: not locks_of(result.id), "the lock lapsed")


def test_a_child_that_ignores_its_termination_keeps_its_lock_until_it_is_gone(
    start, sender, locks_of, fifo
):
    """TERM waits until the interpreter's lock is free, and Celery forgets the request at once."""
    result, entry = start("holds_gil", str(fifo))
    sender.control.revoke(result.id, terminate=True)
    eventually(lambda: result.state == "REVOKED", "it is revoked")
    never(lambda: not locks_of(result.id), "the lock lapsed and the body still runs", 3.5)
    assert is_running(entry.pid)
    fifo.write_bytes(b".")
    eventually(lambda: not is_running(entry.pid), "the child is gone")
    eventually(lambda: not locks_of(result.id), "the lock is free")


def test_the_locks_of_all_children_are_extended_in_one_round_trip(
    start_worker, own_redis, sender, queue, journal, label, stop
):
    children = 6
    start_worker(queues=queue, concurrency=children, conf={"redislock_url": f"{own_redis.url}/0"})
    labels = [f"{label}-{i}" for i in range(children)]
    for each in labels:
        sender.send_task("short_ttl", [each, 60.0], queue=queue)
    for each in labels:
        (entry,) = eventually(lambda each=each: journal.read(each, "start"), "it runs")
        stop(entry.pid)  # from here on the main process is alone with them
    client = own_redis.client()

    def so_far():
        stats = client.info("everything")
        return stats["cmdstat_evalsha"]["calls"], stats["total_reads_processed"]

    def reads_of_five_ticks():
        scripts, reads = so_far()
        asked = 1

        def extended():
            nonlocal asked
            asked += 1
            return so_far()[0] - scripts >= 5 * children

        eventually(extended, "five ticks")
        return so_far()[1] - reads - asked

    # They were taken at different times, and come together tick by tick.
    few = 5 * children / 2
    assert any(reads_of_five_ticks() <= few for _ in range(12)), "the extensions go out one by one"
