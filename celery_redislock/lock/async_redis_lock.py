"""`AsyncRedisLock`: a lock for coroutines of asyncio."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import timedelta
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from ..errors import LockConflict, LockLost
from ..protocol.calls import holder_of
from ..protocol.holders import Holder
from ..servers.async_server import AsyncServer
from ..servers.factory import Client
from ..servers.loops import for_this_loop
from .async_lease import AsyncLease, Lost
from .named import NamedLock, check_decorated
from .sources import CeleryApp

P = ParamSpec("P")
T = TypeVar("T")


class AsyncRedisLock(NamedLock):
    """A lock in Redis, held by this object, kept alive while it is held.

        async with AsyncRedisLock(app, "account:5") as lock:
            await save(balance, fence=lock.fence)

    It is the same lock as a `RedisLock`, or a task's, of that name: they exclude each other. The
    lock is extended by a thread, so also while the event loop is blocked. Coroutines may share the
    object: one of them holds the lock, and the others wait. A coroutine that is cancelled while it
    waits or asks leaves nothing behind. Any coroutine may release the lock.

    The object belongs to the event loop that first uses it. Coroutines that wait for one lock in
    one loop wait for each other, in order of arrival, and only the first asks the server.

    Args:
        source: as for `RedisLock`: a Celery app, a URL, or a client of redis-py; also one of
            redis-py's clients for asyncio.
        name: the lock's name. A task whose `lock_key` template or callable gives the same
            text shares the lock.
        ttl: seconds that the lock outlives a dead holder, at least 0.1. Wherever seconds are
            taken, a timedelta is too.
        heartbeat: extend the lock every third of the ttl while it is held. Without it the
            lock is lost after the ttl, unless `extend` is called.
        timeout: seconds that `async with` waits before it raises `LockConflict`; None for ever.
        prefix: as for `RedisLock`.
        history: as for `RedisLock`.
        label: what people see instead of the key and the pid, such as "api: adjust 5".
        transport_options: as for `RedisLock`.

    Raises:
        ConfigError: an argument is not accepted, or an app's settings, once they are read.
        RuntimeError: a method is called in another event loop, or where no loop of asyncio runs.
    """

    def __init__(
        self,
        source: Client | str | CeleryApp,
        name: str,
        ttl: float | timedelta = 30,
        heartbeat: bool = True,
        *,
        timeout: float | timedelta | None = 10,
        prefix: str | None = None,
        history: int | None = None,
        label: str | None = None,
        transport_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            *(source, name, ttl, heartbeat),
            timeout=timeout,
            prefix=prefix,
            history=history,
            label=label,
            transport_options=transport_options,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        #: What each task acquired: a task that lost the lock must not release another's.
        self._leases: weakref.WeakKeyDictionary[Any, AsyncLease] = weakref.WeakKeyDictionary()
        self._last: AsyncLease | None = None

    @property
    def fence(self) -> int:
        """The fencing token of this task's acquisition; if it has none, that of the task which
        holds the lock; 0 if none does. See `Lease`.
        """
        lease = self._lease
        return 0 if lease is None else lease.fence

    @property
    def lost(self) -> Lost:
        """True if the acquisition with this `fence` cannot be confirmed now. `ensure` asks the
        server; `await lost.wait()` waits until the lock is lost or released.
        """
        return Lost(self._lease)

    async def ensure(self) -> None:
        """Return if the lock is held.

        Raises:
            LockLost: the lock is not held, or it was lost.
        """
        lease = self._bound_lease()
        if lease is None:
            raise LockLost(self.key)
        if not await lease.confirm():
            raise lease.lost_error()

    async def holder(self) -> Holder | None:
        """Who holds the lock, or None.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        server = await self._bound_server()
        return await server.ask(holder_of(self._keys, self.ttl))

    async def locked(self) -> bool:
        """Whether anybody holds the lock.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        return await self.holder() is not None

    async def acquire(self, timeout: float | timedelta | None = None) -> bool:
        """Take the lock. If this is cancelled, the lock is not taken, or given back.

        Args:
            timeout: seconds to wait; None waits for ever, 0 tries once.

        Returns:
            Whether the lock was taken.

        Raises:
            LockConflict: this task itself holds the lock, so it would wait for ever.
            LockUnavailable: the server did not answer in time.
        """
        timeout = self._seconds(timeout)
        server = await self._bound_server()
        task: Any = asyncio.current_task()
        held = self._leases.get(task)
        if held is not None and held.is_lost:
            await held.give_back()
        elif held is not None and not held.is_over and timeout is None:
            raise LockConflict(self.key, held.holder)
        lease = AsyncLease(self._server, self._claim(), server, beats=self._beats)
        if not await lease.acquire_in_time(timeout):
            return False
        self._leases[task] = self._last = lease
        return True

    async def release(self) -> bool:
        """Release the lock: the acquisition of this task, if it has one, else that of another. If
        this is cancelled, a thread goes on with it.

        Returns:
            Whether the lock was still held.
        """
        lease = self._bound_lease()
        return lease is not None and await lease.give_back()

    async def extend(self) -> bool:
        """Extend the lock to a whole ttl from now.

        Returns:
            True.

        Raises:
            LockLost: the lock is not held, or it was lost.
            LockUnavailable: the server did not answer in time.
        """
        lease = self._bound_lease()
        if lease is None:
            raise LockLost(self.key)
        if lease.is_lost or not await lease.extend_soon():
            raise lease.lost_error()
        return True

    async def __aenter__(self) -> AsyncRedisLock:
        if not await self.acquire(self._timeout):
            raise LockConflict(self.key, await self.holder())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.release()

    def __call__(self, function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        """Decorate a coroutine function: each call takes the lock, as `async with` does.

        Raises:
            ConfigError: it is no coroutine function; `RedisLock` decorates other functions.
        """
        check_decorated(self, function, is_async=True)

        @wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> T:
            async with self:
                return await function(*args, **kwargs)

        return locked

    @property
    def _lease(self) -> AsyncLease | None:
        """What this task acquired and has not released, even if it was lost; else what the last
        task acquired.
        """
        try:
            task = asyncio.current_task()
        except RuntimeError:  # no loop runs in this thread
            task = None
        for lease in (self._leases.get(task) if task else None, self._last):
            if lease is not None and not lease.is_over and not lease.inherited:
                return lease
        return None

    def _bound_lease(self) -> AsyncLease | None:
        self._bind()
        return self._lease

    async def _bound_server(self) -> AsyncServer:
        self._bind()
        return await for_this_loop(self._server)

    def _bind(self) -> None:
        """Bind the object to the loop that runs."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError(
                f"{self!r} needs an event loop of asyncio: use it in a coroutine that asyncio (or"
                " uvloop) runs. Trio has a loop of its own, which is not supported"
            ) from None
        if self._loop is None or self._loop.is_closed():
            self._loop, self._last = loop, None
            self._leases.clear()
        elif self._loop is not loop:
            raise RuntimeError(
                f"{self!r} belongs to another event loop, which first used it; make one for each"
                " loop. The locks exclude each other all the same"
            )
