"""What the releases of both locks outside of tasks leave to workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from celery_redislock import AsyncRedisLock, RedisLock
from celery_redislock.servers.node import Node
from celery_redislock.servers.urls import source_from_url
from tests.contract.drivers import DB
from tests.contract.scripts.a_room import Room


def in_a_thread(url: str, name: str, meanwhile: Callable[[], None]) -> None:
    with RedisLock(url, name):
        meanwhile()


def in_a_coroutine(url: str, name: str, meanwhile: Callable[[], None]) -> None:
    async def block() -> None:
        async with AsyncRedisLock(url, name):
            meanwhile()

    asyncio.run(block())


@pytest.mark.parametrize("block", [in_a_thread, in_a_coroutine])
def test_a_worker_is_to_look_at_the_room_at_once(redis_server, label, block) -> None:
    """It cannot publish a message itself: nobody may have told it of a broker."""
    url = f"{redis_server.url}/{DB}"
    store = Node(source_from_url(url))
    with redis_server.client(DB) as client:
        room = Room(store, client, label)
        block(url, label, lambda: room.park("task"))

        seconds, micros = client.time()
        now = seconds * 1000 + micros / 1000
        assert client.zscore(room.keys.rooms, room.keys.lock_id) <= now
        assert (room.waiting, room.under_way) == (["task"], {})
        room.published(room.look(), "task")
    store.close()
