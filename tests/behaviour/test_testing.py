"""What users test with: `celery_redislock.testing` and its fixtures, without any Redis."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import redis
from celery import Celery

from celery_redislock import (
    ConfigError,
    LockConflict,
    LockLost,
    LockUnavailable,
    RedisLock,
    SingletonTask,
    testing,
)
from celery_redislock.testing import (
    HeldLock,
    MemoryLocks,
    assert_free,
    assert_locked,
    assert_skipped,
    hold_lock,
    memory_locks,
)
from tests.behaviour.looking import Keys
from tests.support.waiting import eventually
from tests.support.workers import ROOT

Hold = Callable[..., HeldLock]


@pytest.fixture
def app() -> Iterator[Celery]:
    """An app that knows no Redis at all."""
    app = Celery("kit", broker="memory://", backend="cache+memory://", set_as_current=False)
    yield app
    app.close()


@pytest.fixture
def define(app: Celery, label: str) -> Callable[..., Any]:
    """Makes a task of a function, with options."""

    def define(body: Callable[..., Any], **options: Any) -> Any:
        name = f"kit.{body.__name__}.{label}"
        defaults = {"base": SingletonTask, "shared": False, "name": name}
        return app.task(**{**defaults, **options})(body)

    return define


def runs() -> str:
    return "ran"


# -- eager calls ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["apply", "always eager"])
def test_an_eager_duplicate_is_skipped_and_names_its_holder(
    app, define, held_lock, redislock_memory, how
):
    app.conf.task_always_eager = how == "always eager"

    def sync(self: Any, account: int) -> int:
        assert_locked(task, account)
        return int(self.lock.fence)

    task = define(sync, bind=True)
    send = task.delay if how == "always eager" else lambda *args: task.apply(args)
    held = held_lock(task, 5)
    error = assert_skipped(send(5))
    assert error.holder is not None
    assert error.holder.task_id == "held-by-test-1"
    assert redislock_memory.outcomes(task) == ["skipped"]
    assert redislock_memory.conflicts[0].key == held.key == task.lock_key_for(5)
    assert send(6).get() > 0, "another account's lock is free"
    held.release()
    assert send(5).get() > 0
    assert_free(task, 5)


def test_without_eager_locks_an_eager_call_takes_none(define):
    with memory_locks(eager=False):
        task = define(runs)
        with hold_lock(task):
            assert task.apply().get() == "ran"


def test_assertions_say_who_holds_a_lock(define, redislock_memory):
    def sync(account: int) -> None: ...

    task = define(sync)
    with pytest.raises(AssertionError, match="is not held"):
        assert_locked(task, 5)
    with hold_lock(task, account=5):
        assert assert_locked(task, 5).task == task.name
        with pytest.raises(AssertionError, match=r"is held by kit\.sync\..*held-by-test-1"):
            assert_free(task, 5)


# -- tasks that `redislock_tasks` names ----------------------------------------------------------


@pytest.mark.parametrize(
    "defined",
    ["before", "before, and looked at", "after", "when the app is complete", "as a class"],
)
def test_a_task_that_the_settings_name_is_locked_whenever_it_is_defined(app, label, defined):
    app.conf.redislock_tasks = {f"{label}.*": {"lock_ttl": 5}, f"{label}.free": None}

    def define(name: str) -> Any:
        if defined == "as a class":
            cls = type("Plain", (app.Task,), {"name": f"{label}.{name}", "run": lambda self: "ran"})
            return app.register_task(cls())
        return app.task(shared=False, name=f"{label}.{name}")(runs)

    if defined == "when the app is complete":
        app.finalize()
    early = [define("sync"), define("free")] if defined.startswith("before") else None
    if early and defined.endswith("looked at"):  # as pytest's collection does
        assert [each.name for each in early] == [f"{label}.sync", f"{label}.free"]
    with memory_locks() as locks:
        sync, free = early or [define("sync"), define("free")]
        with hold_lock(sync) as held:
            assert held.key == sync.lock_key_for()
            assert_skipped(sync.apply())
            assert free.apply().get() == "ran", "it is exempt from the glob"
            with pytest.raises(TypeError, match=r"\.free takes no lock: .*redislock_tasks"):
                hold_lock(free)
        assert sync.apply().get() == "ran"
        assert locks.outcomes() == ["skipped"]


# -- losing the lock --------------------------------------------------------------------------


@pytest.mark.parametrize("on_lock_lost", ["flag", "abort"])
def test_a_body_sees_at_once_that_its_lock_is_lost(
    define, lose_lock, redislock_memory, on_lock_lost
):
    def sync(self: Any) -> bool:
        started = time.monotonic()
        try:
            lose_lock()
        finally:
            assert time.monotonic() < started + 30, "long before a heartbeat"
        return bool(self.lock.lost)

    result = define(sync, bind=True, lock_ttl=300, on_lock_lost=on_lock_lost).apply()
    if on_lock_lost == "abort":
        assert isinstance(result.result, LockLost)
    else:
        assert result.get() is True


def test_only_a_lock_of_this_process_can_be_lost(define, lose_lock, redislock_memory):
    def sync(account: int) -> None: ...

    task = define(sync)
    with pytest.raises(AssertionError, match="no run in this process holds"):
        lose_lock(task, 5)
    with pytest.raises(AssertionError, match="no locked task runs here"):
        lose_lock()
    with hold_lock(task, 5) as held:
        lose_lock(task, 5)
        assert held.lost


# -- a server that is away --------------------------------------------------------------------


@pytest.mark.parametrize("choice", ["run", "raise"])
def test_without_the_server_a_task_does_what_it_says(define, redislock_memory, choice):
    task = define(runs, on_redis_error=choice)
    with redislock_memory.unreachable():
        result = task.apply()
    if choice == "run":
        assert result.get() == "ran"
    else:
        assert isinstance(result.result, LockUnavailable)
    assert task.apply().get() == "ran", "and nothing is held off afterwards"


# -- locks outside tasks ----------------------------------------------------------------------


def test_every_redis_lock_of_the_process_is_in_memory(held_lock):
    lock = RedisLock("redis://127.0.0.1:1", "account:5")  # nobody listens
    with memory_locks():
        held = held_lock(RedisLock("redis://127.0.0.1:2", "account:5"))
        assert lock.acquire(timeout=0) is False
        assert_locked(lock)
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(lock.acquire, 20)
            held.release()
            assert waits.result(20) is True
        with pytest.raises(LockConflict), RedisLock("redis://127.0.0.1:3", "account:5", timeout=0):
            pass


# -- where it begins and ends -----------------------------------------------------------------


def nothing() -> None: ...


def test_time_travel_ends_cool_downs_and_the_locks_of_the_dead(
    define, redislock_memory, held_lock, label
):
    pauses = define(nothing, lock_min_hold=timedelta(minutes=1))
    assert pauses.apply().state == "SUCCESS"
    assert_skipped(pauses.apply())
    redislock_memory.advance(59)
    assert_skipped(pauses.apply())
    redislock_memory.advance(timedelta(seconds=1.5))
    assert pauses.apply().state == "SUCCESS"

    dead = RedisLock("redis://redis.example", label, ttl=30, heartbeat=False)
    alive = RedisLock("redis://redis.example", f"{label}-alive", ttl=30)
    assert dead.acquire(0)
    assert alive.acquire(0)
    fence = alive.fence
    redislock_memory.advance(3600)
    assert_free(dead)
    assert dead.lost
    assert_locked(alive)
    assert not alive.lost
    assert alive.extend()
    assert alive.fence == fence
    assert alive.release()
    with pytest.raises(ConfigError, match="seconds=-1"):
        redislock_memory.advance(-1)


def test_time_travel_ends_waits_and_ends_with_the_memory(label):
    began = time.monotonic()
    with memory_locks() as outer, ThreadPoolExecutor() as threads:
        lock = RedisLock("redis://redis.example", label)
        with lock:
            waits = threads.submit(RedisLock("redis://redis.example", label).acquire, 600)
            waiters = lock.key.replace(":lock:", ":waiters:")
            eventually(lambda: outer.client.exists(waiters), "it waits")
            outer.advance(599)
            assert not waits.done()
            outer.advance(2)
            assert waits.result(20) is False
        with memory_locks() as inner:
            inner.advance(86400)
            assert inner.client.time()[0] > time.time() + 86400
        assert outer.client.time()[0] < time.time() + 700
    with memory_locks() as after, RedisLock("redis://redis.example", label, ttl=30) as lock:
        assert after.client.time()[0] < time.time() + 60
        assert not lock.lost
    assert time.monotonic() < began + 60


def test_waiters_that_are_woken_together_are_all_woken_at_once(define, redislock_memory):
    """Of two that were woken, one slept on for five seconds."""
    task = define(runs, lock_limit=3)
    waiters = Keys(task.lock_key_for()).waiters
    for _ in range(5):
        held = [RedisLock.of(task) for _ in range(3)]
        assert all(each.acquire(0) for each in held)
        inside = threading.Barrier(3, timeout=20)

        def wait(inside: threading.Barrier = inside) -> float:
            with RedisLock.of(task):
                now = time.monotonic()
                inside.wait()
                return now

        with ThreadPoolExecutor(3) as threads:
            waiting = [threads.submit(wait) for _ in range(3)]
            eventually(lambda: redislock_memory.client.zcard(waiters) == 3, "all wait")
            released = time.monotonic()
            for each in held:
                each.release()
            assert max(each.result(30) for each in waiting) - released < 3


def test_a_test_that_forgot_the_fixture_is_told(define, app):
    app.conf.redislock_url = "redis://localhost:1/0"
    task = define(nothing, lock_ttl=1)
    with pytest.raises(
        AssertionError, match="may take no locks here: the test does not use the fi"
    ):
        assert_skipped(task.apply())
    for forgot in (assert_locked, assert_free, hold_lock):
        with pytest.raises(LockUnavailable, match="not in memory: the test does not use the fixtu"):
            forgot(task)


def test_afterwards_locks_are_on_the_server_again(define, app, conf):
    app.conf.redislock_url = conf["redislock_url"]
    task = define(runs)
    with memory_locks() as outer, hold_lock(task):
        with memory_locks() as inner:
            assert_free(task)
            assert task.apply().successful()
        assert_skipped(task.apply())
        assert (outer.outcomes(), inner.outcomes()) == (["skipped"], [])
    assert_free(task)
    with hold_lock(task):
        with redis.Redis.from_url(conf["redislock_url"]) as client:
            assert client.exists(task.lock_key_for())
        assert task.apply().successful(), "eager calls take no lock again"
    assert_free(task)


def test_a_task_that_was_bound_without_redis_is_locked_in_memory_only(define):
    def sync() -> str:
        return "ran"

    task = define(sync)
    with pytest.raises(ConfigError, match="redislock_url"):
        _ = task.name  # as pytest's collection does, which looks at every name of a module
    with memory_locks():
        with hold_lock(task):
            assert_skipped(task.apply())
        assert task.apply().get() == "ran"
    with pytest.raises(ConfigError, match="redislock_url"):
        task.lock_holder()


def test_another_process_is_told_that_the_locks_are_not_there(redislock_memory, label):
    lock = RedisLock("redis://redis.example", label)
    assert lock.acquire(0)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            RedisLock("redis://redis.example", f"{label}-child").acquire(0)
        except ConfigError as exc:
            os.write(writer, str(exc).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(writer)
    with os.fdopen(reader) as said:
        assert "the memory of another process" in said.read()
    lock.release()


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_the_plugin_imports_neither_celery_nor_redis():
    done = python(
        "import celery_redislock_pytest, sys\n"
        "assert not {'celery', 'redis', 'fakeredis', 'celery_redislock'} & set(sys.modules)"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("missing", ["fakeredis", "lupa"])
def test_without_its_extra_the_kit_says_what_to_install(missing):
    done = python(f"import sys; sys.modules[{missing!r}] = None; import celery_redislock.testing")
    assert "pip install 'celery-redislock[testing]'" in done.stderr


PAGE = (ROOT / "docs/testing.md").read_text(encoding="utf-8")


def test_the_examples_of_the_page_run_without_redis(tmp_path):
    files = dict(re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", PAGE, re.S))
    assert len(files) == PAGE.count("```python")
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    plugin = ("-p", "celery_redislock_pytest", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugin, *sorted(files)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{PAGE.count('def test_')} passed" in done.stdout


def test_the_page_names_everything_there_is():
    names = {*testing.__all__, "redislock_memory", "held_lock", "lose_lock"}
    names |= {name for name in vars(MemoryLocks) if not name.startswith("_")}
    assert {name for name in names if not re.search(rf"\b{name}\b", PAGE)} == set()
