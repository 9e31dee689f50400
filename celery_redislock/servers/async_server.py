"""What a lock server does for coroutines: the same calls, by asyncio or in threads."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from ..errors import LockUnavailable
from ..protocol.exchange import Call, Query
from .line import Line
from .restarts import HeldOff
from .server import Server, Tries
from .talk import Begin, make_call, replies_to, transient
from .threads import askers, release_in_background

T = TypeVar("T")

#: The most connections that ask at a time. One that blocks is not counted, see `LISTENING`.
ASKING: Final = 16
#: The most locks of a server and loop for which a connection blocks; for others waiters poll.
LISTENING: Final = 32
#: Makes the call that gives back what an exchange takes, should the exchange be cancelled.
Undo: TypeAlias = Callable[[], Call[Any]] | None


class AsyncServer(ABC):
    """A lock server for one event loop; what a cancelled call may have taken is given back."""

    def __init__(self, server: Server) -> None:
        # Whoever asks has the server. With a reference of ours `loops` would keep it for ever.
        self._ref = weakref.ref(server)
        self._lines: weakref.WeakValueDictionary[str, Line] = weakref.WeakValueDictionary()
        self.asking = 0  # coroutines that wait for a lock there, and not behind another one

    @property
    def _server(self) -> Server:
        server = self._ref()
        assert server is not None, "who asks has the server"
        return server

    @property
    def crowd(self) -> float:
        """How many ask for a lock, in units of `LISTENING`. Above 1 none of them may block."""
        return self.asking / LISTENING

    def line_for(self, key: str) -> Line:
        """The coroutines that wait for this lock. Only the first asks the server."""
        return self._lines.get(key) or self._lines.setdefault(key, Line())

    @abstractmethod
    async def run(self, call: Call[T], *, once: bool = False, hold_off: float | None = None) -> T:
        """The answer to a call. See `Server.run`."""

    @abstractmethod
    async def block(self, call: Call[T], wake: str, seconds: float) -> T:
        """Block on a list, then make a call. See `Server.block`."""

    @abstractmethod
    async def ask(self, query: Query[T]) -> T:
        """The answer to a query. See `Server.ask`."""

    @abstractmethod
    def close(self) -> None:
        """Close every connection."""

    async def _persist(self, tries: Tries, attempt: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Repeat an attempt, with these arguments, until it succeeds, within bounds."""
        while True:
            try:
                return await attempt(*args)
            except (HeldOff, LockUnavailable) as exc:
                pause = tries.pause_after(exc)
            await asyncio.sleep(pause)


class OnConnections(AsyncServer):
    """A lock server that is asked on connections of asyncio."""

    @abstractmethod
    async def exchange(self, key: str, ttl: float, undo: Undo, begin: Begin[T], *args: Any) -> T:
        """Have one exchange. See `Server.exchange`."""

    async def run(self, call: Call[T], *, once: bool = False, hold_off: float | None = None) -> T:
        replicas = self._server.min_replicas if call.takes else 0
        key, ttl = call.keys[0], call.ttl
        sent_at, reply = await self._persist(
            *(Tries(self._server, key, ttl, once, hold_off), self.exchange),
            *(key, ttl, call.undo, make_call, call, replicas),
        )
        return call.read(reply, sent_at)

    async def ask(self, query: Query[T]) -> T:
        key, ttl = query.key, query.ttl
        replies = await self._persist(
            *(Tries(self._server, key, ttl, False, 0.0), self.exchange),
            *(key, ttl, None, replies_to, query.commands, False, True),
        )
        return query.read(replies)


class InThreads(AsyncServer):
    """A lock server that is asked in threads: asyncio has no such connections."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._line = Line(ASKING)
        self._listening = 0

    @property
    def crowd(self) -> float:
        # A cancelled wait leaves its thread only when the block is over.
        return max(super().crowd, (self._listening + 1) / LISTENING)

    async def run(self, call: Call[T], *, once: bool = False, hold_off: float | None = None) -> T:
        tries = Tries(self._server, key := call.keys[0], call.ttl, once, hold_off)
        ask = partial(self._server.attempt, call)
        return await self._persist(tries, self.in_turn, key, ask, call.undo)

    async def block(self, call: Call[T], wake: str, seconds: float) -> T:
        ask = partial(self._server.block, call, wake, seconds)
        self._listening += 1
        return await self._in_thread(ask, call.undo, self._has_listened)

    async def ask(self, query: Query[T]) -> T:
        tries = Tries(self._server, query.key, query.ttl, False, 0.0)
        ask = partial(self._server.ask, query, once=True)
        return await self._persist(tries, self.in_turn, query.key, ask)

    def close(self) -> None:
        """Do nothing: the connections are the server's."""

    async def in_turn(self, key: str, ask: Callable[[], T], undo: Undo = None) -> T:
        """Call this, which asks once, in a thread; a failure is that of all who wait behind it."""
        try:
            await self._line.enter()
        except LockUnavailable as exc:
            raise LockUnavailable(key, None, exc.reason) from exc.__cause__
        try:
            return await self._in_thread(ask, undo, self._line.leave)
        except LockUnavailable as exc:
            if transient(exc.__cause__):
                self._line.fail(exc)
            raise

    async def _in_thread(self, ask: Callable[[], T], undo: Undo, end: Callable[[], None]) -> T:
        """Call this in a thread, and `end` after it, also if the caller was cancelled before."""
        asked, loop = askers.submit(ask), asyncio.get_running_loop()
        try:
            return await asyncio.wrap_future(asked)
        except asyncio.CancelledError:
            if not asked.cancelled() and undo is not None:
                back = partial(release_in_background, self._server, undo())
                asked.add_done_callback(lambda done: back())
            raise
        finally:
            asked.add_done_callback(lambda done: _soon(loop, end))

    def _has_listened(self) -> None:
        self._listening -= 1


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(call)
