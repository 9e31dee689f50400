"""A Redis Cluster, for the coroutines of an event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from ..errors import LockUnavailable
from ..protocol.exchange import Call
from .async_node import AsyncNode
from .async_server import OnConnections, Undo, in_thread
from .cluster import Cluster
from .hash_slots import SlotMap
from .talk import Begin
from .urls import Host

T = TypeVar("T")


class AsyncCluster(OnConnections):
    """The nodes of a Redis Cluster. Who has which slot is asked in a thread: it seldom changes.

    Args:
        cluster: the cluster.
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._cluster = cluster
        self._nodes: dict[Host, AsyncNode] = {}

    async def exchange(
        self,
        key: str,
        ttl: float,
        undo: Undo,
        begin: Begin[T],
        *args: Any,
    ) -> T:
        redirects = 0
        while True:
            slots = await self._slots(ttl, key)
            ask = lambda node: node.exchange(key, ttl, undo, begin, *args)  # noqa: E731
            try:
                return await self._ask(slots, key, ttl, ask)
            except LockUnavailable as exc:
                redirects = self._cluster.redirected(exc, key, redirects)

    async def block(self, call: Call[T], wake: str, seconds: float) -> T:
        slots = await self._slots(call.ttl, wake)
        return await self._ask(slots, wake, call.ttl, lambda node: node.block(call, wake, seconds))

    def close(self) -> None:
        for node in self._nodes.values():
            node.close()

    async def _slots(self, ttl: float, key: str) -> SlotMap:
        nodes = self._cluster.nodes
        known = nodes.known
        return known if known is not None else await in_thread(partial(nodes.slots, ttl, key))

    async def _ask(
        self, slots: SlotMap, key: str, ttl: float, ask: Callable[[AsyncNode], Awaitable[T]]
    ) -> T:
        """Ask the node of this key. If it fails, learn whether slots were moved."""
        host = slots.owner_of(key)
        try:
            if host is None:
                raise self._cluster.no_node(key)
            return await ask(self._node(host))
        except LockUnavailable as exc:
            await in_thread(partial(self._cluster.learn_from, exc, slots, ttl, host))
            raise

    def _node(self, host: Host) -> AsyncNode:
        node, known = self._cluster.nodes.node(host), self._nodes.get(host)
        if known is None or known.node is not node:  # a node that left came back as another one
            if known is not None:
                known.close()
            known = self._nodes[host] = AsyncNode(node)
        return known
