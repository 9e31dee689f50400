"""One face for both locks, so that a claim which both have is written once, as a coroutine."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from celery_redislock import AsyncRedisLock, RedisLock
from tests.support.waiting import eventually, never


class Blocking:
    """A `RedisLock` with an `AsyncRedisLock`'s methods. None of them waits for a loop."""

    def __init__(self, lock: RedisLock) -> None:
        self.it = lock

    def __getattr__(self, name: str) -> Any:
        return getattr(self.it, name)

    async def acquire(self, *args: Any, **options: Any) -> bool:
        return self.it.acquire(*args, **options)

    async def release(self) -> bool:
        return self.it.release()

    async def extend(self) -> bool:
        return self.it.extend()

    async def ensure(self) -> None:
        self.it.ensure()

    async def holder(self) -> Any:
        return self.it.holder()

    async def locked(self) -> bool:
        return self.it.locked()

    async def __aenter__(self) -> Blocking:
        self.it.__enter__()
        return self

    async def __aexit__(self, *how: Any) -> None:
        self.it.__exit__(*how)

    def __call__(self, function: Any) -> Any:
        """The function is a coroutine function."""

        @self.it
        def call() -> Any:
            return drive(function())

        async def decorated() -> Any:
            return call()

        return decorated


def drive(work: Coroutine[Any, Any, Any]) -> Any:
    """Run what waits for nothing, in a thread without a loop."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waited for a loop")


class OfThreads:
    """Makes locks of this name for threads.

    Args:
        source: where they are.
        name: theirs.
    """

    def __init__(self, source: str, name: str) -> None:
        self.source, self.name = source, name

    def __call__(self, **options: Any) -> Any:
        name = options.pop("name", self.name)
        return Blocking(RedisLock(self.source, name, **{"ttl": 5, **options}))

    def at(self, source: str) -> Any:
        """The same for another server."""
        return type(self)(source, self.name)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return drive(work)

    def beside(self, work: Coroutine[Any, Any, Any]) -> Awaitable[Any]:
        """Run this beside what is running, and have its end for an await."""
        thread = ThreadPoolExecutor(1)
        ends = thread.submit(drive, work)
        thread.shutdown(wait=False)

        async def end() -> Any:
            return ends.result(60)

        return end()

    async def until(self, condition: Callable[[], Any], what: str, seconds: float = 20) -> Any:
        return eventually(condition, what, seconds)

    async def never(self, condition: Callable[[], Any], what: str, seconds: float) -> None:
        never(condition, what, seconds)


class OfCoroutines(OfThreads):
    """Makes locks of this name for coroutines."""

    def __call__(self, **options: Any) -> AsyncRedisLock:
        name = options.pop("name", self.name)
        return AsyncRedisLock(self.source, name, **{"ttl": 5, **options})

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(work)

    def beside(self, work: Coroutine[Any, Any, Any]) -> Awaitable[Any]:
        return asyncio.wait_for(asyncio.ensure_future(work), 60)

    async def until(self, condition: Callable[[], Any], what: str, seconds: float = 20) -> Any:
        return await asyncio.to_thread(eventually, condition, what, seconds)

    async def never(self, condition: Callable[[], Any], what: str, seconds: float) -> None:
        await asyncio.to_thread(never, condition, what, seconds)


KINDS = {"RedisLock": OfThreads, "AsyncRedisLock": OfCoroutines}


def both(claim: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test of both locks, whose fixture `lock` makes them."""

    @functools.wraps(claim)
    def test(lock: OfThreads, **given: Any) -> None:
        lock.run(claim(lock=lock, **given))

    return test
