from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from celery_redislock.servers.store import Store

from .a_room import Room


@pytest.fixture
def make_room(store: Store, inside: redis.Redis, label: str) -> Callable[..., Room]:
    return lambda limit=1: Room(store, inside, label, limit)


@pytest.fixture
def room(make_room: Callable[..., Room]) -> Room:
    return make_room()
