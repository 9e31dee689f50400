"""A Redis Cluster, for the coroutines of an event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from ..errors import LockUnavailable
from ..protocol.exchange import Call
from .async_node import AsyncNode
from .async_server import OnConnections, Undo
from .cluster import Cluster
from .hash_slots import SlotMap
from .talk import Begin
from .threads import in_thread
from .urls import Host

T = TypeVar("T")


class AsyncCluster(OnConnections):
    """The nodes of a Redis Cluster. Who has which slot is asked in a thread: it seldom changes."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._nodes: dict[Host, AsyncNode] = {}
        self._map: SlotMap | None = None

    @property
    def _cluster(self) -> Cluster:
        assert isinstance(self._server, Cluster)
        return self._server

    async def exchange(self, key: str, ttl: float, undo: Undo, begin: Begin[T], *args: Any) -> T:
        redirects, cluster = 0, self._cluster
        while True:
            slots = await self._slots(ttl, key)
            ask = lambda node: node.exchange(key, ttl, undo, begin, *args)  # noqa: E731
            try:
                return await self._ask(slots, key, ttl, ask)
            except LockUnavailable as exc:
                redirects = cluster.redirected(exc, key, redirects)

    async def block(self, call: Call[T], wake: str, seconds: float) -> T:
        slots = await self._slots(call.ttl, wake)
        return await self._ask(slots, wake, call.ttl, lambda node: node.block(call, wake, seconds))

    def close(self) -> None:
        for node in self._nodes.values():
            node.close()

    async def _slots(self, ttl: float, key: str) -> SlotMap:
        nodes = self._cluster.nodes
        slots = nodes.known
        if slots is None:
            slots = await in_thread(partial(nodes.slots, ttl, key))
        if slots is not self._map:
            self._map = slots
            for host in {*self._nodes} - {*slots.primaries}:
                self._nodes.pop(host).close()
        return slots

    async def _ask(
        self, slots: SlotMap, key: str, ttl: float, ask: Callable[[AsyncNode], Awaitable[T]]
    ) -> T:
        """Ask the node of this key. If it fails, learn whether slots were moved."""
        cluster, host = self._cluster, slots.owner_of(key)
        try:
            if host is None:
                raise cluster.no_node(key)
            node = cluster.nodes.node(host)
            known = self._nodes.get(host)
            if known is None or not known.is_of(node):  # one that left came back as another one
                known = self._nodes[host] = AsyncNode(node)
            return await ask(known)
        except LockUnavailable as exc:
            await in_thread(partial(cluster.learn_from, exc, slots, ttl, host))
            raise
