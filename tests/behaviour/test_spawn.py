"""The outcomes that are promised, in a pool whose processes are spawned and not forked: Celery's
`worker_pool_start_method`, and the only way on macOS.
"""

from __future__ import annotations

import os
import signal
import time

import pytest
from celery import VERSION
from celery.exceptions import WorkerLostError

from celery_redislock import LockLost
from tests.support.waiting import eventually

QUEUE = "spawned"

pytestmark = pytest.mark.skipif(VERSION < (5, 7), reason="Celery has the setting from 5.7 on")


@pytest.fixture(scope="module", autouse=True)
def worker(start_module_worker):
    conf = {
        "worker_pool_start_method": "spawn",
        "worker_proc_alive_timeout": 60,  # a child imports everything anew
        "redislock_tasks": {"plain": {"lock_key": ["label"]}},
    }
    return start_module_worker(queues=QUEUE, concurrency=5, conf=conf)


@pytest.fixture
def start(send, journal, label):
    """Starts a task and gives its result and the entry of its start."""

    def start(name, *args):
        result = send(name, label, *args)
        return result, journal.await_start(label, result.id)

    return start


def test_its_processes_are_interpreters_of_their_own(worker, start):
    _, entry = start("skip")
    assert entry.pid in worker.children()
    with open(f"/proc/{entry.pid}/cmdline", "rb") as file:
        assert b"spawn_main" in file.read()


def test_the_lock_of_a_killed_child_is_free_at_once(start, client, locks_of):
    result, entry = start("long_ttl", 60.0)
    (key,) = locks_of(result.id)
    os.kill(entry.pid, signal.SIGKILL)
    eventually(lambda: not client.exists(key), "the lock is free long before its ttl", 30)
    with pytest.raises(WorkerLostError):
        result.get(timeout=20)


def test_a_lock_outlives_its_ttl_and_its_loss_ends_the_body(start, client, locks_of):
    result, entry = start("aborts", 60.0, "sleep")
    (key,) = eventually(lambda: locks_of(result.id), "it has its lock")
    eventually(lambda: time.monotonic() - entry.at > 3, "the ttl of 1 s is over")
    # On a machine that stood still it may have lapsed, and was taken again.
    assert eventually(lambda: locks_of(result.id), "the lock is kept") == [key]
    client.set(key, "thief")
    with pytest.raises(LockLost):
        result.get(timeout=50)
    client.delete(key)


def test_no_error_is_ours(worker):
    assert "redislock: unexpected" not in worker.log()
