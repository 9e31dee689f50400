"""What carries calls: each driver, on which the same tests run. A new one joins the list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import redis

from celery_redislock.servers.factory import server_at
from celery_redislock.servers.server import Server
from celery_redislock.servers.urls import source_from_url
from celery_redislock.testing import MemoryServer

#: The value of the fixture with that name. What nobody asks for is not started.
Fixture = Callable[[str], Any]


class Driver(NamedTuple):
    """A driver.

    Attributes:
        make: makes one, which is in a server that others use too.
        look: a client that looks into what a driver is in, as the driver's maker had it. It decodes
            what it reads, or not.
    """

    make: Callable[[Fixture], Server]
    look: Callable[[Server, Fixture, bool], Any]


#: The database of tests that ask a server without a worker: no worker looks after their rooms.
DB = 4


def _on_redis(fixture: Fixture) -> Server:
    return server_at(source_from_url(f"{fixture('redis_server').url}/{DB}"))


def _look_on_redis(store: Server, fixture: Fixture, decodes: bool) -> redis.Redis:
    return fixture("redis_server").client(DB, decode_responses=decodes)


def _on_cluster(fixture: Fixture) -> Server:
    return server_at(source_from_url(fixture("cluster").url))


def _look_on_cluster(store: Server, fixture: Fixture, decodes: bool) -> Any:
    return fixture("cluster").client(decode_responses=decodes)


def _in_memory(fixture: Fixture) -> Server:
    return MemoryServer()


def _look_in_memory(store: Server, fixture: Fixture, decodes: bool) -> redis.Redis:
    assert isinstance(store, MemoryServer)
    return store.new_client(decode_responses=decodes)


#: All of them. The real server is right, and the others must agree.
DRIVERS = {
    "redis": Driver(_on_redis, _look_on_redis),
    "cluster": Driver(_on_cluster, _look_on_cluster),
    "memory": Driver(_in_memory, _look_in_memory),
}
