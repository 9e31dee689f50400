"""`RedisLock`: a lock for use outside tasks."""

from __future__ import annotations

import threading
import weakref
from functools import partial
from typing import Any

import redis

from ..errors import ConfigError, LockConflict, LockLost
from . import checks, holders, stand_in
from .claims import Acquired, Claim, to_ms
from .connections import pools_from_url, pools_like
from .heartbeat import heartbeat
from .holders import Holder
from .keys import lock_keys
from .lease import Lease
from .log import get_logger
from .store import Store
from .tokens import new_token
from .waiting import wait_for

logger = get_logger()


class _ThreadLease(Lease):
    """A thread's acquisition of a `RedisLock`. Only that thread has a reference to it.

    Attributes:
        thread: the thread's name.
        stray_release_is_told: the warning that another thread tried to release it was logged.
    """

    stray_release_is_told = False

    def __init__(self, store: Store, claim: Claim, *, beats: bool) -> None:
        super().__init__(store, claim, beats=beats)
        self.thread = threading.current_thread().name

    def __del__(self) -> None:
        # The garbage collector may call this anywhere, also while a log handler's lock is held. So
        # the heartbeat's thread logs it.
        if self._beats and self.is_held:
            heartbeat.call_soon(partial(_say_dropped, self.key, self.ttl, self.thread))


def _say_dropped(key: str, ttl: float, thread: str) -> None:
    logger.warning(
        "redislock: %s was never released: the thread %r that acquired it ended, or dropped the"
        " RedisLock. It is no longer extended and expires within %g s", key, thread, ttl,
    )  # fmt: skip


