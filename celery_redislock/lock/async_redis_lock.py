"""`AsyncRedisLock`: a lock for coroutines of asyncio."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from ..errors import LockConflict, LockLost
from ..protocol.calls import holder_of, in_the_way
from ..protocol.exchange import Query
from ..protocol.holders import Holder
from ..protocol.keys import LockKeys
from ..servers.loops import for_this_loop
from .async_acquisition import AsyncAcquisition, Lost
from .async_owners import Acquisitions, first_held
from .lease import Lease
from .named import NamedLock
from .ownership import Request, out_of_sight

P = ParamSpec("P")
T = TypeVar("T")


class AsyncRedisLock(NamedLock):
    """A lock in Redis, held by a task of asyncio, kept alive while it is held.

        async with AsyncRedisLock(app, "account:5") as held:
            await save(balance, fence=held.fence)

    It is the same lock as a `RedisLock`, or a task's, of that name: they exclude each other. The
    lock is extended by a thread, so also while the event loop is blocked. A coroutine that is
    cancelled while it waits or asks leaves nothing behind.

    Coroutines may share the object: one of them holds the lock, and the others wait. `async with`
    gives the acquisition, an `AsyncAcquisition`, which any coroutine may use. The object itself
    answers for the acquisition of the task that calls it, or of the task that started that one
    while it had the lock (by a context variable). To all other tasks `fence` is 0, `lost` is false,
    `ensure` raises `LockLost`, and `release` returns False and logs a warning. Once a task has
    asked for the lock itself, it gets no answers for the one that started it. If the task ends
    without a release, or its event loop is closed, the lock expires.

    The object belongs to the event loop that first uses it; as a decorator it works in every loop.
    Coroutines that wait for one lock in one loop wait for each other, in order of arrival, and only
    the first asks the server.

    Args:
        source: as for `RedisLock`: a Celery app, a URL, or a client of redis-py; also one of
            redis-py's clients for asyncio.
        name: as for `RedisLock`; with fields only as a decorator.
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

    _is_async = True

    def _begin(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._acquired = Acquisitions(self)

    @property
    def fence(self) -> int:
        """The fencing token of this task's acquisition; 0 if it has none. See `Lease`."""
        held = self._acquired.here
        return 0 if held is None else held.fence

    @property
    def lost(self) -> Lost:
        """True if the acquisition with this `fence` cannot be confirmed now. `ensure` asks the
        server; `await lost.wait()` waits until the lock is lost or released.
        """
        return Lost(self._acquired.here)

    def ensure(self) -> Coroutine[Any, Any, None]:
        """Return if this task holds the lock.

        Raises:
            LockLost: it does not, or the lock was lost.
        """
        return self._of(self._acquired.here, AsyncAcquisition.ensure)

    async def holder(self) -> Holder | None:
        """Who holds the lock, or None.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        if self._lease is None:
            self._bind()
        return await self._ask(holder_of(self._keys, self.ttl))

    async def _ask(self, query: Query[T]) -> T:
        with out_of_sight():
            server = await for_this_loop(self._server)
            return await server.ask(query)

    async def locked(self) -> bool:
        """Whether anybody holds the lock.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        return await self.holder() is not None

    def acquire(self, timeout: float | timedelta | None = None) -> Coroutine[Any, Any, bool]:
        """Take the lock, for the task that calls this. `await` it, or what holds it, such as
        `asyncio.wait_for(lock.acquire(), 5)`. If it is cancelled, the lock is not taken, or given
        back.

        Args:
            timeout: seconds to wait; None waits for ever, 0 tries once.

        Returns:
            Whether the lock was taken.

        Raises:
            LockConflict: this task itself holds the lock, so it would wait for ever.
            LockUnavailable: the server did not answer in time. See `RedisLock.acquire`.
        """
        # Not in a coroutine: a context variable that another task sets does not come back, and in
        # Python 3.10 and 3.11 `wait_for` makes such a task.
        request, own = self._acquired.request()
        work = self._acquire(request, own, timeout)
        request.work = weakref.ref(work)
        return work

    async def _acquire(self, request: Request, own: list[Request], timeout: Any) -> bool:
        self._bind()
        return await self._take(request, own, self._seconds(timeout), self._keys) is not None

    def release(self) -> Coroutine[Any, Any, bool]:
        """Release the lock that this task acquired, or the task that started this one. See
        `AsyncAcquisition.release`. If another task holds it, a warning is logged.

        Returns:
            Whether the lock was still held.
        """
        held = self._acquired.here
        return self._release_nothing() if held is None else held.release()

    async def _release_nothing(self) -> bool:
        self._bind()
        self._acquired.warn_of_stray_release()
        return False

    def extend(self) -> Coroutine[Any, Any, bool]:
        """Extend the lock to a whole ttl from now.

        Returns:
            True.

        Raises:
            LockLost: this task does not hold the lock, or it was lost.
            LockUnavailable: the server did not answer in time.
        """
        return self._of(self._acquired.here, AsyncAcquisition.extend)

    async def __aenter__(self) -> AsyncAcquisition:
        self._bind()
        held = await self._enter(self._keys)
        self._acquired.enter(held)
        return held

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        held = self._acquired.leave()
        if held is not None:
            await held._end_block(failed=kind is not None)

    def __call__(self, function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        """Decorate a coroutine function: each call takes the lock, as `async with` does.

        Raises:
            ConfigError: it is no coroutine function; `RedisLock` decorates other functions. Or a
                template or callable does not fit its arguments.
        """
        keys_of = self._keys_of_calls(function)

        @wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> T:
            __tracebackhide__ = True
            held = await self._enter(keys_of(args, kwargs))
            try:
                result = await function(*args, **kwargs)
            except BaseException:
                await held._end_block(failed=True)
                raise
            await held._end_block(failed=False)
            return result

        return locked

    @property
    def _lease(self) -> Lease | None:
        held = self._acquired.here
        return None if held is None else held._lease

    async def _of(
        self, held: AsyncAcquisition | None, do: Callable[[AsyncAcquisition], Awaitable[T]]
    ) -> T:
        """Do this with what a task acquired. Raises `LockLost` if that is nothing."""
        if held is None:
            self._bind()
            raise LockLost(self.key)
        return await do(held)

    # -- acquiring ------------------------------------------------------------------------

    async def _enter(self, keys: LockKeys) -> AsyncAcquisition:
        """Take this lock as `async with` does."""
        held = await self._take(*self._acquired.request(), self._timeout, keys)
        if held is None:
            raise LockConflict(keys.lock, *await self._ask(in_the_way(keys, self.ttl)))
        return held

    async def _take(
        self, request: Request, own: list[Request], timeout: float | None, keys: LockKeys
    ) -> AsyncAcquisition | None:
        """Take this lock within so many seconds. See `acquire`."""
        _running_loop(self)
        server = await for_this_loop(self._server)
        earlier = first_held(own, keys)
        if earlier is not None and earlier._lease.is_lost:
            await earlier._give_back()
        elif earlier is not None and timeout is None and self._beats:
            raise LockConflict(keys.lock, earlier._lease.holder)
        held = AsyncAcquisition(self._server, self._claim(keys), server, self._beats)
        if not await held._acquire(timeout):
            return None
        if earlier is not None:
            earlier._abandon()  # it had no heartbeat, and has expired
        self._acquired.add(request, held, is_known=not self._is_filled)
        return held

    def _bind(self) -> None:
        """Bind the object to the loop that runs."""
        loop = _running_loop(self)
        if self._loop is None or self._loop.is_closed():
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError(
                f"{self!r} belongs to another event loop, which first used it; make one for each"
                " loop. The locks exclude each other all the same"
            )


def _running_loop(lock: AsyncRedisLock) -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            f"{lock!r} needs an event loop of asyncio: use it in a coroutine that asyncio (or"
            " uvloop) runs. Trio has a loop of its own, which is not supported"
        ) from None
