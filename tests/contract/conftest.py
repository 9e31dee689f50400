"""Fixtures: the drivers, and what the tests of the package's modules look into."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from celery_redislock.servers.node import Node
from celery_redislock.servers.server import Server
from celery_redislock.servers.urls import source_from_url
from tests.support.servers import RedisServer

from . import changed_scripts
from .drivers import DRIVERS, Driver


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> Driver:
    return DRIVERS[request.param]


@pytest.fixture
def store(driver: Driver, request: pytest.FixtureRequest) -> Iterator[Server]:
    """Where the locks are: what holds, holds for every driver."""
    store = driver.make(request.getfixturevalue)
    yield store
    store.close()


@pytest.fixture
def inside(driver: Driver, store: Server, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A client that looks into what `store` is in."""
    with driver.look(store, request.getfixturevalue, True) as client:
        yield client


@pytest.fixture
def raw(driver: Driver, store: Server, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A client that looks into what `store` is in, and decodes nothing."""
    with driver.look(store, request.getfixturevalue, False) as client:
        yield client


@pytest.fixture
def own_store(own_redis: RedisServer) -> Iterator[Server]:
    """On a server of this test's own."""
    store = Node(source_from_url(own_redis.url))
    yield store
    store.close()


@pytest.fixture
def declared_keys() -> Iterator[None]:
    """A script fails that touches a key which was not declared."""
    with changed_scripts.declared_keys():
        yield
