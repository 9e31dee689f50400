"""The locks that are tortured, each as its own documentation has it used.

All have the same ttl, and all are asked in the same way whether they are still held, with whatever
each offers for that in public.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, Protocol

import redis

from celery_redislock import LockUnavailable, RedisLock

#: The lock's name.
NAME = "torture"
#: Seconds between tries of those that poll. redis-py's own default is 0.1: less contention.
POLL = 0.02
#: Seconds for which one acquire waits, so that a client sees that its time is over. A whole
#: number: python-redis-lock takes no other.
PATIENCE = 1


class Contender(Protocol):
    """One client's access to the one lock."""

    def acquire(self) -> bool:
        """Whether the lock was taken within `PATIENCE`."""

    def still_mine(self) -> bool:
        """What the lock says, now."""

    def release(self) -> None: ...

    @property
    def fence(self) -> int:
        """0 for a lock without."""


class Ours:
    """`RedisLock` with its heartbeat. Asked by `lost`, which is local while the right lasts."""

    def __init__(self, url: str, ttl: float) -> None:
        self._lock = RedisLock(url, NAME, ttl)

    def acquire(self) -> bool:
        return self._lock.acquire(PATIENCE)

    def still_mine(self) -> bool:
        return not self._lock.lost

    def release(self) -> None:
        self._lock.release()

    @property
    def fence(self) -> int:
        return self._lock.fence


class Foreign:
    """What the others have in common: a client, a ttl, no fence."""

    fence = 0

    def __init__(self, url: str, ttl: float) -> None:
        self._client = redis.Redis.from_url(url)
        self._ttl = ttl
        self._lock: Any = None


class RedisPy(Foreign):
    """redis-py's `Lock` with a timeout and no extension. Asked by `owned`."""

    def acquire(self) -> bool:
        self._lock = self._client.lock(NAME, timeout=self._ttl, sleep=POLL)
        return bool(self._lock.acquire(blocking_timeout=PATIENCE))

    def still_mine(self) -> bool:
        return bool(self._lock.owned())

    def release(self) -> None:
        with contextlib.suppress(redis.exceptions.LockError):  # it was lost
            self._lock.release()


class PythonRedisLock(Foreign):
    """python-redis-lock with `expire` and `auto_renewal`. Asked by comparing owner and id."""

    def __init__(self, url: str, ttl: float) -> None:
        super().__init__(url, ttl)
        if ttl != int(ttl):
            raise ValueError(f"python-redis-lock takes whole seconds, not {ttl:g}")
        # Its renewal thread ends with a traceback when the lock is lost.
        threading.excepthook = lambda _: None

    def acquire(self) -> bool:
        import redis_lock

        self._lock = redis_lock.Lock(self._client, NAME, expire=int(self._ttl), auto_renewal=True)
        return bool(self._lock.acquire(timeout=PATIENCE))

    def still_mine(self) -> bool:
        return bool(self._lock.get_owner_id() == self._lock.id)

    def release(self) -> None:
        import redis_lock

        with contextlib.suppress(redis_lock.NotAcquired):  # it was lost
            self._lock.release()


class Setnx(Foreign):
    """The mostly correct one: SETNX, then EXPIRE, in the end DEL. There is nothing to ask."""

    def acquire(self) -> bool:
        give_up = time.monotonic() + PATIENCE
        while not self._client.setnx(NAME, "1"):
            if time.monotonic() > give_up:
                return False
            time.sleep(POLL)
        self._client.pexpire(NAME, int(self._ttl * 1000))
        return True

    def still_mine(self) -> bool:
        raise NotImplementedError("it has no token that could be compared")

    def release(self) -> None:
        self._client.delete(NAME)


CONTENDERS: dict[str, type[Ours] | type[RedisPy] | type[PythonRedisLock] | type[Setnx]] = {
    "ours": Ours,
    "redis-py": RedisPy,
    "python-redis-lock": PythonRedisLock,
    "setnx": Setnx,
}
#: Those that can be asked.
ASKABLE = frozenset(CONTENDERS) - {"setnx"}
#: What an acquire or release raises if the server does not answer in time.
UNAVAILABLE = (LockUnavailable, redis.exceptions.ConnectionError, redis.exceptions.TimeoutError)
