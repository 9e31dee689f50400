"""Makes the driver of a lock server."""

from __future__ import annotations

from typing import Any, TypeAlias

import redis
import redis.asyncio as aio

from .cluster import Cluster
from .connections import pools_like, pools_with_options_of
from .node import Node
from .quorum import Quorum
from .server import Server
from .urls import Independent, Nodes, Source

#: redis-py's clients.
Client: TypeAlias = redis.Redis | redis.RedisCluster | aio.Redis | aio.RedisCluster


def server_at(source: Source, min_replicas: int = 0) -> Server:
    """The driver for what a URL says, see `urls.source_from_url`. Opens no connection.

    Args:
        source: how to connect.
        min_replicas: how many replicas must confirm an acquisition.
    """
    if isinstance(source, Independent):
        return Quorum(source.pools, source.names, min_replicas)
    return (
        Cluster(source, min_replicas) if isinstance(source, Nodes) else Node(source, min_replicas)
    )


def server_like(client: Client) -> Server:
    """A driver for the server, or the cluster, of this client."""
    if isinstance(client, redis.Redis | aio.Redis):
        return Node(pools_like(client))
    manager: Any = client.nodes_manager
    known = list(manager.nodes_cache.values()) or list(manager.startup_nodes.values())
    first = tuple((node.host, node.port) for node in known)
    options = ("redis_connection", "valkey_connection")
    template = next(filter(None, (getattr(known[0], name, None) for name in options)), known[0])
    pools = pools_with_options_of(template)
    return Cluster(
        Nodes(first, lambda host, port: pools(host=host, port=port), manager.address_remap)
    )
