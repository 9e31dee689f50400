"""Locks as decorators, `locked()`, and times as timedeltas."""

from __future__ import annotations

import asyncio
import pickle
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


def test_a_decorated_coroutine_function_runs_under_the_lock(redis_server, label):
    lock = AsyncRedisLock(redis_server.url, label)
    inside = []

    @lock
    async def adjust(amount: int) -> int:
        assert await lock.locked()
        inside.append(amount)
        await asyncio.sleep(0)
        assert inside.pop() == amount
        assert not inside
        return amount

    async def main() -> list[int]:
        return await asyncio.gather(*map(adjust, range(10)))

    assert asyncio.run(main()) == list(range(10))


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
