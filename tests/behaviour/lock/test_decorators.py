"""Locks as decorators, `locked()`, and times as timedeltas."""

from __future__ import annotations

import asyncio
import pickle
import traceback
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from celery_redislock import (
    AsyncRedisLock,
    ConfigError,
    Defer,
    LockConflict,
    Queue,
    RedisLock,
    Replace,
    SingletonTask,
    Wait,
)

MINUTE = timedelta(minutes=1)


def test_a_decorated_function_runs_under_the_lock(redis_server, label):
    lock = RedisLock(redis_server.url, label, timeout=0)

    @lock
    def adjust(amount: int, *, by: str) -> str:
        """Documented."""
        assert lock.locked()
        assert not RedisLock(redis_server.url, label).acquire(0)
        return f"{amount} by {by}"

    assert adjust(5, by="me") == "5 by me"
    assert (adjust.__name__, adjust.__doc__) == ("adjust", "Documented.")
    assert not lock.locked()
    with RedisLock(redis_server.url, label), pytest.raises(LockConflict):
        adjust(5, by="me")


def test_tools_leave_our_frames_out_of_a_decorated_functions_traceback(redis_server, label):
    @RedisLock(redis_server.url, label)
    def fails() -> None:
        raise ValueError(label)

    @AsyncRedisLock(redis_server.url, label)
    async def fails_too() -> None:
        raise ValueError(label)

    for call in (fails, lambda: asyncio.run(fails_too())):
        with pytest.raises(ValueError, match=label) as error:
            call()
        frames = [frame for frame, _ in traceback.walk_tb(error.value.__traceback__)]
        ours = [f for f in frames if f.f_globals["__name__"].startswith("celery_redislock")]
        assert ours
        assert all(frame.f_locals.get("__tracebackhide__") for frame in ours)


def test_a_decorator_works_in_many_loops_at_once(redis_server, label):
    lock = AsyncRedisLock(redis_server.url, label, timeout=60)
    inside: list[int] = []

    @lock
    async def adjust(number: int) -> int:
        inside.append(number)
        fence = lock.fence
        await lock.ensure()
        assert await lock.locked()
        assert await lock.extend()
        assert lock.fence == fence
        assert inside == [number]
        inside.clear()
        return fence

    async def main(first: int) -> list[int]:
        return await asyncio.gather(*(adjust(first + n) for n in range(3)))

    with ThreadPoolExecutor(8) as threads:
        for _ in range(2):  # the first loops have ended then
            fences = [
                f for run in threads.map(lambda n: asyncio.run(main(10 * n)), range(8)) for f in run
            ]
            assert len(set(fences)) == 24
            assert min(fences) > 0


# -- names that a call fills ----------------------------------------------------------------------


def of_account(account_id, amount=0):
    return f"account:{account_id}"


@pytest.fixture
def shared(make_app, redis_server, label):
    """A task's app, and the key of the task's lock for an account."""
    app = make_app(redislock_url=redis_server.url, redislock_prefix=label)

    @app.task(base=SingletonTask, lock_key="account:{account_id}")
    def sync(account_id: int) -> None: ...

    return app, app.tasks[sync.name].lock_key_for


@pytest.mark.parametrize("name", ["account:{account_id}", of_account])
def test_a_name_is_filled_from_each_calls_arguments_and_shared_with_a_task(shared, name):
    app, key_of = shared
    lock = RedisLock(app, name, timeout=0)

    @lock
    def adjust(account_id, amount=0):
        assert lock.key == key_of(account_id)
        assert lock.locked()
        assert lock.fence > 0
        lock.ensure()
        lock.extend()
        assert not RedisLock(app, f"account:{account_id}").acquire(0)
        with RedisLock(app, "account:0", timeout=0):
            pass
        return amount

    assert adjust(5, 2) == adjust(account_id=5, amount=2) == 2
    with RedisLock(app, "account:6"):
        assert adjust(5) == 0
        with pytest.raises(LockConflict) as conflict:
            adjust(6)
    assert conflict.value.key == key_of(6)
    assert lock.fence == 0


def test_defaults_and_methods_fill_a_name(redis_server, label):
    class Account:
        def __init__(self, number: int) -> None:
            self.number = number

        @(lock := RedisLock(redis_server.url, label + ":{self.number}:{kind}"))
        def adjust(self, amount: int, kind: str = "main") -> str:
            return self.lock.key

    assert Account(5).adjust(1).endswith(f"{label}:5:main")
    assert Account(6).adjust(amount=1, kind="b").endswith(f"{label}:6:b")


def test_nested_calls_hold_each_its_own_lock(redis_server, label):
    lock = RedisLock(redis_server.url, label + ":{n}", reentrant=True, timeout=0)

    @lock
    def walk(n: int) -> None:
        fence, key = lock.fence, lock.key
        if n:
            walk(n - 1)
            assert (lock.fence, lock.key) == (fence, key)
        if n == 2:
            walk_again(n)  # reentrant
        assert lock.locked()

    def walk_again(n: int) -> None:
        with_count = lock(lambda n: lock.fence)
        assert with_count(n) == lock.fence

    walk(2)
    for n in range(3):
        assert not RedisLock(redis_server.url, f"{label}:{n}").locked()

    both = AsyncRedisLock(redis_server.url, label + ":{n}", timeout=0)

    @both
    async def descend(n: int) -> None:
        fence, key = both.fence, both.key
        if n:
            await descend(n - 1)
            assert (both.fence, both.key) == (fence, key)
        await both.ensure()

    asyncio.run(descend(2))


