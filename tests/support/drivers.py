"""What carries calls: each driver, on which the same tests run. A new one joins the list."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import redis

from celery_redislock.servers.connections import pools_from_url
from celery_redislock.servers.server import Server
from celery_redislock.testing import MemoryServer
from tests.support.servers import RedisServer


class Driver(NamedTuple):
    """A driver.

    Attributes:
        make: makes one, given the means to a real server that others use too.
        look: a client that looks into what a driver is in, as the driver's maker had it. It decodes
            what it reads, or not.
    """

    make: Callable[[Callable[[], RedisServer]], Server]
    look: Callable[[Server, Callable[[], RedisServer], bool], redis.Redis]


def _on_redis(server: Callable[[], RedisServer]) -> Server:
    return Server(pools_from_url(server().url))


def _look_on_redis(store: Server, server: Callable[[], RedisServer], decodes: bool) -> redis.Redis:
    return redis.Redis(port=server().port, decode_responses=decodes)


def _in_memory(server: Callable[[], RedisServer]) -> Server:
    return MemoryServer()


def _look_in_memory(store: Server, server: Callable[[], RedisServer], decodes: bool) -> redis.Redis:
    assert isinstance(store, MemoryServer)
    return store.new_client(decode_responses=decodes)


#: All of them. The real server is right, and the others must agree.
DRIVERS = {
    "redis": Driver(_on_redis, _look_on_redis),
    "memory": Driver(_in_memory, _look_in_memory),
}
