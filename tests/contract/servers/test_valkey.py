"""Clients of valkey-py, a fork of redis-py, as the source of a lock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import valkey
import valkey.asyncio
import valkey.asyncio.cluster
import valkey.asyncio.sentinel
import valkey.sentinel

from celery_redislock import AsyncRedisLock, ConfigError, RedisLock
from tests.support.servers import RedisServer, SentinelServer, free_port
from tests.support.tls import Certificate


def excludes(source: Any, url: str, label: str) -> None:
    """A lock by this client, and one by the URL, are the same lock."""
    by_url = RedisLock(url, label, ttl=9)
    if type(source).__module__.startswith("valkey.asyncio"):
        with pytest.raises(ConfigError, match="AsyncRedisLock is for asyncio"):
            RedisLock(source, label)
    else:
        with RedisLock(source, label, ttl=9, timeout=0):
            assert not by_url.acquire(timeout=0)

    async def main() -> None:
        async with AsyncRedisLock(source, label, ttl=9, timeout=0):
            assert not by_url.acquire(timeout=0)

    asyncio.run(main())


CLIENTS: dict[str, Callable[..., Any]] = {
    "plain": valkey.Valkey,
    "decoding": lambda port: valkey.Valkey(port=port, decode_responses=True, client_name="mine"),
    "resp3": lambda port: valkey.Valkey(port=port, protocol=3),
    "url": lambda port: valkey.from_url(f"valkey://127.0.0.1:{port}"),
    "blocking_pool": lambda port: valkey.Valkey(
        connection_pool=valkey.BlockingConnectionPool(port=port, max_connections=1)
    ),
    "asyncio": valkey.asyncio.Valkey,
    "asyncio_url": lambda port: valkey.asyncio.from_url(f"valkey://127.0.0.1:{port}"),
}


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_lock_works_like_the_client_that_it_is_given(redis_server, label, kind) -> None:
    excludes(CLIENTS[kind](port=redis_server.port), redis_server.url, label)


@pytest.mark.parametrize("kind", [valkey.ValkeyCluster, valkey.asyncio.cluster.ValkeyCluster])
def test_so_it_does_like_a_client_of_a_cluster(cluster, label, kind) -> None:
    excludes(kind(host="127.0.0.1", port=cluster.nodes[0].port), cluster.url, label)


@pytest.mark.parametrize("module", [valkey.sentinel, valkey.asyncio.sentinel])
def test_so_it_does_like_a_sentinels_client(own_redis, label, module) -> None:
    with SentinelServer({"main": own_redis.port}) as sentinel:
        master = module.Sentinel([("127.0.0.1", sentinel.port)]).master_for("main")
        excludes(master, own_redis.url, label)


def test_so_it_does_like_a_client_with_tls(certificate: Certificate, label) -> None:
    tls_port = free_port()
    with RedisServer("--tls-port", str(tls_port), *certificate.arguments("no")) as server:
        client = valkey.Valkey(port=tls_port, ssl=True, ssl_ca_certs=str(certificate.path))
        excludes(client, server.url, label)
        url = f"valkeys://localhost:{tls_port}?ssl_ca_certs={certificate.path}"
        with RedisLock(url, label, timeout=0):
            assert not RedisLock(server.url, label).acquire(timeout=0)


def test_urls_of_valkey_lead_to_the_same_locks(redis_server, cluster, label) -> None:
    for server, scheme in ((redis_server, "redis"), (cluster, "redis+cluster")):
        url = server.url.replace(scheme, scheme.replace("redis", "valkey"), 1)
        with RedisLock(url, label, timeout=0):
            assert not RedisLock(server.url, label).acquire(timeout=0)
