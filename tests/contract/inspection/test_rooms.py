"""What waits for locks, as `list` and the page read it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from celery_redislock import operations
from celery_redislock.protocol import calls
from tests.support.looking import client_of, lock_of, make_app, take


@pytest.fixture
def app(own_redis, label) -> Iterator[Any]:
    """Its server has no other keys, which a walk would pass over."""
    with make_app(own_redis.url, label) as app:
        yield app


def test_who_has_died_in_its_pool_slot_does_not_wait(app) -> None:
    lock, client = take(app, "sync", "x"), client_of(app)
    idle, now = lock_of(app, "sync", "idle"), time.time() * 1000

    def waiting() -> dict[str, int]:
        return {each.name: each.waiting for each in operations.list_locks(app)}

    alive = now + calls.WAITER_TTL * 1000
    client.zadd(lock["waiters"], {"late": -alive, "dead": now - 1000, "alive": alive})
    client.zadd(idle["waiters"], {"late": -alive, "dead": now - 1000})
    assert waiting() == {lock.name: 1}
    client.zadd(idle["waiters"], {"alive": alive})
    assert waiting() == {lock.name: 1, idle.name: 1}
