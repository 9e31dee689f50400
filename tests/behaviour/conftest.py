"""Fixtures of the acceptance tests: a lock server of each test's own, and who sends and looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from tests.behaviour.apps.house import house
from tests.behaviour.looking import Room, starts
from tests.support.waiting import eventually

HOUSE = "tests.behaviour.apps.house"


@pytest.fixture
def lock_conf(own_redis: Any) -> dict[str, Any]:
    """The settings of workers whose locks are on this test's own server."""
    return {"redislock_url": f"{own_redis.url}/0"}


@pytest.fixture
def lock_client(own_redis: Any) -> Iterator[redis.Redis]:
    with own_redis.client() as client:
        yield client


@pytest.fixture
def room(lock_client: redis.Redis) -> Callable[..., Room]:
    """The room of a task's call."""

    def room(task: Any, *args: Any) -> Room:
        return Room(lock_client, task.lock_key_for(*args))

    return room


@pytest.fixture
def tasks(conf: dict[str, Any], lock_conf: dict[str, Any]) -> Iterator[Any]:
    """The tasks of the house, to be asked for their keys and holders. By name."""
    with house({**conf, **lock_conf}) as app:
        yield app.tasks


@pytest.fixture
def start_house(start_worker: Any, queue: str, lock_conf: dict[str, Any]) -> Callable[..., Any]:
    """Starts a worker of the house, for this test's queue."""

    def start(*arguments: str, **options: Any) -> Any:
        conf = {**lock_conf, **options.pop("conf", {})}
        return start_worker(*arguments, **{"app": HOUSE, "queues": queue, **options, "conf": conf})

    return start


@pytest.fixture
def hold(sender: Celery, queue: str, journal: Any, label: str) -> Callable[..., Any]:
    """Starts a run that holds the label's lock until `journal.let_go(result.id)`."""

    def hold(name: str, **options: Any) -> Any:
        result = sender.send_task(name, [label, "stand"], **{"queue": queue, **options})
        eventually(lambda: starts(journal, label, result.id), "the holder runs")
        return result

    return hold


@pytest.fixture
def hold_open(send: Callable[..., Any], journal: Any, label: str) -> Iterator[Callable[..., Any]]:
    """Starts a run in the module's queue that goes on until the test's end, or is let go."""
    held = []

    def hold_open(name: str, *more: Any, **options: Any) -> Any:
        held.append(send(name, label, "stand", *more, **options))
        eventually(lambda: starts(journal, label, held[-1].id), "it holds")
        return held[-1]

    yield hold_open
    for each in held:
        journal.let_go(each.id)
        each.get(timeout=20)
