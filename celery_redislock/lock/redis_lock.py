"""`RedisLock`: a lock for use outside tasks."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import wraps
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar

import redis

from ..errors import LockConflict, LockLost
from ..protocol.calls import holder_of, in_the_way
from ..protocol.claims import Acquired
from ..protocol.holders import Holder
from ..protocol.keys import LockKeys
from ..protocol.log import logger
from ..servers.factory import ValkeyClient, is_for_asyncio
from .lease import Lease
from .named import Name, NamedLock, check_result
from .sources import CeleryApp, refusal
from .thread_owners import Owner, Owners, release

P = ParamSpec("P")
T = TypeVar("T")


#: The event loops that were told that a `RedisLock` may block them.
_told: Final[weakref.WeakSet[asyncio.AbstractEventLoop]] = weakref.WeakSet()


class RedisLock(NamedLock):
    """A lock in Redis, held by a thread of this process, kept alive while it is held.

        with RedisLock(app, "account:5") as lock:
            save(balance, fence=lock.fence)

    What `with` took is given back at the end of the block, in whatever thread that is: frameworks
    run the halves of a generator in any threads of a pool.

    What `acquire` took belongs to the thread, or to the greenlet. Only that thread can release it:
    a `release` in another thread returns False and logs a warning. The lock is extended as long as
    its thread lives, even if the thread is idle in a pool. If the thread ends without a release, a
    warning is logged, and the lock expires within the ttl. `asyncio.to_thread` may run each call in
    another thread: acquire and release a lock in one function, or in an executor of one thread.

    `fence`, `lost` and `ensure` say the same in every thread of the process.

    In a coroutine use an `AsyncRedisLock`: a `RedisLock` blocks the event loop while it waits, and
    says so once in a warning. There it belongs to the task that acquired it, as long as the task
    runs; another task of the thread does not wait for it, as the holder could not go on meanwhile.

    Args:
        source: a Celery app: the lock uses the app's server, `redislock_prefix` and
            `redislock_history`, so the app's tasks share the lock. These settings are read when
            the lock is used. Or a URL as `redislock_url` takes it. Or a redis-py or valkey-py
            client, for its settings: the lock has its own connections, with timeouts that fit.
        name: the lock's name. A task whose `lock_key` template or callable gives the same text
            shares the lock; for any other task see `of`. As a decorator of a function the lock also
            takes a template with fields, such as "account:{account_id}", or a callable: like
            `lock_key` they are filled from each call's arguments. Elsewhere such a name is a
            `ConfigError`.
        ttl: seconds that the lock outlives a dead holder, at least 0.1. Wherever seconds are
            taken, a timedelta is too.
        heartbeat: extend the lock every third of the ttl while it is held. Without it the
            lock is lost after the ttl, unless `extend` is called.
        reentrant: the thread that holds the lock (in an event loop: the task; or the greenlet) may
            acquire it again, and must release it as often. The count ends with the lock.
        timeout: seconds that `with` waits before it raises `LockConflict`; None for ever. The
            default is from Redis in Action, 6.2.3.
        prefix: what every key begins with. Default: the app's, else "redislock".
        history: how many runs the lock's bucket keeps for `celery redislock history`, like the
            setting `redislock_history`; 0 records no run. Default: the app's, else 0.
        label: what people see instead of the key and the pid, such as "api: adjust 5".
        transport_options: for a URL, as `redislock_transport_options`; a `sentinel://` URL needs
            `master_name` there.

    Raises:
        ConfigError: an argument is not accepted, or an app's settings, once they are read.
    """

    def __init__(
        self,
        source: redis.Redis | redis.RedisCluster | ValkeyClient | str | CeleryApp,
        name: Name,
        ttl: float | timedelta = 30,
        heartbeat: bool = True,
        reentrant: bool = False,
        *,
        timeout: float | timedelta | None = 10,
        prefix: str | None = None,
        history: int | None = None,
        label: str | None = None,
        transport_options: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(source, str) and is_for_asyncio(source):
            raise refusal("RedisLock", source, "; AsyncRedisLock is for asyncio")
        super().__init__(
            *(source, name, ttl, heartbeat),
            timeout=timeout,
            prefix=prefix,
            history=history,
            label=label,
            transport_options=transport_options,
        )
        self._reentrant = reentrant

    def _begin(self) -> None:
        self._acquired = Owners()

    @property
    def fence(self) -> int:
        """The fencing token of this thread's acquisition; if it has none, that of the thread which
        holds the lock; 0 if no thread of this process does. See `Lease`.
        """
        known = self._acquired.known
        return 0 if known is None else known.fence

    @property
    def lost(self) -> bool:
        """True if the acquisition with this `fence` can no longer be confirmed."""
        known = self._acquired.known
        return known is not None and known.lost

    def ensure(self) -> None:
        """Return if a thread of this process holds the lock.

        Raises:
            LockLost: no thread holds the lock, or this thread's acquisition was lost.
        """
        known = self._acquired.known
        if known is None:
            raise LockLost(self.key)
        known.ensure()

    def holder(self) -> Holder | None:
        """Who holds the lock, or None.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        return self._server.ask(holder_of(self._keys, self.ttl))

    def locked(self) -> bool:
        """Whether anybody holds the lock.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        return self.holder() is not None

    def acquire(self, timeout: float | timedelta | None = None) -> bool:
        """Take the lock.

        Args:
            timeout: seconds to wait; None waits for ever, 0 tries once.

        Returns:
            Whether the lock was taken.

        Raises:
            LockConflict: this thread itself holds the lock, so it would wait for ever.
            LockUnavailable: the server did not answer in time. An outage is no wait for a holder:
                without an end it would hide that the server is gone, or wrongly configured.
        """
        return self._take(self._keys, self._seconds(timeout)) is not None

    def _take(self, keys: LockKeys, timeout: float | None) -> Owner | None:
        """Take this lock within so many seconds. See `acquire`."""
        if timeout != 0:
            _warn_of_blocking(self)
        held = self._acquired.held(keys)
        if held is not None and held.is_here and held.lease.lost:
            release(held.lease)
            self._acquired.forget(held)
            held = None
        elif held is not None and held.is_mine and self._reentrant:
            held.count += 1
            return held
        elif held is not None and not (held.is_here or held.lease.is_held):
            held = None
        if held is not None and self._beats and held.outlasts_waiting:
            if timeout is None:
                raise LockConflict(keys.lock, held.lease.holder)
            if not held.is_mine:
                timeout = 0
        lease = Lease(self._server, self._claim(keys), beats=self._beats)
        try:
            reply = lease.acquire(hold_off=0) if timeout == 0 else lease.wait(timeout)
            if not isinstance(reply, Acquired):
                release(lease)  # a request that had no reply may have taken the lock meanwhile
                return None
            if held is not None and held.is_here:
                self._acquired.forget(held)  # it has expired
            return self._acquired.add(lease, is_known=not self._is_filled)
        except BaseException:
            # The server may have given us the lock, and the reply got lost.
            release(lease)
            raise

    def release(self) -> bool:
        """Release the lock, or with `reentrant` undo one `acquire`.

        Only the thread that acquired the lock can release it. If another thread of this process
        holds it, a warning is logged.

        Returns:
            Whether this thread still held the lock.
        """
        owner = self._acquired.here
        if owner is None:
            self._acquired.warn_of_stray_release()
            return False
        return self._acquired.give_back(owner)

    def extend(self) -> bool:
        """Extend the lock to a whole ttl from now. Any thread may call this while the thread that
        acquired the lock lives.

        Returns:
            True.

        Raises:
            LockLost: no thread of this process holds the lock, or it was lost.
            LockUnavailable: the server did not answer in time.
        """
        self.ensure()
        own, lease = self._lease, self._acquired.known
        # Only the lock's own thread may take a vanished lock again: it may just have released it.
        if lease is None or lease.is_orphaned or not lease.extend_now(retake=lease is own):
            self.ensure()
            raise LockLost(self.key)
        return True

    def __enter__(self) -> RedisLock:
        self._acquired.enter(self._enter(self._keys))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._acquired.leave_block(failed=kind is not None)

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Decorate a function: each call takes the lock, as `with` does.

        Raises:
            ConfigError: the function would return before its body runs: it is a coroutine
                function, for `AsyncRedisLock`, or a generator. Or a template or callable does not
                fit its arguments.
        """
        keys_of = self._keys_of_calls(function)

        @wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> T:
            __tracebackhide__ = True
            owner = self._enter(keys_of(args, kwargs))
            try:
                result = function(*args, **kwargs)
                check_result(self, function, result)
            except BaseException:
                self._acquired.leave(owner, failed=True)
                raise
            self._acquired.leave(owner, failed=False)
            return result

        return locked

    def _enter(self, keys: LockKeys) -> Owner:
        """Take this lock as `with` does."""
        owner = self._take(keys, self._timeout)
        if owner is None:
            raise LockConflict(keys.lock, *self._server.ask(in_the_way(keys, self.ttl)))
        return owner

    @property
    def _lease(self) -> Lease | None:
        owner = self._acquired.here
        return None if owner is None else owner.lease


def _warn_of_blocking(lock: RedisLock) -> None:
    """Warn, once for each event loop, that waiting for this lock blocks the loop that runs."""
    loop = asyncio._get_running_loop()
    if loop is None or loop in _told:
        return
    _told.add(loop)
    logger.warning(
        "redislock: %r is acquired in a coroutine and may block the event loop; use AsyncRedisLock",
        lock,
    )
