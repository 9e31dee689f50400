"""The store: each script's rules on a real server, and what goes wrong on the way to it."""

from __future__ import annotations

import contextlib
import gc
import json
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from celery_redislock import Holder, LockUnavailable, _holder
from celery_redislock._connect import pools_from_url
from celery_redislock._keys import BUCKETS, lock_keys
from celery_redislock._lock import new_token
from celery_redislock._store import (
    EXTENDED,
    NOT_OURS,
    RESERVE,
    RETAKEN,
    WAITER_TTL,
    Acquired,
    Busy,
    Claim,
    Done,
    Extension,
    Store,
    patience,
    to_ms,
)
from tests.support.servers import Proxy, RedisServer, free_port
from tests.support.waiting import eventually


def make_claim(
    name: str, ttl: float = 30.0, task_id: str = "", attempt: int = 0, prefix: str = "redislock"
) -> Claim:
    """A claim with a token of its own, as each delivery has one."""
    token = new_token()
    value = _holder.encode(
        token, ttl_ms=to_ms(ttl), task="pkg.task", task_id=task_id, attempt=attempt
    )
    return Claim(lock_keys(prefix, name), token, ttl, value, task_id, attempt)


def taken(reply: Any) -> Acquired:
    assert isinstance(reply, Acquired), reply
    return reply


def busy(reply: Any) -> Busy:
    assert isinstance(reply, Busy), reply
    return reply


def extension(claim: Claim, reply: Acquired, retake: bool = True) -> Extension:
    return Extension(claim, reply.value, reply.fence, retake)


@pytest.fixture
def store(redis_server: RedisServer) -> Iterator[Store]:
    store = Store(pools_from_url(redis_server.url))
    yield store
    store.close()


@pytest.fixture
def own_store(own_redis: RedisServer) -> Iterator[Store]:
    """On a server of this test's own."""
    store = Store(pools_from_url(own_redis.url))
    yield store
    store.close()


# -- taking -----------------------------------------------------------------------------------


def test_a_lock_stands_in_redis_as_json_that_names_its_holder(store, client, label) -> None:
    claim = make_claim(label, ttl=5, task_id="0c1e", attempt=2)
    reply = taken(store.acquire(claim))
    record = json.loads(client.get(claim.keys.lock))
    assert record["token"] == claim.token
    assert (record["task"], record["task_id"], record["attempt"]) == ("pkg.task", "0c1e", 2)
    assert record["node"] == socket.gethostname()
    assert record["fence"] == reply.fence
    assert abs(record["acquired_at"] - time.time()) < 5
    assert 4000 < client.pttl(claim.keys.lock) <= 5000


def test_who_holds_a_lock_can_be_asked(store, label) -> None:
    claim = make_claim(label, ttl=5, task_id="0c1e", attempt=2)
    assert store.holder(claim.keys, 5) is None
    reply = taken(store.acquire(claim))
    holder = store.holder(claim.keys, 5)
    assert (holder.task, holder.task_id, holder.attempt) == ("pkg.task", "0c1e", 2)
    assert holder.fence == reply.fence
    assert 4 < holder.ttl <= 5
    assert not holder.held_for_retry


def test_a_held_lock_is_busy_and_names_its_holder(store, label) -> None:
    taken(store.acquire(make_claim(label, ttl=5, task_id="first")))
    reply = busy(store.acquire(make_claim(label, task_id="second")))
    assert reply.relation == "other"
    assert reply.holder.task_id == "first"
    assert 4 < reply.remaining <= 5


def test_asking_again_with_the_same_token_gets_the_same_lock_and_a_full_life(
    store, client, label
) -> None:
    claim = make_claim(label)
    first = taken(store.acquire(claim))
    client.pexpire(claim.keys.lock, 1000)
    again = taken(store.acquire(claim))
    assert (again.fence, again.value) == (first.fence, first.value)
    assert client.pttl(claim.keys.lock) > 29_000


