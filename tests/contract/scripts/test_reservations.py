"""A reservation under the lock's key: `reserve.lua`, and who takes it over. On a real server and in
memory.
"""

from __future__ import annotations

import dataclasses
import time

import pytest

from celery_redislock import LockUnavailable
from celery_redislock.protocol import calls, holders
from celery_redislock.protocol.claims import NOT_OURS, Acquired, Busy, Claim, Reserved
from celery_redislock.protocol.keys import lock_keys
from celery_redislock.protocol.tokens import new_token
from celery_redislock.servers.node import Node
from celery_redislock.servers.urls import source_from_url
from tests.support.waiting import eventually


def reservation(label, task_id="", attempt=0):
    token = new_token()
    value = holders.encode(
        token, ttl_ms=5000, task="pkg.task", task_id=task_id, attempt=attempt, queued=True
    )
    return Claim(lock_keys("redislock", label), token, 5, value, task_id, attempt)


def delivery(label, task_id="", attempt=0, kept=""):
    token = new_token()
    value = holders.encode(token, ttl_ms=5000, task="pkg.task", task_id=task_id, attempt=attempt)
    keys = lock_keys("redislock", label)
    return Claim(keys, token, 5, value, task_id, attempt, kept=kept)


def test_a_reservation_stands_under_the_locks_key_and_names_who_is_queued(store, inside, label):
    mine = reservation(label, "0c1e")
    assert isinstance(store.run(calls.reserve(mine, 20)), Reserved)
    assert 19_000 < inside.pttl(mine.keys.lock) <= 20_000
    holder = store.ask(calls.holder_of(mine.keys, 5))
    assert (holder.task_id, holder.queued, holder.fence) == ("0c1e", True, None)
    assert abs(holder.acquired_at - time.time()) < 5
    assert str(holder).endswith(", waiting in the queue")

    other = store.run(calls.reserve(reservation(label, "other"), 20))
    assert isinstance(other, Busy)
    assert other.holder.task_id == "0c1e"
    assert isinstance(store.run(calls.acquire(delivery(label, "other"))), Busy)


def test_asked_again_with_its_own_token_it_is_still_reserved(store, label):
    mine = reservation(label)
    assert isinstance(store.run(calls.reserve(mine, 20)), Reserved)
    assert isinstance(store.run(calls.reserve(mine, 20)), Reserved)


def test_the_first_copy_of_the_message_takes_it_over_and_no_other_one(store, inside, label):
    mine = reservation(label, "0c1e")
    store.run(calls.reserve(mine, 20))
    first, copy = (delivery(label, "0c1e", kept=mine.token) for _ in range(2))
    taken = store.run(calls.acquire(first))
    assert isinstance(taken, Acquired)
    assert inside.pttl(mine.keys.lock) <= 5_000
    assert not store.ask(calls.holder_of(mine.keys, 5)).queued
    reply = store.run(calls.acquire(copy))
    assert isinstance(reply, Busy)
    assert reply.relation == "own"
    assert store.run(calls.keep_reserved(mine, 60), once=True).outcome == NOT_OURS
    assert not store.run(calls.settle(mine)).ours
    assert store.run(calls.settle(first)).ours


def test_a_message_that_lost_its_header_is_known_by_its_task(store, label):
    store.run(calls.reserve(reservation(label, "0c1e"), 20))
    assert isinstance(store.run(calls.acquire(delivery(label, "0c1e"))), Acquired)


def test_a_copy_of_an_earlier_attempt_does_not_take_what_is_kept_for_the_next(store, label):
    mine = reservation(label, "0c1e", attempt=1)
    store.run(calls.reserve(mine, 20))
    assert not isinstance(store.run(calls.acquire(delivery(label, "0c1e"))), Acquired)
    assert isinstance(store.run(calls.acquire(delivery(label, "0c1e", attempt=1))), Acquired)


def test_a_lapsed_reservation_is_not_revived(store, inside, label):
    mine = reservation(label)
    store.run(calls.reserve(mine, 0.01))
    eventually(lambda: not inside.exists(mine.keys.lock), "it lapsed")
    assert store.run(calls.keep_reserved(mine, 60), once=True).outcome == NOT_OURS
    assert not inside.exists(mine.keys.lock)


def test_a_foreign_value_is_left_alone(store, inside, label):
    mine = reservation(label)
    inside.rpush(mine.keys.lock, "x")
    reply = store.run(calls.reserve(mine, 20))
    assert isinstance(reply, Busy)
    assert reply.holder.task_id is None
    assert inside.type(mine.keys.lock) == "list"


def test_a_lock_for_several_is_reserved_slot_by_slot(store, label):
    keys = lock_keys("redislock", label, 2)
    claims = [dataclasses.replace(reservation(label, f"{n}"), keys=keys) for n in range(3)]
    replies = [store.run(calls.reserve(claim, 20)) for claim in claims]
    assert [type(reply) for reply in replies] == [Reserved, Reserved, Busy]
    assert replies[2].holder.task_id == "0"
    second = dataclasses.replace(delivery(label, "1", kept=claims[1].token), keys=keys)
    assert isinstance(store.run(calls.acquire(second)), Acquired)
    assert store.run(calls.settle(claims[0])).ours
    assert isinstance(store.run(calls.reserve(claims[2], 20)), Reserved)
    assert store.run(calls.settle(second)).ours


def test_a_servers_restart_is_held_off_here_too(own_redis, label):
    store = Node(source_from_url(own_redis.url))
    store.run(calls.acquire(delivery(label, "runs")))
    own_redis.restart_empty()
    with pytest.raises(LockUnavailable, match="no new locks for"):
        store.run(calls.reserve(reservation(label), 20), hold_off=0)
    store.close()
