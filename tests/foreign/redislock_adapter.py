"""A plugin of pytest for redis-py's own tests of its locks: puts ours in their place.

The tests look at the lock's key in Redis, and take it away. So a client's command about a name is
sent about the key of our lock with that name.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.exceptions import LockError, LockNotOwnedError

from celery_redislock import AsyncRedisLock, LockLost, RedisLock

#: Seconds. Theirs without a `timeout` never expire; of ours the heartbeat goes on.
_TTL = 30


def pytest_configure(config: pytest.Config) -> None:
    config.option.redis_url = os.environ["TEST_BACKEND"]
    if os.environ.get("ADAPTED"):
        redis.lock.Lock, redis.asyncio.lock.Lock = Lock, AsyncLock
        for client in redis.Redis, redis.asyncio.Redis:
            client.execute_command = _about_our_keys(client.execute_command)


def _about_our_keys(execute_command: Any) -> Any:
    def execute(self: Any, *args: Any, **options: Any) -> Any:
        return execute_command(self, *(_keys.get(each, each) for each in args), **options)

    return execute


#: The keys of our locks, by the names that the tests give them.
_keys: dict[Any, str] = {}


class Lock:
    """redis-py's lock, with ours inside."""

    made = RedisLock

    def __init__(
        self,
        client: Any,
        name: str,
        timeout: float | None = None,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        raise_on_release_error: bool = True,
        **_: Any,
    ) -> None:
        self.blocking, self._name = blocking, name
        self._wait = blocking_timeout if blocking else 0
        self._raises = raise_on_release_error
        self._lock = self.made(client, name, timeout or _TTL, heartbeat=timeout is None)
        _keys[name] = self._lock.key

    def acquire(self, blocking: bool | None = None, token: str | None = None) -> Any:
        return self._lock.acquire(0 if blocking is False else self._wait)

    def release(self) -> None:
        had, released = self._lock.fence, self._lock.release()
        self._check_release(had, released)

    def _check_release(self, had: int, released: bool) -> None:
        if not released:
            raise (LockNotOwnedError if had else LockError)("not released", self._name)

    def extend(self, additional_time: float = 0, replace_ttl: bool = False) -> bool:
        try:
            return self._lock.extend()
        except LockLost as exc:
            raise self._lost(exc) from exc

    def _lost(self, exc: LockLost) -> Exception:
        return (LockNotOwnedError if self._lock.fence else LockError)(str(exc), self._name)

    reacquire = extend

    @property
    def local(self) -> SimpleNamespace:
        """What shows whether the lock is held, and for which acquisition."""
        return SimpleNamespace(token=self._lock.fence or None)

    def locked(self) -> Any:
        return self._lock.locked()

    def owned(self) -> bool:
        try:
            self._lock.ensure()
        except LockLost:
            return False
        return True

    def __enter__(self) -> Lock:
        if not self.acquire():
            raise LockError("not acquired in time", self._name)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.release()
        except LockError:
            if self._raises:
                raise


class AsyncLock(Lock):
    """The same for asyncio."""

    made = AsyncRedisLock

    async def release(self) -> None:
        had, released = self._lock.fence, await self._lock.release()
        self._check_release(had, released)

    async def extend(self, additional_time: float = 0, replace_ttl: bool = False) -> bool:
        try:
            return await self._lock.extend()
        except LockLost as exc:
            raise self._lost(exc) from exc

    reacquire = extend

    async def owned(self) -> bool:
        try:
            await self._lock.ensure()
        except LockLost:
            return False
        return True

    async def __aenter__(self) -> AsyncLock:
        if not await self.acquire():
            raise LockError("not acquired in time", self._name)
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.release()
        except LockError:
            if self._raises:
                raise