def test_a_lapsed_lock_is_free(store, client, label) -> None:
    claim = make_claim(label)
    taken(store.acquire(claim))
    client.pexpire(claim.keys.lock, 1)
    eventually(lambda: not client.exists(claim.keys.lock), "it lapses")
    taken(store.acquire(make_claim(label)))
    assert store.extend([extension(claim, Acquired(claim.value, 1, 0.0))]) == [NOT_OURS]


# -- values that are not ours -----------------------------------------------------------------

FOREIGN: dict[str, Callable[[redis.Redis, str], Any]] = {
    "text": lambda client, key: client.set(key, "locked by somebody else"),
    "nothing": lambda client, key: client.set(key, ""),
    "bytes": lambda client, key: client.set(key, b"\xff\xfe\x00"),
    "number": lambda client, key: client.set(key, "5"),
    "json": lambda client, key: client.set(key, '{"owner": "x"}'),
    "token_number": lambda client, key: client.set(key, '{"token": 5}'),
    "json_list": lambda client, key: client.set(key, '["token"]'),
    "deep": lambda client, key: client.set(key, "[" * 200_000),
    "hash": lambda client, key: client.hset(key, "token", "x"),
    "list": lambda client, key: client.rpush(key, "x"),
    "zset": lambda client, key: client.zadd(key, {"x": 1}),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_value_is_held_and_no_operation_touches_it(store, client, label, kind) -> None:
    claim = make_claim(label, task_id="t")
    FOREIGN[kind](client, claim.keys.lock)
    raw = redis.Redis(**{**client.connection_pool.connection_kwargs, "decode_responses": False})
    before = raw.dump(claim.keys.lock)

    for how in ("try", "wait", "woken", "last"):
        reply = busy(store.acquire(claim, how))
        assert reply.relation == "foreign"
        assert reply.remaining == float("inf")
        assert reply.holder == Holder(ttl=float("inf"))
    held = Extension(claim, claim.value, 5, True)
    assert store.extend([held]) == [NOT_OURS]
    assert store.release(claim, "1", always=True) is False
    assert store.hold(claim, claim.value, 5) is False
    assert store.break_lock(claim.keys, 30) is None
    assert store.holder(claim.keys, 30) == Holder()
    assert str(store.holder(claim.keys, 30)) == "a foreign value"

    assert raw.dump(claim.keys.lock) == before
    assert raw.pttl(claim.keys.lock) == -1
    raw.close()


def test_a_foreign_value_that_lapses_frees_the_lock(store, client, label) -> None:
    claim = make_claim(label)
    client.set(claim.keys.lock, "somebody", px=20_000)
    reply = busy(store.acquire(claim))
    assert 0 < reply.remaining <= 20
    client.pexpire(claim.keys.lock, 1)
    eventually(lambda: isinstance(store.acquire(claim), Acquired), "it lapses")


# -- keeping and giving back ------------------------------------------------------------------


def test_an_extension_gives_the_lock_its_whole_life_again(store, client, label) -> None:
    claim = make_claim(label)
    reply = taken(store.acquire(claim))
    client.pexpire(claim.keys.lock, 1000)
    assert store.extend([extension(claim, reply)]) == [EXTENDED]
    assert client.pttl(claim.keys.lock) > 29_000


def test_many_locks_are_extended_at_once_and_each_has_its_own_answer(store, client, label) -> None:
    claims = [make_claim(f"{label}{number}", ttl=10 + number) for number in range(5)]
    replies = [taken(store.acquire(claim)) for claim in claims]
    client.delete(claims[1].keys.lock)
    client.set(claims[2].keys.lock, "a thief")
    client.delete(claims[3].keys.lock)
    wanted = [extension(claim, reply) for claim, reply in zip(claims, replies, strict=True)]
    wanted[3] = extension(claims[3], replies[3], retake=False)
    assert store.extend(wanted) == [EXTENDED, RETAKEN, NOT_OURS, NOT_OURS, EXTENDED]
    assert client.pttl(claims[4].keys.lock) > 13_000


def test_a_loser_neither_extends_nor_releases_nor_keeps_what_another_holds(
    store, client, label
) -> None:
    loser, winner = make_claim(label), make_claim(label)
    lost = taken(store.acquire(loser))
    client.delete(loser.keys.lock)
    taken(store.acquire(winner))
    before = client.get(winner.keys.lock)
    client.pexpire(winner.keys.lock, 5000)

    assert store.extend([extension(loser, lost)]) == [NOT_OURS]
    assert store.release(loser) is False
    assert store.hold(loser, lost.value, 30) is False

    assert client.get(winner.keys.lock) == before
    assert client.pttl(winner.keys.lock) <= 5000


def test_a_release_frees_the_lock_and_a_second_one_does_nothing(store, client, label) -> None:
    claim, other = make_claim(label), make_claim(label)
    taken(store.acquire(claim))
    assert store.release(claim) is True
    assert not client.exists(claim.keys.lock)
    assert store.release(claim) is False
    taken(store.acquire(other))
    assert store.release(claim) is False
    assert json.loads(client.get(claim.keys.lock))["token"] == other.token


def test_a_token_that_only_begins_like_the_holders_is_another(store, label) -> None:
    claim = make_claim(label)
    taken(store.acquire(claim))
    short = Claim(claim.keys, claim.token[:-1], 30, claim.value)
    assert store.release(short) is False
    assert store.extend([Extension(short, '{"token":"' + short.token + '"}', 1, True)]) == [0]


# -- keys that vanish -------------------------------------------------------------------------


def test_a_vanished_lock_is_taken_again_as_it_was(store, client, label) -> None:
    claim = make_claim(label)
    reply = taken(store.acquire(claim))
    client.delete(claim.keys.lock)
    assert store.extend([extension(claim, reply)]) == [RETAKEN]
    assert client.get(claim.keys.lock) == reply.value
    assert client.pttl(claim.keys.lock) > 29_000
    assert store.release(claim) is True


def test_a_vanished_lock_is_not_taken_again_past_the_holders_right(store, client, label) -> None:
    claim = make_claim(label)
    reply = taken(store.acquire(claim))
    client.delete(claim.keys.lock)
    assert store.extend([extension(claim, reply, retake=False)]) == [NOT_OURS]
    assert not client.exists(claim.keys.lock)


def test_a_vanished_lock_that_somebody_took_is_lost(store, client, label) -> None:
    claim = make_claim(label)
    reply = taken(store.acquire(claim))
    client.delete(claim.keys.lock)
    taken(store.acquire(make_claim(label)))
    assert store.extend([extension(claim, reply)]) == [NOT_OURS]


def test_a_lock_kept_for_a_waiter_is_not_taken_again(store, client, label) -> None:
    claim, waiter = make_claim(label), make_claim(label)
    reply = taken(store.acquire(claim))
    busy(store.acquire(waiter, "wait"))
    assert store.release(claim) is True
    assert store.extend([extension(claim, reply)]) == [NOT_OURS]


def test_after_a_break_the_holder_does_not_take_the_lock_again(store, client, label) -> None:
    claim = make_claim(label, task_id="0c1e")
    reply = taken(store.acquire(claim))
    assert store.break_lock(claim.keys, 30).task_id == "0c1e"
    assert not client.exists(claim.keys.lock)
    assert store.extend([extension(claim, reply)]) == [NOT_OURS]
    assert store.break_lock(claim.keys, 30) is None
    taken(store.acquire(make_claim(label)))


def test_of_two_locks_broken_one_after_the_other_neither_comes_back(store, client, label) -> None:
    first, second = make_claim(label), make_claim(label)
    held = taken(store.acquire(first))
    store.break_lock(first.keys, 30)
    also_held = taken(store.acquire(second))
    store.break_lock(first.keys, 30)
    assert store.extend([extension(first, held)]) == [NOT_OURS]
    assert store.extend([extension(second, also_held)]) == [NOT_OURS]


def test_the_mark_of_a_break_goes_once_the_holder_has_no_right_any_more(
    store, client, label
) -> None:
    claim = make_claim(label, ttl=5)
    taken(store.acquire(claim))
    store.break_lock(claim.keys, 30)
    assert 4000 < client.pttl(claim.keys.broken) <= 5000


# -- fences -----------------------------------------------------------------------------------


def test_a_fence_rises_with_each_acquisition(store, client, label) -> None:
    fences = []
    for _ in range(20):
        claim = make_claim(label)
        fences.append(taken(store.acquire(claim)).fence)
        store.release(claim)
    assert fences == sorted(set(fences))


def test_a_fence_rises_across_the_locks_expiry(store, client, label) -> None:
    claim = make_claim(label)
    first = taken(store.acquire(claim)).fence
    client.delete(claim.keys.lock)
    assert taken(store.acquire(make_claim(label))).fence > first


def test_a_fence_rises_across_a_flush(own_store, own_redis, label) -> None:
    first = taken(own_store.acquire(make_claim(label))).fence
    with own_redis.client() as client:
        client.flushall()
    assert taken(own_store.acquire(make_claim(label))).fence > first


def test_a_fence_rises_also_if_the_servers_clock_was_set_back(store, client, label) -> None:
    ahead = (int(time.time()) + 86_400) * 1_000_000
    client.set(make_claim(label).keys.fence, ahead)
    for number in (1, 2, 3):
        claim = make_claim(label)
        assert taken(store.acquire(claim)).fence == ahead + number
        store.release(claim)
    client.delete(claim.keys.fence)  # other tests' locks have this counter too


def test_a_fence_rises_above_that_of_a_lock_that_was_taken_again(store, client, label) -> None:
    claim = make_claim(label)
    reply = taken(store.acquire(claim))
    ahead = reply.fence + 86_400_000_000  # given out when the server's clock was ahead
    client.delete(claim.keys.lock, claim.keys.fence)
    assert store.extend([Extension(claim, reply.value, ahead, True)]) == [RETAKEN]
    store.release(claim)
    assert taken(store.acquire(make_claim(label))).fence > ahead
    client.delete(claim.keys.fence)


# -- copies of a message ----------------------------------------------------------------------


def test_a_redelivered_copy_meets_its_own_lock_and_leaves_a_note(store, client, label) -> None:
    claim, copy = (make_claim(label, task_id="t", attempt=1) for _ in range(2))
    reply = taken(store.acquire(claim))
    client.pexpire(claim.keys.lock, 20_000)
    for _ in range(2):
        answer = busy(store.acquire(copy))
        assert answer.relation == "own"
        assert answer.holder.task_id == "t"
    record = json.loads(client.get(claim.keys.lock))
    assert record["redelivered"] is True
    assert record["token"] == claim.token
    assert client.pttl(claim.keys.lock) <= 20_000
    assert taken(store.acquire(claim)).fence == reply.fence
    assert store.extend([extension(claim, reply)]) == [EXTENDED]
    assert store.release(claim) is True


@pytest.mark.parametrize("done", ["0", "1"])
def test_a_copy_that_was_seen_learns_that_the_attempt_has_run(store, label, done) -> None:
    claim, copy = (make_claim(label, task_id=label) for _ in range(2))
    taken(store.acquire(claim))
    busy(store.acquire(copy))
    store.release(claim, done)
    for how in ("try", "wait"):
        reply = store.acquire(copy, how)
        assert isinstance(reply, Done)
        assert reply.expects_result is (done == "1")
        assert 0 <= reply.age < 5


def test_a_finished_attempt_leaves_no_mark_if_no_copy_was_seen(store, client, label) -> None:
    claim, copy = (make_claim(label, task_id=label) for _ in range(2))
    taken(store.acquire(claim))
    store.release(claim, "1")
    assert not client.exists(claim.done_key)
    taken(store.acquire(copy))


def test_a_finished_attempt_leaves_its_mark_if_told_to(store, client, label) -> None:
    claim, copy = (make_claim(label, task_id=label) for _ in range(2))
    taken(store.acquire(claim))
    store.release(claim, "1", always=True)
    assert isinstance(store.acquire(copy), Done)
    assert 500 < client.ttl(claim.done_key) <= 600


def test_a_finished_attempt_whose_lock_is_gone_leaves_its_mark(store, client, label) -> None:
    claim, copy = (make_claim(label, task_id=label) for _ in range(2))
    taken(store.acquire(claim))
    busy(store.acquire(copy))
    client.delete(claim.keys.lock)
    assert store.release(claim, "1") is False
    assert isinstance(store.acquire(copy), Done)


def test_an_attempt_that_did_not_run_to_its_end_leaves_no_mark(store, client, label) -> None:
    claim, copy = (make_claim(label, task_id=label) for _ in range(2))
    taken(store.acquire(claim))
    busy(store.acquire(copy))
    store.release(claim, "", always=True)
    assert not client.exists(claim.done_key)
    taken(store.acquire(copy))


def test_a_mark_tells_how_long_ago_the_attempt_ended(store, client, label) -> None:
    claim, copy = (make_claim(label, task_id=label) for _ in range(2))
    taken(store.acquire(claim))
    store.release(claim, "1", always=True)
    client.pexpire(claim.done_key, 590_000)
    assert 10 <= store.acquire(copy).age < 15


def test_a_mark_is_of_one_attempt_of_one_task(store, label) -> None:
    claim = make_claim(label, task_id=label, attempt=1)
    taken(store.acquire(claim))
    store.release(claim, "1", always=True)
    for other in (
        make_claim(label, task_id=label, attempt=2),
        make_claim(label, task_id=label, attempt=0),
        make_claim(label, task_id=f"{label}2", attempt=1),
        make_claim(label),
    ):
        taken(store.acquire(other))
        store.release(other)


def test_a_finished_attempt_runs_again_if_its_result_never_came(store, label) -> None:
    claim, copy = (make_claim(label, task_id=label) for _ in range(2))
    taken(store.acquire(claim))
    store.release(claim, "1", always=True)
    taken(store.acquire(copy, again=True))


# -- retries ----------------------------------------------------------------------------------


def test_a_retry_waits_for_its_earlier_attempt_while_that_is_alive(store, label) -> None:
    first = make_claim(label, task_id="t", attempt=0)
    taken(store.acquire(first))
    reply = busy(store.acquire(make_claim(label, task_id="t", attempt=1)))
    assert reply.relation == "earlier"
    assert reply.holder.attempt == 0


def test_a_retry_takes_over_from_an_attempt_that_missed_its_heartbeats(
    store, client, label
) -> None:
    first = make_claim(label, task_id="t", attempt=0)
    retry = make_claim(label, task_id="t", attempt=1)
    held = taken(store.acquire(first))
    client.pexpire(first.keys.lock, 16_000)
    assert busy(store.acquire(retry)).relation == "earlier"
    client.pexpire(first.keys.lock, 14_000)
    assert taken(store.acquire(retry)).fence > held.fence
    assert store.extend([extension(first, held)]) == [NOT_OURS]
    assert store.release(first) is False


def test_a_copy_of_an_earlier_attempt_is_done(store, label) -> None:
    taken(store.acquire(make_claim(label, task_id="t", attempt=2)))
    reply = store.acquire(make_claim(label, task_id="t", attempt=1))
    assert isinstance(reply, Done)
    assert not reply.expects_result


def test_a_lock_that_is_kept_for_the_retry_goes_to_it_and_to_nobody_else(
    store, client, label
) -> None:
    first = make_claim(label, task_id=label, attempt=0)
    held = taken(store.acquire(first))
    assert store.hold(first, held.value, 40) is True
    assert 39_000 < client.pttl(first.keys.lock) <= 40_000
    holder = store.holder(first.keys, 30)
    assert (holder.task_id, holder.attempt, holder.held_for_retry) == (label, 0, True)
    assert holder.fence == held.fence

    assert busy(store.acquire(make_claim(label, task_id="other"))).relation == "other"
    assert store.extend([extension(first, held)]) == [NOT_OURS]
    assert store.release(first) is False
    retry = make_claim(label, task_id=label, attempt=1)
    assert taken(store.acquire(retry)).fence > held.fence
    assert store.release(retry) is True


def test_a_copy_of_the_attempt_that_kept_its_lock_is_done(store, label) -> None:
    claim, copy = (make_claim(label, task_id=label) for _ in range(2))
    held = taken(store.acquire(claim))
    store.hold(claim, held.value, 40)
    reply = store.acquire(copy)
    assert isinstance(reply, Done)
    assert not reply.expects_result


def test_a_kept_lock_can_be_broken(store, label) -> None:
    claim = make_claim(label, task_id=label)
    held = taken(store.acquire(claim))
    store.hold(claim, held.value, 40)
    assert store.break_lock(claim.keys, 30).held_for_retry is True
    taken(store.acquire(make_claim(label)))


# -- waiters ----------------------------------------------------------------------------------


def waiting(client: redis.Redis, claim: Claim) -> list[str]:
    return client.zrange(claim.keys.waiters, 0, -1)


def reserve_for_longer(client: redis.Redis, claim: Claim) -> None:
    """Keep a reservation for as long as a slow test needs."""
    assert json.loads(client.get(claim.keys.lock)).get("reserved") is True
    assert 0 < client.pttl(claim.keys.lock) <= RESERVE * 1000
    client.pexpire(claim.keys.lock, 60_000)


def test_only_who_waits_is_written_down(store, client, label) -> None:
    taken(store.acquire(make_claim(label)))
    for how, counted in (("try", 0), ("last", 0), ("wait", 1), ("woken", 1)):
        claim = make_claim(label)
        busy(store.acquire(claim, how))
        assert len(waiting(client, claim)) == counted
        store.acquire(claim, "last")
        assert waiting(client, claim) == []


def test_without_a_waiter_a_released_lock_is_simply_gone(store, client, label) -> None:
    claim = make_claim(label)
    taken(store.acquire(claim))
    store.release(claim)
    assert not client.exists(claim.keys.lock, claim.keys.wake, claim.keys.waiters)


def test_a_released_lock_is_kept_for_a_waiter_for_a_moment(store, client, label) -> None:
    holder, waiter, newcomer = (make_claim(label) for _ in range(3))
    taken(store.acquire(holder))
    busy(store.acquire(waiter, "wait"))
    assert store.release(holder) is True
    reserve_for_longer(client, holder)
    assert store.holder(holder.keys, 30) is None
    reply = busy(store.acquire(newcomer, "wait"))
    assert (reply.relation, reply.holder) == ("reserved", None)
    taken(store.acquire(waiter, "woken"))
    assert waiting(client, waiter) == [newcomer.opening]


def test_who_tries_only_once_may_go_before_a_waiter(store, client, label) -> None:
    holder, waiter = make_claim(label), make_claim(label)
    taken(store.acquire(holder))
    busy(store.acquire(waiter, "wait"))
    store.release(holder)
    reserve_for_longer(client, holder)
    taken(store.acquire(make_claim(label), "try"))
    assert busy(store.acquire(waiter, "woken")).relation == "other"
    assert waiting(client, waiter) == [waiter.opening]


def test_a_waiter_at_the_end_of_its_patience_may_take_what_is_kept_for_another(
    store, client, label
) -> None:
    holder, waiter, impatient = (make_claim(label) for _ in range(3))
    taken(store.acquire(holder))
    busy(store.acquire(waiter, "wait"))
    store.release(holder)
    reserve_for_longer(client, holder)
    taken(store.acquire(impatient, "last"))


def test_a_reservation_that_nobody_takes_up_lapses(store, client, label) -> None:
    holder, waiter, newcomer = (make_claim(label) for _ in range(3))
    taken(store.acquire(holder))
    busy(store.acquire(waiter, "wait"))
    store.release(holder)
    eventually(lambda: isinstance(store.acquire(newcomer, "wait"), Acquired), "it lapses", 5)


def test_a_lock_is_not_kept_for_waiters_that_are_dead(store, client, label) -> None:
    holder, waiter = make_claim(label), make_claim(label)
    taken(store.acquire(holder))
    busy(store.acquire(waiter, "wait"))
    assert 0 < client.pttl(waiter.keys.waiters) <= WAITER_TTL * 1000
    client.zadd(waiter.keys.waiters, {waiter.opening: (time.time() - 1) * 1000})
    store.release(holder)
    assert not client.exists(holder.keys.lock, holder.keys.waiters, holder.keys.wake)


def test_a_release_wakes_one_waiter(store, client, label) -> None:
    holder, first, second = (make_claim(label) for _ in range(3))
    taken(store.acquire(holder))
    busy(store.acquire(first, "wait"))
    busy(store.acquire(second, "wait"))
    store.release(holder)
    client.persist(holder.keys.wake)
    assert store.await_wake(first, 5) is True
    assert store.await_wake(second, 0.05) is False


def test_a_waiter_sleeps_until_it_is_woken(store, client, label) -> None:
    holder, waiter = make_claim(label), make_claim(label)
    taken(store.acquire(holder))
    busy(store.acquire(waiter, "wait"))
    woken: list[Any] = []
    thread = threading.Thread(target=lambda: woken.append(store.await_wake(waiter, 5)))
    thread.start()
    eventually(lambda: client.info("clients")["blocked_clients"], "it sleeps in the server")
    store.release(holder)
    thread.join(5)
    assert woken == [True]


def test_a_waiter_sleeps_no_longer_than_it_was_told_to(store, label) -> None:
    started = time.monotonic()
    assert store.await_wake(make_claim(label), 0.2) is False
    assert 0.1 < time.monotonic() - started < 3


def test_a_break_wakes_a_waiter(store, client, label) -> None:
    holder, waiter = make_claim(label), make_claim(label)
    taken(store.acquire(holder))
    busy(store.acquire(waiter, "wait"))
    store.break_lock(holder.keys, 30)
    assert store.await_wake(waiter, 5) is True
    taken(store.acquire(waiter, "woken"))


# -- what is left behind ----------------------------------------------------------------------


def test_any_number_of_locks_leaves_a_bounded_number_of_keys(own_store, own_redis) -> None:
    for number in range(3 * BUCKETS):
        claim = make_claim(str(number), task_id=str(number))
        waiter = make_claim(str(number))
        taken(own_store.acquire(claim))
        if number % 50 == 0:
            busy(own_store.acquire(waiter, "wait"))
        own_store.release(claim, "1", always=number % 50 == 1)
    with own_redis.client() as client:
        lasting = [key for key in client.scan_iter(count=1000) if client.pttl(key) == -1]
        assert 0 < len(lasting) <= BUCKETS
        assert all(key.endswith(":fence") for key in lasting)


# -- trouble on the way -----------------------------------------------------------------------


def every_operation(store: Store, name: str, ttl: float) -> dict[str, Callable[[], Any]]:
    claim = make_claim(name, ttl=ttl)
    return {
        "acquire": lambda: store.acquire(claim),
        "wait": lambda: store.acquire(claim, "wait"),
        "extend": lambda: store.extend([Extension(claim, claim.value, 1, True)]),
        "release": lambda: store.release(claim, "1", always=True),
        "hold": lambda: store.hold(claim, claim.value, ttl),
        "break_lock": lambda: store.break_lock(claim.keys, ttl),
        "holder": lambda: store.holder(claim.keys, ttl),
    }


def test_scripts_that_the_server_forgot_are_sent_again(own_store, own_redis, label) -> None:
    claims = [make_claim(f"{label}{number}") for number in range(3)]
    with own_redis.client() as client:
        client.script_flush()
        replies = [taken(own_store.acquire(claim)) for claim in claims]
        client.script_flush()
        wanted = [extension(claim, reply) for claim, reply in zip(claims, replies, strict=True)]
        assert own_store.extend(wanted) == [EXTENDED] * 3
        client.script_flush()
        assert own_store.release(claims[0]) is True
        client.script_flush()
        assert own_store.hold(claims[1], replies[1].value, 30) is True
        client.script_flush()
        assert own_store.break_lock(claims[2].keys, 30) is not None
        client.script_flush()
        assert own_store.extend(wanted) == [RETAKEN, NOT_OURS, NOT_OURS]


@contextlib.contextmanager
def full_server(tmp_path: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    with RedisServer("--maxmemory-policy", "noeviction") as server, server.client() as client:
        client.set("big", "x" * 100_000)
        client.config_set("maxmemory", "1mb")
        yield server.url, lambda: client.config_set("maxmemory", "0")


@contextlib.contextmanager
def replica(tmp_path: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    with RedisServer("--replicaof", f"127.0.0.1 {free_port()}") as server:
        with server.client() as client:
            yield server.url, lambda: client.replicaof("no", "one")


@contextlib.contextmanager
def stale_replica(tmp_path: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    options = ("--replicaof", f"127.0.0.1 {free_port()}", "--replica-serve-stale-data", "no")
    with _Reachable(*options) as server, server.client() as client:
        yield server.url, lambda: client.replicaof("no", "one")


@contextlib.contextmanager
def guarded_server(tmp_path: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    with RedisServer() as server, server.client() as client:
        client.config_set("requirepass", "secret")
        yield server.url, lambda: client.config_set("requirepass", "")


@contextlib.contextmanager
def loading_server(tmp_path: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """A server that loads for as long as the test likes: it pauses after each key."""
    folder = ("--dir", str(tmp_path), "--dbfilename", "dump.rdb")
    with RedisServer(*folder) as server, server.client() as client:
        client.mset({f"key{number}": "x" * 2000 for number in range(1000)})
        client.save()
    slow = ("--key-load-delay", "50000", "--loading-process-events-interval-bytes", "1024")
    with _Reachable(*folder, "--rdbcompression", "no", *slow) as server, server.client() as client:

        def finish() -> None:
            client.config_set("key-load-delay", 0)
            eventually(server.answers, "it has loaded")

        yield server.url, finish


@contextlib.contextmanager
def silent_port(tmp_path: Path) -> Iterator[tuple[str, None]]:
    """Nobody listens there."""
    yield f"redis://127.0.0.1:{free_port()}", None


@contextlib.contextmanager
def other_protocol(tmp_path: Path) -> Iterator[tuple[str, None]]:
    """Something listens there that is no Redis."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(100)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    threading.Thread(target=serve, daemon=True).start()
    yield f"redis://127.0.0.1:{listener.getsockname()[1]}", None
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


class _Reachable(RedisServer):
    """A server that is up once it says anything at all."""

    def answers(self) -> bool:
        try:
            return super().answers() or bool(self.client().execute_command("ECHO", ""))
        except (redis.BusyLoadingError, redis.ResponseError):
            return True
        except redis.ConnectionError:
            return False


TROUBLE: dict[Any, str] = {
    full_server: "OOM|used memory",
    replica: "(?i)read.?only",
    stale_replica: "MASTERDOWN|Link with MASTER",
    guarded_server: "(?i)auth",
    loading_server: "(?i)loading",
    silent_port: "(?i)refused",
    other_protocol: "Protocol|Invalid|Connection",
}
#: What a server in that trouble can do all the same.
POSSIBLE = {
    full_server: {"extend", "release", "break_lock", "holder"},
    replica: {"holder", "extend", "break_lock", "release"},
}


@pytest.mark.parametrize("trouble", TROUBLE, ids=lambda trouble: trouble.__name__)
def test_what_a_server_in_trouble_says_is_told_and_soon(tmp_path, label, trouble) -> None:
    ttl = 1.0
    with trouble(tmp_path) as (url, relieve):
        store = Store(pools_from_url(url))
        for name, operation in every_operation(store, label, ttl).items():
            started = time.monotonic()
            try:
                reply = operation()
                assert name in POSSIBLE.get(trouble, ()), f"{name} gave {reply!r}"
            except LockUnavailable as error:
                assert error.key == lock_keys("redislock", label).lock
                assert error.reason
                pytest.fail(f"{error.reason}") if not _says(error, TROUBLE[trouble]) else None
            assert time.monotonic() - started < ttl / 3 + 0.25
        if relieve:
            relieve()
            claim = make_claim(label, ttl=ttl)
            taken(store.acquire(claim))
            assert store.release(claim) is True
        store.close()


def _says(error: LockUnavailable, pattern: str) -> bool:
    import re

    return re.search(pattern, error.reason) is not None
