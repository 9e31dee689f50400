"""A reservation under the lock's key: `reserve.lua`, and who takes it over."""

from __future__ import annotations

import time

import pytest

from celery_redislock import LockUnavailable
from celery_redislock.protocol import calls, holders
from celery_redislock.protocol.claims import NOT_OURS, Acquired, Busy, Claim, Reserved
from celery_redislock.protocol.keys import lock_keys
from celery_redislock.protocol.tokens import new_token
from tests.contract.claims import make_claim
from tests.contract.scripts.a_room import TTL, Room


def reservation(label, task_id="", attempt=0):
    token = new_token()
    run = {"task": "pkg.task", "task_id": task_id, "attempt": attempt, "queued": True}
    value = holders.encode(token, ttl_ms=5000, **run)
    return Claim(lock_keys("redislock", label), token, 5, value, task_id, attempt)


def reserve(room: Room, task: str, attempt: int = 0) -> Claim:
    claim = room.claim(task, attempt, says={"queued": True})
    assert room.store.run(calls.reserve(claim, 600)) == Reserved()
    return claim


def test_a_reservation_stands_under_the_locks_key_and_names_who_is_queued(room: Room) -> None:
    mine = reserve(room, "mine")
    assert room.store.run(calls.reserve(mine, 900)) == Reserved(), "asked again"

    assert 600_000 < room.client.pttl(room.keys.lock) <= 900_000
    holder = room.store.ask(calls.holder_of(room.keys, TTL))
    assert (holder.task_id, holder.queued, holder.fence) == (room.task_id("mine"), True, None)
    assert abs(holder.acquired_at - time.time()) < 60
    assert str(holder).endswith(", waiting in the queue")

    other = room.store.run(calls.reserve(room.claim("other"), 20))
    assert isinstance(other, Busy)
    assert other.holder.task_id == room.ask("other").holder.task_id == room.task_id("mine")


def test_the_first_copy_of_the_message_takes_it_over_and_no_other_one(room: Room) -> None:
    mine = reserve(room, "mine")

    first = room.take("mine", kept=mine.token)
    assert room.client.pttl(room.keys.lock) <= TTL * 1000
    assert not room.store.ask(calls.holder_of(room.keys, TTL)).queued

    assert room.ask("mine", kept=mine.token).relation == "own"
    assert room.store.run(calls.keep_reserved(mine, 60), once=True).outcome == NOT_OURS
    assert not room.settle(mine).ours
    assert room.settle(first).ours


def test_a_message_that_lost_its_header_is_known_by_its_task(room: Room) -> None:
    reserve(room, "mine")
    room.take("mine")


def test_a_copy_of_an_earlier_attempt_does_not_take_what_is_kept_for_the_next(room: Room) -> None:
    reserve(room, "mine", attempt=1)
    assert not isinstance(room.store.run(calls.acquire(room.claim("mine"))), Acquired)
    room.take("mine", attempt=1)


def test_a_lapsed_reservation_is_not_revived(room: Room) -> None:
    mine = reserve(room, "mine")
    room.dies()
    assert room.store.run(calls.keep_reserved(mine, 60), once=True).outcome == NOT_OURS
    assert not room.client.exists(room.keys.lock)


def test_a_foreign_value_is_left_alone(room: Room) -> None:
    room.client.rpush(room.keys.lock, "x")
    reply = room.store.run(calls.reserve(room.claim("mine"), 20))
    assert isinstance(reply, Busy)
    assert reply.holder.task_id is None
    assert room.client.type(room.keys.lock) == "list"


def test_a_lock_for_several_is_reserved_slot_by_slot(make_room) -> None:
    room = make_room(2)
    first, second = reserve(room, "first"), reserve(room, "second")
    third = room.store.run(calls.reserve(room.claim("third"), 20))
    assert isinstance(third, Busy)
    assert third.holder.task_id == room.task_id("first")

    runs = room.take("second", kept=second.token)
    assert room.settle(first).ours
    reserve(room, "third")
    assert room.settle(runs).ours


def test_a_servers_restart_is_held_off_here_too(own_store, own_redis, label) -> None:
    own_store.run(calls.acquire(make_claim(label, ttl=5)))
    own_redis.restart_empty()
    with pytest.raises(LockUnavailable, match="no new locks for"):
        own_store.run(calls.reserve(reservation(label), 20), hold_off=0)
