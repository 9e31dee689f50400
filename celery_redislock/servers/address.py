"""Where a lock server is, for people and logs."""

from __future__ import annotations

from typing import Any

from redis.connection import SSLConnection, UnixDomainSocketConnection
from redis.sentinel import SentinelConnectionPool, SentinelManagedSSLConnection

from ..protocol.holders import one_line
from .connections import PoolFactory


def address_of(pools: PoolFactory) -> str:
    """The URL of the server that these connections go to, as redis-py read the URL and the options.
    Opens no connection.

    The URL shows no password and no user: a password in the wrong place of `redislock_url` is read
    as a user's name.
    """
    pool: Any = pools(1.0, _never_called)
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


def _host(options: dict[str, Any]) -> str:
    host, port = options.get("host") or "localhost", options.get("port") or 6379
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _never_called(connection: Any) -> None:
    """Nobody calls this: no connection is opened."""
