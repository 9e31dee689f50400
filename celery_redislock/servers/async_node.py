"""One Redis server, or a node of a cluster, for the coroutines of an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from typing import Any, TypeVar

from redis.exceptions import RedisError

from ..errors import LockUnavailable
from ..protocol.clock import clock
from ..protocol.exchange import Call
from .async_server import ASKING, OnConnections, Undo
from .connections import IDLE_FOR, explained
from .line import Line
from .node import Node
from .restarts import HeldOff
from .scripts import packed_text
from .talk import Begin, block, ends_connection, may_repeat, operation_timeout, transient
from .wire import Wire, Wires

T = TypeVar("T")


class AsyncNode(OnConnections):
    """One Redis server, for the coroutines of one event loop."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._loop = asyncio.get_running_loop()
        self._watch = node.watch
        self._wires = Wires(node.pools, node.watch)
        #: Those used last come last, and are used first.
        self._idle: list[Wire] = []
        self._sweep: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._line = Line(ASKING)

    def __del__(self) -> None:
        # The garbage collector may call this anywhere.
        with contextlib.suppress(RuntimeError):  # the loop is closed, and with it the connections
            self._loop.call_soon_threadsafe(_close_all, self._idle)

    @property
    def node(self) -> Node:
        assert isinstance(self._server, Node)
        return self._server

    def is_of(self, node: Node) -> bool:
        """Whether this asks that very server, and not one that had its address before."""
        return self._ref() is node

    async def exchange(self, key: str, ttl: float, undo: Undo, begin: Begin[T], *args: Any) -> T:
        node = self.node
        try:
            await self._line.enter()
        except (RedisError, OSError) as exc:
            raise node.failed(key, exc) from exc
        try:
            return await self._hold(key, self._timeout(ttl), undo, begin, *args)
        except LockUnavailable as exc:
            if isinstance(exc.__cause__, Exception) and transient(exc.__cause__):
                # Each of the others would find out for itself, one after another.
                self._line.fail(exc.__cause__)
            raise
        finally:
            self._line.leave()

    async def block(self, call: Call[T], wake: str, seconds: float) -> T:
        try:
            return await self._hold(
                *(call.keys[0], self._timeout(call.ttl), call.undo, block),
                *(call, wake, seconds, self.node.min_replicas),
            )
        except HeldOff as exc:
            raise exc.for_users(call.keys[0]) from None

    async def _hold(self, key: str, timeout: float, undo: Undo, begin: Begin[T], *args: Any) -> T:
        node, wire = self.node, self._taken()
        while True:
            is_new = wire is None
            try:
                wire = wire or await self._wires.make(timeout)
            except (RedisError, OSError) as exc:
                raise node.failed(key, explained(exc, self._wires.pool)) from exc
            try:
                result = await wire.hold(begin(node.watch, *args), timeout)
            except BaseException as exc:
                if isinstance(exc, asyncio.CancelledError) and undo is not None:
                    wire.end_with(packed_text(undo()))
                elif ends_connection(exc):
                    wire.close()
                else:
                    self._put_back(wire)
                if not isinstance(exc, RedisError | OSError):
                    raise
                failure = node.failed(key, exc)
                if ends_connection(exc):
                    _close_all(self._idle)  # whatever ended this one may have ended them
                if is_new or not may_repeat(exc, begin):
                    raise failure from exc
                wire = None
                continue
            wire.used_at = node.watch.last_contact = clock()
            self._put_back(wire)
            return result

    def _timeout(self, ttl: float) -> float:
        return min(operation_timeout(ttl), self.node.longest)

    # -- connections that nobody uses ------------------------------------------------------

    def _taken(self) -> Wire | None:
        """An open connection that nobody uses; None if there is none."""
        while self._idle:
            wire = self._idle.pop()
            if wire.is_open:
                return wire
            self._drop(wire)
        return None

    def _put_back(self, wire: Wire) -> None:
        if self._is_closed:
            wire.close()
            return
        self._idle.append(wire)
        if self._sweep is None:
            self._sweep = self._loop.call_later(IDLE_FOR, _sweep_later, weakref.ref(self))

    def sweep(self) -> None:
        """Close connections that were not used for `IDLE_FOR`, or that the server has closed."""
        self._sweep, last = None, clock() - IDLE_FOR
        kept = [*self._idle]
        self._idle.clear()
        for wire in kept:
            is_old = wire.used_at < last and self._watch.tells_id()
            if is_old or not wire.is_open:
                self._drop(wire)
            else:
                self._put_back(wire)

    def _drop(self, wire: Wire) -> None:
        if wire.is_ours and not wire.is_open:
            self._watch.is_broken = True  # the server has ended it, and may have restarted
        wire.close()

    def close(self) -> None:
        self._is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        _close_all(self._idle)


def _close_all(wires: list[Wire]) -> None:
    while wires:
        wires.pop().close()


def _sweep_later(node: weakref.ref[AsyncNode]) -> None:
    found = node()
    if found is not None:
        found.sweep()
