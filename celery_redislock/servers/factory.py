"""Makes the driver of a lock server."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol, TypeAlias

import redis
import redis.asyncio as aio

from .cluster import Cluster
from .connections import pools_like, pools_with_options_of
from .node import Node
from .quorum import Quorum
from .server import Server
from .urls import Independent, Nodes, Source


class ValkeyClient(Protocol):
    """A client of valkey-py, a fork of redis-py that need not be installed. Its method here is one
    of the few that redis-py's clients do not have.
    """

    def flush_cache(self) -> Any: ...


#: redis-py's clients, and valkey-py's.
Client: TypeAlias = redis.Redis | redis.RedisCluster | aio.Redis | aio.RedisCluster | ValkeyClient


def is_client(source: Any) -> bool:
    """Whether this is one of these clients."""
    kind: Any = type(source)
    return bool(_clients_among(kind))


def is_for_asyncio(source: Any) -> bool:
    """Whether this is one of these clients, for asyncio."""
    kind: Any = type(source)
    return any(".asyncio." in each.__module__ for each in _clients_among(kind))


@lru_cache
def _clients_among(kind: type) -> list[type]:
    """The class itself and those that it inherits from, as far as they are clients."""
    names = ("Redis", "RedisCluster", "Valkey", "ValkeyCluster")
    return [
        each
        for each in kind.__mro__
        if each.__name__ in names and each.__module__.startswith(("redis.", "valkey."))
    ]


def server_at(source: Source, min_replicas: int = 0) -> Server:
    """The driver for what a URL says, see `urls.source_from_url`. Opens no connection."""
    if isinstance(source, Independent):
        return Quorum(source.pools, source.names, min_replicas)
    return (
        Cluster(source, min_replicas) if isinstance(source, Nodes) else Node(source, min_replicas)
    )


def server_like(client: Any) -> Server:
    """A driver for the server, or the cluster, of this client. See `Client`."""
    if not hasattr(client, "nodes_manager"):
        return Node(pools_like(client))
    manager = client.nodes_manager
    known = list(manager.nodes_cache.values()) or list(manager.startup_nodes.values())
    first = tuple((node.host, node.port) for node in known)
    options = ("redis_connection", "valkey_connection")
    template = next(filter(None, (getattr(known[0], name, None) for name in options)), known[0])
    pools = pools_with_options_of(template)
    return Cluster(
        Nodes(first, lambda host, port: pools(host=host, port=port), manager.address_remap)
    )