@pytest.mark.parametrize("kind", [RedisLock, AsyncRedisLock])
@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "account:{acount_id}",
            r"name names 'acount_id', which is not an argument of the function",
        ),
        ("account:{account_id", "not a str.format template"),
        ("account:{}", "fields must be named"),
        (lambda first, second: "x", "no call of the function fits that"),
    ],
)
def test_a_name_that_does_not_fit_is_refused_when_it_decorates(redis_server, kind, name, says):
    def adjust(account_id: int) -> None: ...

    async def adjust_soon(account_id: int) -> None: ...

    with pytest.raises(ConfigError, match=says):
        kind(redis_server.url, name)(adjust if kind is RedisLock else adjust_soon)


@pytest.mark.parametrize("name", ["account:{account_id}", "account:{}", of_account])
def test_elsewhere_a_field_is_refused(redis_server, name):
    lock, for_coroutines = RedisLock(redis_server.url, name), AsyncRedisLock(redis_server.url, name)

    async def enter() -> None:
        async with for_coroutines:
            raise AssertionError("not reached")

    for use in (
        lambda: lock.acquire(0), lock.__enter__, lock.locked, lambda: lock.key,
        lambda: asyncio.run(for_coroutines.acquire(0)), lambda: asyncio.run(enter()),
        lambda: asyncio.run(for_coroutines.locked()),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match="only the call of a function that"):
            use()
    assert lock.fence == 0
    assert lock.release() is False


def test_a_call_that_lacks_what_the_name_needs_is_refused(redis_server, label):
    @RedisLock(redis_server.url, label + ":{n}")
    def adjust(n: int) -> None: ...

    with pytest.raises(TypeError, match="'n', which this call lacks"):
        adjust()  # type: ignore[call-arg]


def a_generator():
    yield


async def an_asynchronous_generator():
    yield


async def a_coroutine_function() -> None: ...


def a_function() -> None: ...


@pytest.mark.parametrize("function", [a_generator, an_asynchronous_generator])
@pytest.mark.parametrize("kind", [RedisLock, AsyncRedisLock])
def test_a_generator_is_not_decorated(redis_server, label, kind, function):
    with pytest.raises(ConfigError, match=r"cannot decorate .*: it is a generator"):
        kind(redis_server.url, label)(function)


@pytest.mark.parametrize(
    ("kind", "function", "other"),
    [
        (RedisLock, a_coroutine_function, "AsyncRedisLock"),
        (AsyncRedisLock, a_function, "RedisLock"),
    ],
)
def test_each_lock_decorates_its_own_kind(redis_server, label, kind, function, other):
    with pytest.raises(ConfigError, match=f"use {other}"):
        kind(redis_server.url, label)(function)


class Awaited:
    """Its calls are awaited, and no `inspect.iscoroutinefunction` says so."""

    async def __call__(self) -> str:
        return "ran"


@pytest.mark.parametrize("hidden", [a_coroutine_function, an_asynchronous_generator, Awaited()])
def test_a_body_that_a_decorator_hides_does_not_run_without_the_lock(redis_server, label, hidden):
    lock = RedisLock(redis_server.url, label)
    decorated = lock(lambda: hidden())
    with pytest.raises(ConfigError, match=r"cannot decorate .*: it returned .*AsyncRedisLock"):
        decorated()
    assert not lock.locked()


@pytest.mark.parametrize("kind", [RedisLock, AsyncRedisLock])
@pytest.mark.parametrize("thing", [classmethod(lambda cls: None), None])
def test_what_is_no_function_is_refused(redis_server, label, kind, thing):
    for name in (label, "account:{x}"):
        with pytest.raises(ConfigError, match="it is no function"):
            kind(redis_server.url, name)(thing)


def test_times_of_policies_may_be_timedeltas():
    policy: Any = Defer(delay=MINUTE, max_delay=timedelta(hours=1), max_wait=timedelta(days=1))
    assert (policy.delay, policy.max_delay, policy.max_wait) == (60.0, 3600.0, 86400.0)
    assert policy == Defer(delay=60, max_delay=3600, max_wait=86400)
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert Wait(timeout=MINUTE) == Wait(timeout=60)
    assert Queue(max_wait=MINUTE) == Queue(max_wait=60)
    assert Replace(grace=MINUTE).grace == 60
    assert (Defer.delay, Defer.max_wait) == (5.0, None)
    with pytest.raises(ConfigError, match="must be a number of seconds, not negative, or a timed"):
        Defer(delay=timedelta(-1))


def test_times_of_options_and_settings_may_be_timedeltas(make_app):
    app = make_app(redislock_ttl=MINUTE, redislock_url="redis://localhost")

    @app.task(base=SingletonTask, lock_max_hold=timedelta(hours=1), lock_min_hold=MINUTE)
    def sync() -> None: ...

    options = app.tasks[sync.name].lock_options
    assert (options.lock_ttl, options.lock_max_hold, options.lock_min_hold) == (60.0, 3600.0, 60.0)


@pytest.mark.parametrize("kind", [RedisLock, AsyncRedisLock])
def test_times_of_locks_may_be_timedeltas(redis_server, label, kind):
    lock = kind(redis_server.url, label, ttl=MINUTE, timeout=timedelta(seconds=2))
    assert lock.ttl == 60.0
    moment = timedelta(milliseconds=10)
    with RedisLock(redis_server.url, label):
        if kind is RedisLock:
            assert not lock.acquire(timeout=moment)
        else:
            assert not asyncio.run(lock.acquire(timeout=moment))
