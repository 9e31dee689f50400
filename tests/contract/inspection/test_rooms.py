"""What waits for locks, as `list` and the page read it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_redislock import operations
from celery_redislock.inspection.rooms import AT_ONCE
from celery_redislock.protocol import calls
from celery_redislock.servers.node import Node
from celery_redislock.web.look import look
from tests.support.looking import client_of, lock_of, make_app, park, run, take


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


@pytest.mark.parametrize(
    "see",
    [
        operations.list_locks,
        look,
        lambda app: json.loads(run(app, "list", "--json").stdout),
        lambda app: run(app, "list").output.splitlines()[1:],
    ],
    ids=["from Python", "the page", "--json", "list"],
)
def test_many_rooms_are_read_in_few_round_trips(
    app, monkeypatch, see: Callable[[Any], Any]
) -> None:
    trips, exchange = 0, Node.exchange

    def counted(self: Node, *args: Any) -> Any:
        nonlocal trips
        trips += 1
        return exchange(self, *args)

    def count() -> int:
        nonlocal trips
        trips = 0
        see(app)
        return trips

    for number in range(AT_ONCE):
        park(app, "report", f"free{number}", f"first{number}")
        park(app, "report", f"free{number}", f"second{number}")
        take(app, "report", f"taken{number}")
        park(app, "report", f"taken{number}", f"next{number}")
    monkeypatch.setattr(Node, "exchange", counted)
    few = count()
    for number in range(AT_ONCE, 2 * AT_ONCE):
        park(app, "report", f"free{number}", f"first{number}")
        take(app, "report", f"taken{number}")
        park(app, "report", f"taken{number}", f"next{number}")
    many = count()
    assert few < 20, "two for each kind, a few to find the keys and to read the slots"
    assert many < few + 12, f"{2 * AT_ONCE} rooms more"
