"""What is promised on macOS and on Windows, on Linux without what they lack."""

from __future__ import annotations

import os
import signal
import time

import pytest

from celery_redislock import ConfigError, LockLost, TaskSkipped
from celery_redislock.protocol import platform as module
from celery_redislock.servers.urls import source_from_url
from tests.behaviour.looking import listed, redislock
from tests.support.lateness import elapsed
from tests.support.waiting import eventually
from tests.support.workers import APP

IMPORTS = """
import importlib, os, pkgutil, select, signal, socket, sys, time
import celery_redislock

for each in pkgutil.walk_packages(celery_redislock.__path__, "celery_redislock."):
    importlib.import_module(each.name)
for name in celery_redislock.__all__:
    getattr(celery_redislock, name)

from celery_redislock.protocol.clock import clock
from celery_redislock.protocol.holders import user_here

assert not hasattr(os, "pidfd_open") and not hasattr(select, "epoll"), "the platform lacks them"
assert type(clock).__module__ in ("functools", "builtins"), "it is no Python function"
before = clock()
time.sleep(0.01)
assert 0.009 < clock() - before < 5
assert "@" in user_here()
print(hasattr(os, "fork"), hasattr(signal, "SIGUSR2"), hasattr(time, "clock_gettime"))
"""


def test_every_module_can_be_imported(python, platform):
    assert python("-W", "error", "-c", IMPORTS).split() == [str(platform == "macos")] * 3


TAKES = """
import asyncio, sys
from celery_redislock import AsyncRedisLock, LockConflict, RedisLock

url, name = sys.argv[1:]
with RedisLock(url, name, ttl=1) as lock:
    try:
        with RedisLock(url, name, timeout=0.1):
            raise AssertionError("two have it")
    except LockConflict as exc:
        assert exc.holder.pid
    first = lock.fence

async def go():
    async with AsyncRedisLock(url, name, ttl=3) as lock:
        assert lock.fence > first
        await asyncio.sleep(4)
        assert not lock.lost, "the heartbeat keeps it"

asyncio.run(go())
"""


def test_a_lock_is_taken_kept_and_released(python, redis_server, label):
    python("-c", TAKES, redis_server.url, label)


SENDS = """
import sys
from celery import Celery
from celery_redislock import SingletonTask

app = Celery(broker="memory://")
app.conf.redislock_url = sys.argv[1]

@app.task(base=SingletonTask, lock_key="{label}", lock_scope="queued+running")
def add(label): ...

print(add.delay(sys.argv[2]).id == add.delay(sys.argv[2]).id)
"""


def test_a_task_is_sent_and_its_duplicate_is_the_first_call(python, redis_server, label):
    assert python("-W", "error", "-c", SENDS, redis_server.url, label) == "True\n"


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


@pytest.fixture
def worker(request, platform, start_worker, queue):
    """A worker with this pool."""
    concurrency = 1 if request.param == "solo" else 2
    return start_worker(pool=request.param, queues=queue, concurrency=concurrency)


#: The pools that are promised, and where.
with_each_pool = pytest.mark.parametrize(
    ("platform", "worker"),
    [
        ("macos", "solo"),
        ("macos", "threads"),
        ("macos", "prefork"),
        ("windows", "solo"),
        ("windows", "threads"),
    ],
    indirect=True,
)


@pytest.fixture
def start(sender, queue, journal, label):
    """Starts a task and gives its result and the entry of its start."""

    def start(name, *args):
        result = sender.send_task(name, [label, *args], queue=queue)
        entries = eventually(lambda: journal.read(label, "start"), "it runs")
        return result, entries[0]

    return start


@with_each_pool
def test_a_worker_runs_skips_retries_and_frees_the_lock(
    worker, start, sender, queue, journal, label, locks_of
):
    first, _ = start("skip", 2.0)
    duplicate = sender.send_task("skip", [label], queue=queue)
    if "solo" in worker.popen.args:
        assert first.get(timeout=20)[0] == label
        assert duplicate.get(timeout=20)[0] == label
    else:
        with pytest.raises(TaskSkipped):
            duplicate.get(timeout=20)
        assert first.get(timeout=20)[0] == label
    assert sender.send_task("retries", [label, 1], queue=queue).get(timeout=20) == 1
    assert journal.overlaps(label) == []
    assert not locks_of(first.id)


@with_each_pool
def test_a_body_that_lost_its_lock_is_ended_if_it_asked_for_it(worker, start, client, locks_of):
    result, _ = start("aborts", 20.0, "steps")
    (key,) = locks_of(result.id)
    client.set(key, "thief")
    with pytest.raises(LockLost):
        result.get(timeout=15)
    client.delete(key)


@with_each_pool
def test_a_killed_workers_lock_lapses(worker, start, locks_of):
    result, _ = start("skip", 60.0)
    (key,) = locks_of(result.id)
    os.killpg(worker.pid, signal.SIGKILL)
    eventually(lambda: not locks_of(result.id), f"{key} lapsed", 10)


@pytest.mark.parametrize("platform", ["macos"], indirect=True)
@pytest.mark.parametrize("method", ["fork", "spawn"])  # Celery forks before 5.7
def test_the_lock_of_a_killed_child_is_free_within_half_a_second(
    platform, method, start_worker, sender, queue, journal, label, client, locks_of
):
    conf = {"worker_pool_start_method": method, "worker_proc_alive_timeout": 60}  # imports anew
    start_worker(queues=queue, concurrency=2, conf=conf)
    took = [60.0]
    while min(took) > 0.5 and len(took) < 8:  # a busy worker is late: it starts the next child too
        number = len(took)
        name = f"{label}-{number}"
        result = sender.send_task("long_ttl", [name, 60.0], queue=queue)
        (entry,) = eventually(lambda name=name: journal.read(name, "start"), "it runs")
        (key,) = locks_of(result.id)
        began = time.monotonic()
        os.kill(entry.pid, signal.SIGKILL)
        eventually(lambda key=key: not client.exists(key), "the lock is free")
        took.append(elapsed(began))
    assert min(took) < 0.5, took


def test_the_commands_tell_of_a_lock(
    platform, conf, redis_server, start_worker, start, queue, label
):
    start_worker(pool="threads", queues=queue)
    result, _ = start("long_ttl", 60.0)
    settings = {**conf, "redislock_url": f"{redis_server.url}/0"}
    assert result.id in [row["task_id"] for row in listed(APP, settings)]
    told = redislock(APP, settings, "doctor")
    assert "Traceback" not in told.stderr, told.stderr
    assert told.returncode in (0, 1), told.stderr
    assert told.stdout


def test_a_fork_hook_is_no_error_where_nothing_forks(monkeypatch):
    monkeypatch.delattr(os, "register_at_fork")
    module.at_fork(after_in_child=lambda: None)


def test_a_unix_socket_is_refused_where_there_is_none(monkeypatch):
    monkeypatch.delattr("socket.AF_UNIX")
    with pytest.raises(ConfigError, match="no Unix sockets"):
        source_from_url("unix:///run/redis.sock")
