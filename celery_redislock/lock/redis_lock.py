"""`RedisLock`: a lock for use outside tasks."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import redis

from ..errors import ConfigError, LockConflict, LockLost
from ..protocol import holders, past
from ..protocol.calls import Release, holder_of
from ..protocol.claims import Acquired, Claim
from ..protocol.clock import clock
from ..protocol.holders import Holder
from ..protocol.log import get_logger
from ..servers.factory import ValkeyClient, is_for_asyncio
from ..servers.server import Server
from .heartbeat import heartbeat
from .lease import Lease
from .named import NamedLock, check_decorated
from .sources import CeleryApp

logger = get_logger()

P = ParamSpec("P")
T = TypeVar("T")


class _ThreadLease(Lease):
    """A thread's acquisition of a `RedisLock`. Only that thread has a reference to it.

    Attributes:
        thread: the thread's name.
        last: what other threads know of this acquisition.
        stray_release_is_told: the warning that another thread tried to release it was logged.
    """

    stray_release_is_told = False

    def __init__(self, server: Server, claim: Claim, *, beats: bool) -> None:
        super().__init__(server, claim, beats=beats)
        self.thread = threading.current_thread().name
        self.last = _Last()

    def __del__(self) -> None:
        if self.is_over:
            return
        self.last.ended(self)
        # The garbage collector may call this anywhere, also while a log handler's lock is held. So
        # the heartbeat's thread logs the warning.
        if self._beats and self.is_held:
            heartbeat.call_soon(partial(_say_dropped, self.key, self.ttl, self.thread))


def _say_dropped(key: str, ttl: float, thread: str) -> None:
    logger.warning(
        "redislock: %s was never released: the thread %r that acquired it ended, or dropped the"
        " RedisLock. It is no longer extended and expires within %g s", key, thread, ttl,
    )  # fmt: skip


class _Last:
    """The last acquisition of a `RedisLock` in any thread, for the other threads.

    Attributes:
        lease: a weak reference, so that the lease ends with its thread.
        fence, deadline, is_lost, is_over, pid, stored, lost_because: as `Held` has them, once the
            thread has ended without a release.
    """

    fence, deadline, pid, stored, lost_because = 0, 0.0, 0, "", ""
    is_lost, is_over = False, True

    def __init__(self) -> None:
        self.lease: Callable[[], _ThreadLease | None] = lambda: None

    def ended(self, lease: _ThreadLease) -> None:
        """Keep what the lease knew when its thread ended. A finalizer calls this: do not wait."""
        self.fence, self.deadline, self.pid = lease.fence, lease.deadline, lease.pid
        self.is_lost, self.is_over, self.stored = lease.is_lost, False, lease.stored
        self.lost_because = lease.lost_because


class RedisLock(NamedLock):
    """A lock in Redis, held by a thread of this process, kept alive while it is held.

        with RedisLock(app, "account:5") as lock:
            save(balance, fence=lock.fence)

    The lock belongs to the thread that acquired it. Only that thread can release it: a `release`
    in another thread returns False and logs a warning. `fence`, `lost` and `ensure` say the same in
    every thread of the process. The lock is extended as long as its thread lives, even if the
    thread is idle in a pool. If the thread ends without a release, a warning is logged, and the
    lock expires within the ttl. `asyncio.to_thread` may run each call in another thread: acquire
    and release a lock in one function, or in an executor of one thread.

    Args:
        source: a Celery app: the lock uses the app's server, `redislock_prefix` and
            `redislock_history`, so the app's tasks share the lock. These settings are read when
            the lock is used. Or a URL as `redislock_url` takes it. Or a redis-py or valkey-py
            client, for its settings: the lock has its own connections, with timeouts that fit.
        name: the lock's name. A task whose `lock_key` template or callable gives the same
            text shares the lock.
        ttl: seconds that the lock outlives a dead holder, at least 0.1. Wherever seconds are
            taken, a timedelta is too.
        heartbeat: extend the lock every third of the ttl while it is held. Without it the
            lock is lost after the ttl, unless `extend` is called.
        reentrant: the thread that holds the lock may acquire it again, and must release it as
            often. The count ends with the lock.
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
        name: str,
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
        _refuse_asyncio(source)
        super().__init__(
            *(source, name, ttl, heartbeat),
            timeout=timeout,
            prefix=prefix,
            history=history,
            label=label,
            transport_options=transport_options,
        )
        self._reentrant = reentrant
        self._mine = threading.local()
        self._last: _Last | None = None

    @property
    def fence(self) -> int:
        """The fencing token of this thread's acquisition; if it has none, that of the thread which
        holds the lock; 0 if no thread of this process does. See `Lease`.
        """
        known = self._known
        return 0 if known is None else known.fence

    @property
    def lost(self) -> bool:
        """True if the acquisition with this `fence` can no longer be confirmed."""
        known = self._known
        if isinstance(known, Lease):
            return known.lost
        # The thread that acquired the lock has ended.
        return known is not None and (known.is_lost or clock() >= known.deadline)

    def ensure(self) -> None:
        """Return if a thread of this process holds the lock.

        Raises:
            LockLost: no thread holds the lock, or this thread's acquisition was lost.
        """
        known = self._known
        if known is None:
            raise LockLost(self.key)
        if self.lost:
            holder = holders.parse(known.stored.encode(), None)
            raise LockLost(self.key, holder, known.lost_because)

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
            LockUnavailable: the server did not answer in time.
        """
        timeout = self._seconds(timeout)
        held = self._lease
        if held is not None and held.lost:
            _release(held)
            held = self._mine.lease = None
        if held is not None and self._reentrant:
            self._mine.count += 1
            return True
        if held is not None and timeout is None:
            raise LockConflict(self.key, self.holder())
        lease = _ThreadLease(self._server, self._claim(), beats=self._beats)
        last = lease.last
        last.lease = weakref.ref(lease)
        try:
            reply = lease.acquire(hold_off=0) if timeout == 0 else lease.wait(timeout)
            taken = isinstance(reply, Acquired)
        except BaseException:
            # The server may have given us the lock, and the reply got lost.
            _release(lease)
            raise
        if taken:
            self._mine.lease, self._mine.count = lease, 1
            self._last = last
        return taken

    def release(self) -> bool:
        """Release the lock, or with `reentrant` undo one `acquire`.

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
                return _release(lease)
            finally:
                if not lease.is_over:
                    _release(lease)  # again, if an exception from outside interrupted it
        finally:
            self._mine.lease = None

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
        own, others = self._lease, self._others_lease
        lease = own or others
        # Only the lock's own thread may take a vanished lock again: it may just have released it.
        if lease is None or not lease.extend_now(retake=own is not None):
            self.ensure()
            raise LockLost(self.key)
        return True

    def __enter__(self) -> RedisLock:
        if not self.acquire(self._timeout):
            raise LockConflict(self.key, self.holder())
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Decorate a function: each call takes the lock, as `with` does.

        Raises:
            ConfigError: the function would return before its body runs: it is a coroutine
                function, for `AsyncRedisLock`, or a generator.
        """
        check_decorated(self, function, is_async=False)

        @wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> T:
            with self:
                return function(*args, **kwargs)

        return locked

    def _warn_of_stray_release(self) -> None:
        """Warn once that another thread holds the lock, so that this thread cannot release it."""
        lease = self._others_lease
        if lease is None or lease.stray_release_is_told or not lease.is_held:
            return
        lease.stray_release_is_told = True
        logger.warning(
            "redislock: did not release %s: it belongs to the thread %r that acquired it, and this"
            " is %r. Acquire and release it in the same thread, or in an executor of one thread",
            self.key, lease.thread, threading.current_thread().name,
        )  # fmt: skip

    @property
    def _lease(self) -> Lease | None:
        lease: Lease | None = getattr(self._mine, "lease", None)
        return None if lease is None or lease.inherited else lease

    @property
    def _others_lease(self) -> _ThreadLease | None:
        return None if self._last is None else self._last.lease()

    @property
    def _known(self) -> Lease | _Last | None:
        """What this thread acquired and has not released, even if it was lost: with the fence of
        another thread, its late writes would be accepted. Else what the last thread acquired.
        """
        lease = self._lease
        if lease is not None or self._last is None:
            return lease
        known = self._last.lease() or self._last
        return None if known.is_over or known.pid != os.getpid() else known


def _refuse_asyncio(source: Any) -> None:
    if is_for_asyncio(source):
        raise ConfigError(
            f"RedisLock: {source!r} is not accepted; it must be a redis.Redis or"
            " redis.RedisCluster client, one of valkey-py, a URL or a Celery app; AsyncRedisLock is"
            " for asyncio"
        )


def _release(lease: Lease) -> bool:
    """Release the lock. Returns whether it was still ours."""
    settled = lease.release(Release(publishes=False), past.RELEASED)
    return settled is not None and settled.ours
