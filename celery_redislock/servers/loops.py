"""The lock servers of each event loop."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator
from typing import Final

from .async_cluster import AsyncCluster
from .async_node import AsyncNode
from .async_server import AsyncServer, InThreads
from .cluster import Cluster
from .node import Node
from .server import Server
from .wire import Wires


class _Loop:
    """What belongs to an event loop. Ends with it: `asyncio.run` closes asynchronous generators."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        #: A server goes when nobody else has it, such as the client that it was made from.
        self.servers: weakref.WeakKeyDictionary[Server, AsyncServer] = weakref.WeakKeyDictionary()
        self._end = self._at_its_end()

    async def begin(self) -> None:
        await anext(self._end)

    async def _at_its_end(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            vars(self._loop).pop(_HERE, None)
            for server in [*self.servers.values()]:
                server.close()


#: The attribute of an event loop that has its `_Loop`. What had it elsewhere would keep the loops,
#: and their connections, that a program drops and does not close.
_HERE: Final = "_redislock_servers"


async def for_this_loop(server: Server) -> AsyncServer:
    """The same server, for the coroutines of the loop that runs."""
    loop = asyncio.get_running_loop()
    known: _Loop | None = vars(loop).get(_HERE)
    if known is None:
        known = vars(loop)[_HERE] = _Loop(loop)
        await known.begin()
    found = known.servers.get(server)
    if found is None:
        found = known.servers[server] = _made(server)
    return found


def _made(server: Server) -> AsyncServer:
    if isinstance(server, Cluster):
        return AsyncCluster(server) if _can_connect(server.nodes.first) else InThreads(server)
    if isinstance(server, Node) and _can_connect(server):
        return AsyncNode(server)
    return InThreads(server)


def _can_connect(node: Node) -> bool:
    """Whether asyncio has such connections."""
    return Wires(node.pools, node.watch).can_be_made
