"""What is promised on macOS and on Windows, on Linux without what they lack."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import pytest

from celery_redislock import ConfigError, LockLost, RedisLock, TaskSkipped
from tests.support.waiting import eventually

from .conftest import on

WORKS = """
import asyncio, importlib, os, pkgutil, select, signal, sys, time
from celery import Celery
import celery_redislock
from celery_redislock import AsyncRedisLock, LockConflict, RedisLock, SingletonTask
from celery_redislock.operations import list_locks

# Every module can be imported.
for each in pkgutil.walk_packages(celery_redislock.__path__, "celery_redislock."):
    importlib.import_module(each.name)
for name in celery_redislock.__all__:
    getattr(celery_redislock, name)
assert not hasattr(os, "pidfd_open") and not hasattr(select, "epoll"), "the platform lacks them"

# A lock is taken, kept and released.
url, label = sys.argv[1:]
with RedisLock(url, label, ttl=10) as lock:
    try:
        with RedisLock(url, label, timeout=0.1):
            raise AssertionError("two have it")
    except LockConflict as exc:
        assert exc.holder.pid
    first = lock.fence

async def go():
    async with AsyncRedisLock(url, label, ttl=3) as lock:
        assert lock.fence > first
        await asyncio.sleep(4)
        assert not lock.lost, "the heartbeat keeps it"

asyncio.run(go())

# A task is sent, and its duplicate is the first call.
app = Celery(broker="memory://")
app.conf.redislock_url = url

@app.task(base=SingletonTask, lock_key="{label}", lock_scope="queued+running")
def add(label): ...

assert add.delay(label).id == add.delay(label).id
assert add.break_lock(label)
(broken,) = (each for each in list_locks(app) if label in each.key)
assert "@" in broken.broken_by, "who broke it has a name and a host"
print(hasattr(os, "fork"), hasattr(signal, "SIGUSR2"), hasattr(time, "clock_gettime"))
"""


def test_every_module_is_imported_a_lock_is_taken_and_kept_and_a_task_is_sent(
    python, platform, redis_server, label
):
    said = python("-W", "error", "-c", WORKS, redis_server.url, label)
    assert said.split() == [str(platform == "macos")] * 3


KIT = """
from celery import Celery
from celery_redislock import RedisLock, SingletonTask, current_lock
from celery_redislock.testing import assert_skipped, memory_locks

app = Celery()

@app.task(base=SingletonTask, bind=True, lock_key="{n}")
def sync(self, n, during=None):
    if during:
        during()
    return self.lock.lost

def test_fixtures(redislock_memory, held_lock, lose_lock):
    assert sync.apply((1,)).result is False
    held_lock(sync, 5)
    assert_skipped(sync.apply((5,)))
    assert sync.apply((6, lambda: lose_lock(sync, 6))).result is True

def test_memory():
    with memory_locks(), RedisLock("redis://nowhere", "name") as lock:
        assert lock.fence
"""


def test_the_test_kit_works(python, tmp_path, monkeypatch):
    (tmp_path / "test_it.py").write_text(KIT)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # others tell by `sys.platform`
    ours = ("-p", "no:cacheprovider", "-p", "celery_redislock_pytest")
    assert "2 passed" in python("-m", "pytest", "-q", *ours, "test_it.py", cwd=tmp_path)


@pytest.fixture(scope="module")
def worker(request, start_module_worker):
    """A worker on a platform, with a pool."""
    name, pool = request.param
    queue, concurrency = f"platforms-{name}-{pool}", 1 if pool == "solo" else 2
    with on(name):
        process = start_module_worker(pool=pool, queues=queue, concurrency=concurrency)
    return SimpleNamespace(process=process, pool=pool, queue=queue)


#: Each platform, with the pool that has most of it.
with_each_pool = pytest.mark.parametrize(
    "worker",
    [
        ("macos", "prefork"),
        ("windows", "threads"),
    ],
    indirect=True,
    ids="-".join,
)


@pytest.fixture
def start(sender, journal, label):
    """Starts a task and gives its result and the entry of its start."""

    def start(queue, name, *args):
        result = sender.send_task(name, [label, *args], queue=queue)
        entries = eventually(lambda: journal.read(label, "start"), "it runs")
        return result, entries[0]

    return start


@with_each_pool
def test_a_worker_runs_skips_retries_and_frees_the_lock(
    worker, start, sender, journal, label, locks_of
):
    first, _ = start(worker.queue, "skip", 2.0)
    duplicate = sender.send_task("skip", [label], queue=worker.queue)

    with pytest.raises(TaskSkipped):
        duplicate.get(timeout=20)
    assert first.get(timeout=20)[0] == label
    assert sender.send_task("retries", [label, 1], queue=worker.queue).get(timeout=20) == 1
    assert journal.overlaps(label) == []
    assert not locks_of(first.id)


@with_each_pool
def test_a_body_that_lost_its_lock_is_ended_if_it_asked_for_it(worker, start, client, locks_of):
    result, _ = start(worker.queue, "aborts", 20.0, "steps")
    (key,) = locks_of(result.id)

    client.set(key, "thief")

    with pytest.raises(LockLost):
        result.get(timeout=60)
    client.delete(key)


@pytest.mark.parametrize("platform", ["macos"], indirect=True)
@pytest.mark.parametrize("method", ["fork", "spawn"])  # Celery forks before 5.7
def test_the_lock_of_a_killed_child_is_free_long_before_it_would_expire(
    platform, method, start_worker, start, queue, client, locks_of
):
    conf = {"worker_pool_start_method": method, "worker_proc_alive_timeout": 60}  # imports anew
    start_worker(queues=queue, concurrency=2, conf=conf)
    result, entry = start(queue, "long_ttl", 60.0)
    (key,) = locks_of(result.id)
    assert client.pttl(key) > 30_000

    os.kill(entry.pid, signal.SIGKILL)

    eventually(lambda: not client.exists(key), "the lock is free", 15)


def test_a_unix_socket_is_refused_where_there_is_none(monkeypatch):
    monkeypatch.delattr("socket.AF_UNIX")
    with pytest.raises(ConfigError, match="no Unix sockets"):
        RedisLock("unix:///run/redis.sock", "name")
