"""What a lock server does for coroutines: the same calls, on connections of asyncio, or in threads.

Only what a lock outside tasks needs. Who has which hash slot, what a restart means and how long to
try is known to the `Server` in whose place it asks.
"""

from __future__ import annotations

import asyncio
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias, TypeVar

from ..errors import LockUnavailable
from ..protocol.clock import clock
from ..protocol.exchange import Call, Query
from .line import Line
from .restarts import HeldOff
from .server import Server, Tries
from .talk import Begin, make_call, replies_to
from .threads import give_back, in_thread, threads

T = TypeVar("T")

#: Makes the call that gives back what an exchange takes, should the exchange be cancelled.
Undo: TypeAlias = Callable[[], Call[Any]] | None


class AsyncServer(ABC):
    """A lock server, for the coroutines of one event loop.

    A call that is cancelled is undone behind itself: what it may have taken is given back.

    Args:
        server: the server.

    Attributes:
        asking: how many coroutines wait for a lock there, and not behind another one.
    """

    def __init__(self, server: Server) -> None:
        # Who asks has the server. With a reference of ours `loops` would keep it for ever.
        self._ref = weakref.ref(server)
        self._lines: weakref.WeakValueDictionary[str, Line] = weakref.WeakValueDictionary()
        self.asking = 0

    @property
    def _server(self) -> Server:
        server = self._ref()
        assert server is not None, "who asks has the server"
        return server

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


class OnConnections(AsyncServer):
    """A lock server that is asked on connections of asyncio."""

    @abstractmethod
    async def exchange(self, key: str, ttl: float, undo: Undo, begin: Begin[T], *args: Any) -> T:
        """Have one exchange. See `Server.exchange`.

        Args:
            key: the key that the exchange is about; "" for none.
            ttl: seconds; they determine how long the server may take to answer.
            undo: see `Undo`.
            begin: begins the exchange, see `talk`. It is given the `ServerWatch`.
            *args: its other arguments.
        """

    async def run(self, call: Call[T], *, once: bool = False, hold_off: float | None = None) -> T:
        replicas = self._server.min_replicas if call.takes else 0
        sent_at, reply = await self._persist(
            *(call.keys[0], call.ttl, once, hold_off, call.undo, make_call, call, replicas)
        )
        return call.read(reply, sent_at)

    async def ask(self, query: Query[T]) -> T:
        key, ttl = query.key, query.ttl
        replies = await self._persist(
            *(key, ttl, False, 0.0, None, replies_to, query.commands, False, True)
        )
        return query.read(replies)

    async def _persist(
        self, key: str, ttl: float, once: bool, hold_off: float | None, *question: Any
    ) -> Any:
        """Repeat an exchange until it succeeds, within bounds."""
        began, tries = clock(), None
        while True:
            try:
                return await self.exchange(key, ttl, *question)
            except (HeldOff, LockUnavailable) as exc:
                tries = tries or Tries(self._server, key, ttl, once, hold_off, began)
                pause = tries.pause_after(exc)
            await asyncio.sleep(pause)


class InThreads(AsyncServer):
    """A lock server that is asked in threads: a quorum, the memory of tests, or one whose kind of
    connection asyncio does not have.
    """

    async def run(self, call: Call[T], *, once: bool = False, hold_off: float | None = None) -> T:
        ask = partial(self._server.run, call, once=once, hold_off=hold_off)
        return await self._in_thread(call, ask)

    async def block(self, call: Call[T], wake: str, seconds: float) -> T:
        return await self._in_thread(call, partial(self._server.block, call, wake, seconds))

    async def ask(self, query: Query[T]) -> T:
        return await in_thread(partial(self._server.ask, query))

    def close(self) -> None:
        """Do nothing: the connections are the server's."""

    async def _in_thread(self, call: Call[Any], ask: Callable[[], T]) -> T:
        asked = threads.submit(ask)
        try:
            return await asyncio.wrap_future(asked)
        except asyncio.CancelledError:
            if not asked.cancelled() and call.undo is not None:
                undo = partial(give_back, self._server, call.undo())
                asked.add_done_callback(lambda done: undo())
            raise
