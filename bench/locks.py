"""The compared locks, each used as its own documentation says, with its defaults.

One object is made and used again and again, if nothing else is said. All have the same ttl, and
every client is redis-py's with hiredis, which it uses by itself.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import urlsplit

import redis

#: Seconds. A whole number: python-redis-lock and sherlock take no other.
TTL = 30


class Lock(Protocol):
    """What a benchmark does with a lock."""

    def acquire(self) -> None:
        """Wait until the lock is ours."""

    def release(self) -> None: ...


class _Pair:
    """A lock of two callables."""

    def __init__(self, acquire: Callable[[], Any], release: Callable[[], Any]) -> None:
        self._acquire = acquire
        self.release = release

    def acquire(self) -> None:
        if not self._acquire():
            raise RuntimeError("the lock was not acquired")


class _New:
    """A lock whose object is made anew for each pair."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._lock: Any = None

    def acquire(self) -> None:
        self._lock = self._make()
        if not self._lock.acquire():
            raise RuntimeError("the lock was not acquired")

    def release(self) -> None:
        self._lock.release()


def ours(url: str, name: str) -> Lock:
    from celery_redislock import RedisLock

    lock = RedisLock(url, name, ttl=TTL)
    return _Pair(lock.acquire, lock.release)


def ours_without_heartbeat(url: str, name: str) -> Lock:
    from celery_redislock import RedisLock

    lock = RedisLock(url, name, ttl=TTL, heartbeat=False)
    return _Pair(lock.acquire, lock.release)


def redis_py(url: str, name: str) -> Lock:
    lock = redis.Redis.from_url(url).lock(name, timeout=TTL)
    return _Pair(lock.acquire, lock.release)


def ours_new(url: str, name: str) -> Lock:
    from celery_redislock import RedisLock

    return _New(lambda: RedisLock(url, name, ttl=TTL))


def redis_py_new(url: str, name: str) -> Lock:
    client = redis.Redis.from_url(url)
    return _New(lambda: client.lock(name, timeout=TTL))


def redis_py_eager(url: str, name: str) -> Lock:
    lock = redis.Redis.from_url(url).lock(name, timeout=TTL, sleep=0.001)
    return _Pair(lock.acquire, lock.release)


def python_redis_lock(url: str, name: str) -> Lock:
    import redis_lock

    lock = redis_lock.Lock(redis.Redis.from_url(url), name, expire=TTL)
    return _Pair(lock.acquire, lock.release)


def python_redis_lock_renewed(url: str, name: str) -> Lock:
    import redis_lock

    lock = redis_lock.Lock(redis.Redis.from_url(url), name, expire=TTL, auto_renewal=True)
    return _Pair(lock.acquire, lock.release)


def pottery(url: str, name: str) -> Lock:
    from pottery import Redlock

    lock = Redlock(key=name, masters={redis.Redis.from_url(url)}, auto_release_time=TTL)
    return _Pair(lock.acquire, lock.release)


def sherlock(url: str, name: str) -> Lock:
    import sherlock as package

    client = redis.Redis.from_url(url)
    # Its own default gives up after 10 s, which contention reaches.
    lock = package.RedisLock(name, client=client, expire=TTL, timeout=600)
    return _Pair(lock.acquire, lock.release)


class Socket:
    """One socket, commands packed and replies read by hiredis, and nothing else."""

    def __init__(self, url: str) -> None:
        import hiredis

        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port or 6379))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()
        self._pack = hiredis.pack_command

    def __call__(self, *command: str | bytes | int) -> Any:
        """Send one command and read its reply."""
        self._socket.sendall(self._pack(command))
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(65536))
        if isinstance(reply, Exception):
            raise reply
        return reply


def floor(url: str, name: str) -> Lock:
    """`SET NX PX` and `DEL`: the cheapest two round trips. Not safe: it frees another's lock."""
    call = Socket(url)
    return _Pair(
        lambda: call(b"SET", name, secrets.token_hex(16), b"NX", b"PX", TTL * 1000),
        lambda: call(b"DEL", name),
    )


_COMPARE_AND_DELETE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


class Least:
    """`SET NX PX` and a script that deletes only one's own lock: the simplest that is safe."""

    def __init__(self, url: str) -> None:
        self._call = Socket(url)
        self._sha = self._call(b"SCRIPT", b"LOAD", _COMPARE_AND_DELETE)
        self._mine = ""

    def acquire(self, name: str) -> bool:
        self._mine = secrets.token_hex(16)
        return bool(self._call(b"SET", name, self._mine, b"NX", b"PX", TTL * 1000))

    def release(self, name: str) -> None:
        self._call(b"EVALSHA", self._sha, b"1", name, self._mine)


def floor_checked(url: str, name: str) -> Lock:
    least = Least(url)
    return _Pair(lambda: least.acquire(name), lambda: least.release(name))


def ours_async(url: str, name: str) -> Lock:
    from celery_redislock import AsyncRedisLock

    lock = AsyncRedisLock(url, name, ttl=TTL)
    return _in_a_loop(lock.acquire, lock.release)


def redis_py_async(url: str, name: str) -> Lock:
    from redis.asyncio import Redis

    lock = Redis.from_url(url).lock(name, timeout=TTL)
    return _in_a_loop(lock.acquire, lock.release)


def _in_a_loop(acquire: Callable[[], Any], release: Callable[[], Any]) -> Lock:
    loop = asyncio.new_event_loop()
    return _Pair(
        lambda: loop.run_until_complete(acquire()), lambda: loop.run_until_complete(release())
    )


FLOOR = "floor: SET NX PX, DEL"
FLOOR_CHECKED = "floor: SET NX PX, checked DEL"
#: By the name that people read.
LOCKS: dict[str, Callable[[str, str], Lock]] = {
    FLOOR: floor,
    FLOOR_CHECKED: floor_checked,
    "celery-redislock": ours,
    "celery-redislock, heartbeat=False": ours_without_heartbeat,
    "redis-py Lock": redis_py,
    "redis-py Lock, sleep=0.001": redis_py_eager,
    "python-redis-lock": python_redis_lock,
    "python-redis-lock, auto_renewal": python_redis_lock_renewed,
    "pottery Redlock": pottery,
    "sherlock": sherlock,
}
#: As most use a lock: with its arguments, where it is needed.
NEW: dict[str, Callable[[str, str], Lock]] = {
    "celery-redislock, a new object": ours_new,
    "redis-py Lock, a new object": redis_py_new,
}
#: Locks for coroutines: their times include that a loop is started and stopped for each step.
ASYNC: dict[str, Callable[[str, str], Lock]] = {
    "celery-redislock AsyncRedisLock": ours_async,
    "redis-py asyncio Lock": redis_py_async,
}
