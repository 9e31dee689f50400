"""One Redis server, or a node of a cluster, for the coroutines of an event loop."""

from __future__ import annotations

import asyncio
from typing import Any, Final, TypeVar

from redis.exceptions import RedisError

from ..errors import LockUnavailable
from ..protocol.clock import clock
from ..protocol.exchange import Call
from .async_server import OnConnections, Undo
from .line import Line
from .node import Node
from .restarts import HeldOff
from .scripts import packed_text
from .talk import Begin, block, ends_connection, operation_timeout, transient
from .wire import Wire, Wires

T = TypeVar("T")

#: The most connections that ask at a time. One that blocks is not counted, see `LISTENING`.
ASKING: Final = 16


class AsyncNode(OnConnections):
    """A Redis server.

    Args:
        node: the server. It knows whether it came back empty, also for us.
    """

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.node = node
        self._wires = Wires(node.pools, node.watch)
        self._idle: list[Wire] = []
        self._line = Line(ASKING)

    async def exchange(
        self,
        key: str,
        ttl: float,
        undo: Undo,
        begin: Begin[T],
        *args: Any,
    ) -> T:
        try:
            await self._line.enter()
        except (RedisError, OSError) as exc:
            raise self.node.failed(key, exc) from exc
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

    async def _hold(
        self,
        key: str,
        timeout: float,
        undo: Undo,
        begin: Begin[T],
        *args: Any,
    ) -> T:
        try:
            wire = self._taken() or await self._wires.make(timeout)
        except (RedisError, OSError) as exc:
            raise self.node.failed(key, exc) from exc
        try:
            result = await wire.hold(begin(self.node.watch, *args), timeout)
        except BaseException as exc:
            if isinstance(exc, asyncio.CancelledError) and undo is not None:
                wire.end_with(packed_text(undo()))
            elif ends_connection(exc):
                wire.close()
            else:
                self._idle.append(wire)
            if isinstance(exc, RedisError | OSError):
                raise self.node.failed(key, exc) from exc
            raise
        wire.used_at = self.node.watch.last_contact = clock()
        self._idle.append(wire)
        return result

    def _timeout(self, ttl: float) -> float:
        return min(operation_timeout(ttl), self.node.longest)

    def _taken(self) -> Wire | None:
        while self._idle:
            wire = self._idle.pop()
            if wire.is_open:
                return wire
            wire.close()
        return None

    def close(self) -> None:
        idle, self._idle = self._idle, []
        for wire in idle:
            wire.close()
