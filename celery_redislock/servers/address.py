"""Where a lock server is, for people and logs."""

from __future__ import annotations

import re
from typing import Any

from redis.connection import SSLConnection, UnixDomainSocketConnection
from redis.sentinel import SentinelConnectionPool, SentinelManagedSSLConnection

from ..protocol.holders import one_line
from .connections import unused
from .urls import QUORUM, Independent, Nodes, Source, host_port


def address_of(source: Source) -> str:
    """The URL as redis-py read it, without a password, or a user: that may be a misplaced one."""
    if isinstance(source, Nodes):
        ours = [address_of(source.pools(*host)) for host in source.first]
        scheme = ours[0].partition("://")[0]
        hosts = ",".join(each.partition("://")[2].partition("/")[0] for each in ours)
        return one_line(f"{scheme}+cluster://{hosts}")
    if isinstance(source, Independent):
        hosts = ",".join(address_of(each).partition("://")[2] for each in source.pools)
        return one_line(f"{QUORUM}://{hosts}")
    pool: Any = source(1.0, unused)
    options = pool.connection_kwargs
    database = options.get("db") or 0
    kind = pool.connection_class
    if isinstance(pool, SentinelConnectionPool):
        asked = (each.connection_pool.connection_kwargs for each in pool.sentinel_manager.sentinels)
        hosts = ";".join(_host(each) for each in asked)
        tls = " with TLS" if issubclass(kind, SentinelManagedSSLConnection) else ""
        text = f"sentinel://{hosts}/{database} master {pool.service_name!r}{tls}"
    elif issubclass(kind, UnixDomainSocketConnection):
        text = f"unix://{options.get('path', '')}?db={database}"
    else:
        scheme = "rediss" if issubclass(kind, SSLConnection) else "redis"
        text = f"{scheme}://{_host(options)}/{database}"
    return one_line(text)


def databases_of(source: Source) -> set[str]:
    """The source's databases, as host, port and number: the same for all URLs that lead there."""
    scheme, _, where = address_of(source).partition("://")
    parts = [where] if scheme in ("unix", "sentinel") else where.split(",")
    parts = [part if "/" in part else f"{part}/0" for part in parts]  # a cluster has one
    return {re.sub(r"^(localhost|\[::1\]):", "127.0.0.1:", part) for part in parts}


def _host(options: dict[str, Any]) -> str:
    return host_port(options.get("host") or "localhost", options.get("port") or 6379)
