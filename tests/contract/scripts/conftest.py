"""One server is enough here: `servers/test_store.py` has what each driver carries."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from celery_redislock.servers.node import Node
from celery_redislock.servers.server import Server
from celery_redislock.servers.urls import source_from_url
from tests.contract.changed_scripts import stopped_clock
from tests.contract.drivers import DB
from tests.support.servers import RedisServer

from .a_room import Room


@pytest.fixture(scope="session")
def _one(redis_server: RedisServer) -> Iterator[tuple[Server, redis.Redis]]:
    store = Node(source_from_url(f"{redis_server.url}/{DB}"))
    with redis_server.client(DB) as client:
        yield store, client
    store.close()


@pytest.fixture
def store(_one: tuple[Server, redis.Redis]) -> Server:
    return _one[0]


@pytest.fixture
def inside(_one: tuple[Server, redis.Redis]) -> redis.Redis:
    return _one[1]


@pytest.fixture(autouse=True)
def _declared(declared_keys: None) -> Iterator[None]:
    """Every key that a script touches is in its KEYS, and the time of a `Room` is its own."""
    with stopped_clock():
        yield


@pytest.fixture
def make_room(store: Server, inside: redis.Redis, label: str) -> Callable[..., Room]:
    return lambda limit=1: Room(store, inside, label, limit)


@pytest.fixture
def room(make_room: Callable[..., Room]) -> Room:
    return make_room()