class RedisLock:
    """A lock in Redis, held by a thread of this process, kept alive while it is held.

        with RedisLock("redis://localhost", "account:5") as lock:
            save(balance, fence=lock.fence)

    The lock belongs to the thread that acquired it. Only that thread can release it: a `release`
    in another thread returns False and logs a warning. The lock is extended as long as its thread
    lives, even if the thread is idle in a pool. If the thread ends without a release, a warning is
    logged, and the lock expires within the ttl. `asyncio.to_thread` may run each call in another
    thread: make all calls for a lock in one function, or in an executor of one thread.

    Args:
        client_or_url: a `redis.Redis` client, or a URL as `redislock_url` takes it. Only the
            client's settings are used; the lock has connections of its own, with timeouts
            that come from the ttl.
        name: the lock's name. A task whose `lock_key` template or callable gives the same
            text shares the lock.
        ttl: seconds that the lock outlives a dead holder, at least 0.1.
        heartbeat: extend the lock every third of the ttl while it is held. Without it the
            lock is lost after the ttl, unless `extend` is called.
        reentrant: the thread that holds the lock may acquire it again, and releases it as
            often. The count dies with the lock.
        timeout: seconds that `with` waits before it raises `LockConflict`; None for ever. The
            default is from Redis in Action, 6.2.3.
        prefix: what every key begins with.
        history: how many runs the lock's bucket keeps for `celery redislock history`, like the
            setting `redislock_history`; 0 records no run.

    Raises:
        ConfigError: an argument is not accepted.
    """

    def __init__(
        self,
        client_or_url: redis.Redis | str,
        name: str,
        ttl: float = 30,
        heartbeat: bool = True,
        reentrant: bool = False,
        *,
        timeout: float | None = 10,
        prefix: str = "redislock",
        history: int = 0,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError(
                f"RedisLock: name={name!r} is not accepted; it must be a non-empty str"
            )
        self.name = name
        self.ttl = checks.checked("RedisLock", "ttl", ttl, checks.ttl, checks.TTL)
        self._timeout = _check_timeout(timeout)
        self._history = checks.checked(
            "RedisLock", "history", history, checks.history, checks.HISTORY
        )
        self._beats = heartbeat
        self._reentrant = reentrant
        self._keys = lock_keys(checks.check_prefix(prefix), name)
        self._server = _store_for(client_or_url)
        self._mine = threading.local()
        #: The last acquisition in any thread of this process.
        self._last: weakref.ref[_ThreadLease] | None = None

    def __repr__(self) -> str:
        return f"<RedisLock {self.name!r} ttl={self.ttl:g}>"

    @property
    def key(self) -> str:
        """The lock's whole key in Redis."""
        return self._keys.lock

    @property
    def fence(self) -> int:
        """The fencing token of this thread's acquisition, 0 if it has none. See `Lease`."""
        lease = self._lease
        return 0 if lease is None else lease.fence

    @property
    def lost(self) -> bool:
        """True if this thread acquired the lock and can no longer confirm that it holds it."""
        lease = self._lease
        return lease is not None and lease.lost

    def ensure(self) -> None:
        """Go on only as the lock's holder.

        Raises:
            LockLost: this thread does not hold the lock, or lost it.
        """
        lease = self._lease
        if lease is None:
            raise LockLost(self.key)
        lease.ensure()

    def holder(self) -> Holder | None:
        """Who holds the lock, or None.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        return self._store.locks.holder(self._keys, self.ttl)

    def acquire(self, timeout: float | None = None) -> bool:
        """Take the lock.

        Args:
            timeout: seconds to wait; None waits for ever, 0 tries once.

        Returns:
            Whether the lock was taken.

        Raises:
            LockConflict: this thread itself holds the lock, so it would wait for ever.
            LockUnavailable: the server did not answer in time.
        """
        _check_timeout(timeout)
        held = self._lease
        if held is not None and held.lost:
            held.release()
            held = self._mine.lease = None
        if held is not None and self._reentrant:
            self._mine.count += 1
            return True
        if held is not None and timeout is None:
            raise LockConflict(self.key, self.holder())
        lease = _ThreadLease(self._store, self._claim(), beats=self._beats)
        last = weakref.ref(lease)
        try:
            reply = lease.take(hold_off=0) if timeout == 0 else wait_for(lease, timeout)
            taken = isinstance(reply, Acquired)
        except BaseException:
            # The server may have given us the lock, and the reply got lost.
            lease.release()
            raise
        if taken:
            self._mine.lease, self._mine.count = lease, 1
            self._last = last
        return taken

    def release(self) -> bool:
        """Give the lock back, or with `reentrant` undo one `acquire`.

        Only the thread that acquired the lock can release it. If another thread of this process
        holds it, a warning is logged.

        Returns:
            Whether this thread still held the lock.
        """
        lease = self._lease
        if lease is None:
            self._warn_of_stray_release()
            return False
        if self._mine.count > 1 and not lease.lost:
            self._mine.count -= 1
            return True
        try:
            try:
                return lease.release()
            finally:
                lease.release()  # again, if an exception from outside interrupted it
        finally:
            self._mine.lease = None

    def extend(self) -> bool:
        """Extend the lock to a whole ttl from now.

        Returns:
            True.

        Raises:
            LockLost: this thread does not hold the lock, or lost it.
            LockUnavailable: the server did not answer in time.
        """
        self.ensure()
        lease = self._lease
        assert lease is not None
        if not lease.upkeep.extend_now():
            lease.ensure()
        return True

    def __enter__(self) -> RedisLock:
        if not self.acquire(self._timeout):
            raise LockConflict(self.key, self.holder())
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    def _warn_of_stray_release(self) -> None:
        """Say once that another thread has what this thread cannot release."""
        lease = None if self._last is None else self._last()
        if lease is None or lease.stray_release_is_told or not lease.is_held:
            return
        lease.stray_release_is_told = True
        logger.warning(
            "redislock: did not release %s: it belongs to the thread %r that acquired it, and this"
            " is %r. Acquire and release it in the same thread, or in an executor of one thread",
            self.key, lease.thread, threading.current_thread().name,
        )  # fmt: skip

    @property
    def _store(self) -> Store:
        return self._server if stand_in.current is None else stand_in.current.store

    @property
    def _lease(self) -> Lease | None:
        lease: Lease | None = getattr(self._mine, "lease", None)
        return None if lease is None or lease.inherited else lease

    def _claim(self) -> Claim:
        token = new_token()
        value = holders.encode(token, ttl_ms=to_ms(self.ttl))
        return Claim(self._keys, token, self.ttl, value, history=self._history)


def _check_timeout(timeout: Any) -> float | None:
    if timeout is not None and (
        isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0
    ):
        raise ConfigError(
            f"RedisLock: timeout={timeout!r} is not accepted; it must be None or a number of"
            " seconds, not negative"
        )
    return timeout


_stores_of_clients: weakref.WeakKeyDictionary[Any, Store] = weakref.WeakKeyDictionary()
_stores_of_urls: dict[str, Store] = {}


def _store_for(client_or_url: redis.Redis | str) -> Store:
    """The store for this server: all its locks share connections."""
    if isinstance(client_or_url, str):
        url = client_or_url
        return _stores_of_urls.get(url) or _stores_of_urls.setdefault(
            url, Store(pools_from_url(url))
        )
    if not isinstance(client_or_url, redis.Redis):
        raise ConfigError(
            f"RedisLock: {client_or_url!r} is not accepted; it must be a redis.Redis client or"
            " a URL"
        )
    pool = client_or_url.connection_pool
    store = _stores_of_clients.get(pool)
    if store is None:
        store = _stores_of_clients[pool] = Store(pools_like(client_or_url))
    return store
