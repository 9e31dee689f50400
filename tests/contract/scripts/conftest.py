from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from celery_redislock.protocol.keys import lock_keys
from celery_redislock.servers.server import Server
from tests.support.scripts import stopped_clock

from .a_room import Room


@pytest.fixture(autouse=True)
def _declared(declared_keys: None) -> Iterator[None]:
    """Every key that a script touches is in its KEYS, and the time of a `Room` is its own."""
    with stopped_clock():
        yield


@pytest.fixture(autouse=True)
def _left_alone(request: pytest.FixtureRequest, label: str) -> Iterator[None]:
    """No worker that shares a cluster with these tests looks after their rooms."""
    client = request.getfixturevalue("inside") if "store" in request.fixturenames else None
    yield
    if client is not None:
        for limit in (1, 2, 3):
            of = lock_keys("redislock", label, limit)
            client.zrem(of.rooms, of.lock_id)


@pytest.fixture
def make_room(store: Server, inside: redis.Redis, label: str) -> Callable[..., Room]:
    return lambda limit=1: Room(store, inside, label, limit)


@pytest.fixture
def room(make_room: Callable[..., Room]) -> Room:
    return make_room()
