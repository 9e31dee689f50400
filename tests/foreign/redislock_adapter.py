"""A plugin of pytest for redis-py's own tests of its locks: puts ours in their place.

The tests look at the lock's key in Redis, and take it away. So a client's command about a name is
sent about the key of our lock with that name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
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

    made: Any = RedisLock

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
        self.blocking, self._name, self._raises = blocking, name, raise_on_release_error
        self._wait = blocking_timeout if blocking else 0
        self._lock = self.made(client, name, timeout or _TTL, heartbeat=timeout is None)
        _keys[name] = self._lock.key

    def _ask(self, ask: Callable[[], Any], read: Callable[[Any], Any] = bool) -> Any:
        """Ask our lock, and read what it says; where it is asynchronous, once that is there."""
        if self.made is RedisLock:
            with self._their_errors():
                return read(ask())

        async def later() -> Any:
            with self._their_errors():
                return read(await ask())

        return later()

    @contextmanager
    def _their_errors(self) -> Iterator[None]:
        try:
            yield
        except LockLost as exc:
            raise (LockNotOwnedError if self._lock.fence else LockError)(str(exc)) from exc

    def acquire(self, blocking: bool | None = None, token: str | None = None) -> Any:
        return self._ask(lambda: self._lock.acquire(0 if blocking is False else self._wait))

    def release(self) -> Any:
        kind = LockNotOwnedError if self._lock.fence else LockError

        def read(was_held: bool) -> None:
            if not was_held:
                raise kind("not released", self._name)

        return self._ask(self._lock.release, read)

    def extend(self, additional_time: float = 0, replace_ttl: bool = False) -> Any:
        return self._ask(self._lock.extend)

    reacquire = extend

    def locked(self) -> Any:
        return self._ask(self._lock.locked)

    def owned(self) -> Any:
        return self._ask(self._lock.locked, lambda held: held and self._lock.fence > 0)

    @property
    def local(self) -> SimpleNamespace:
        """What shows whether the lock is held, and for which acquisition."""
        return SimpleNamespace(token=self._lock.fence or None)

    def __enter__(self) -> Lock:
        self._check_acquired(self.acquire())
        return self

    def __exit__(self, *_: object) -> None:
        with nullcontext() if self._raises else suppress(LockError):
            self.release()

    def _check_acquired(self, acquired: bool) -> None:
        if not acquired:
            raise LockError("not acquired in time", self._name)


class AsyncLock(Lock):
    """The same for asyncio."""

    made = AsyncRedisLock

    async def __aenter__(self) -> AsyncLock:
        self._check_acquired(await self.acquire())
        return self

    async def __aexit__(self, *_: object) -> None:
        with nullcontext() if self._raises else suppress(LockError):
            await self.release()
