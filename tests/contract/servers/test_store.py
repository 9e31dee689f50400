"""The store: each script's rules on a real server, and what goes wrong on the way to it."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import itertools
import json
import random
import re
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

from celery_redislock import Holder, LockUnavailable
from celery_redislock.protocol import calls, entries, holders, lost, rooms
from celery_redislock.protocol.calls import RESERVE, WAITER_TTL
from celery_redislock.protocol.claims import (
    EXTENDED,
    NOT_OURS,
    RETAKEN,
    Acquired,
    Busy,
    Claim,
    Done,
    Extended,
    Extension,
    Parked,
    Parking,
    to_ms,
)
from celery_redislock.protocol.clock import clock
from celery_redislock.protocol.keys import BUCKETS, lock_keys
from celery_redislock.protocol.notes import ENDED, EXPECTS_RESULT, PUBLISHING
from celery_redislock.protocol.rooms import UNTAKEN_AFTER
from celery_redislock.protocol.tokens import new_token
from celery_redislock.servers.connections import TRUSTED
from celery_redislock.servers.looking import Looking
from celery_redislock.servers.node import Node
from celery_redislock.servers.restarts import info
from celery_redislock.servers.server import Server
from celery_redislock.servers.talk import operation_timeout
from celery_redislock.servers.urls import source_from_url
from celery_redislock.testing import MemoryServer
from tests.support.lateness import elapsed
from tests.support.servers import Proxy, RedisServer, free_port
from tests.support.waiting import eventually, within

#: The pending slot of all tasks here.
SLOT = entries.slot_of("pkg.task")
#: Every key that a script touches is in its KEYS.
pytestmark = pytest.mark.usefixtures("declared_keys")


def make_claim(
    name: str, ttl: float = 30.0, task_id: str = "", attempt: int = 0, nesting: int = 0
) -> Claim:
    """A claim with a token of its own, as each delivery has one."""
    token = new_token()
    run = {"task": "pkg.task", "task_id": task_id, "attempt": attempt, "nesting": nesting}
    value = holders.encode(token, ttl_ms=to_ms(ttl), **run)
    return Claim(lock_keys("redislock", name), token, ttl, value, task_id, attempt, nesting)


def names_apart(label: str, count: int) -> list[str]:
    """Names whose locks share no bucket: one could not be taken again after another was."""
    found: dict[str, str] = {}
    numbers = itertools.count()
    while len(found) < count:
        name = f"{label}{next(numbers)}"
        found.setdefault(lock_keys("redislock", name).fence, name)
    return list(found.values())


def taken(reply: Any) -> Acquired:
    assert isinstance(reply, Acquired), reply
    return reply


def busy(reply: Any) -> Busy:
    assert isinstance(reply, Busy), reply
    return reply


def extension(claim: Claim, reply: Acquired, retake: bool = True) -> Extension:
    return Extension(claim, reply.value, reply.fence, retake, reply.fence)


def extended(store: Server, *extensions: Extension) -> list[Extended | LockUnavailable]:
    """The answers to these extensions, which are sent together, as the heartbeat sends them."""
    asked = [calls.extend(each) for each in extensions]
    ttl = min(call.ttl for call in asked)
    return store.run_all(asked, ttl=ttl, purpose="heartbeat")


def outcomes(replies: list[Any]) -> list[int]:
    return [reply.outcome for reply in replies]


@pytest.fixture
def client(inside: redis.Redis) -> redis.Redis:
    """A client that looks into what `store` is in: each rule holds on a server and in memory."""
    return inside


@pytest.fixture
def redis_store(redis_server: RedisServer) -> Iterator[Server]:
    store = Node(source_from_url(redis_server.url))
    yield store
    store.close()


@pytest.fixture
def own_store(own_redis: RedisServer) -> Iterator[Server]:
    """On a server of this test's own."""
    store = Node(source_from_url(own_redis.url))
    yield store
    store.close()


# -- taking -----------------------------------------------------------------------------------


def test_a_lock_stands_in_redis_as_json_that_names_its_holder(store, client, label) -> None:
    claim = make_claim(label, ttl=5, task_id="0c1e", attempt=2)
    reply = taken(store.run(calls.acquire(claim)))
    record = json.loads(client.get(claim.keys.lock))
    assert record["token"] == claim.token
    assert (record["task"], record["task_id"], record["attempt"]) == ("pkg.task", "0c1e", 2)
    assert record["node"] == socket.gethostname()
    assert record["fence"] == reply.fence
    assert abs(record["acquired_at"] - time.time()) < 5
    assert 4000 < client.pttl(claim.keys.lock) <= 5000


def test_who_holds_a_lock_can_be_asked(store, label) -> None:
    claim = make_claim(label, ttl=5, task_id="0c1e", attempt=2)
    assert store.ask(calls.holder_of(claim.keys, 5)) is None
    reply = taken(store.run(calls.acquire(claim)))
    holder = store.ask(calls.holder_of(claim.keys, 5))
    assert (holder.task, holder.task_id, holder.attempt) == ("pkg.task", "0c1e", 2)
    assert holder.fence == reply.fence
    assert 4 < holder.ttl <= 5
    assert not holder.held_for_retry


def test_a_held_lock_is_busy_and_names_its_holder(store, label) -> None:
    taken(store.run(calls.acquire(make_claim(label, ttl=5, task_id="first"))))
    reply = busy(store.run(calls.acquire(make_claim(label, task_id="second"))))
    assert reply.relation == "other"
    assert reply.holder.task_id == "first"
    assert 4 < reply.remaining <= 5


def test_asking_again_with_the_same_token_gets_the_same_lock_and_a_full_life(
    store, client, label
) -> None:
    claim = make_claim(label)
    first = taken(store.run(calls.acquire(claim)))
    client.pexpire(claim.keys.lock, 10_000)
    again = taken(store.run(calls.acquire(claim)))
    assert (again.fence, again.value) == (first.fence, first.value)
    assert client.pttl(claim.keys.lock) > 20_000


def test_a_lapsed_lock_is_free(store, client, label) -> None:
    claim = make_claim(label)
    taken(store.run(calls.acquire(claim)))
    client.pexpire(claim.keys.lock, 1)
    eventually(lambda: not client.exists(claim.keys.lock), "it lapses")
    taken(store.run(calls.acquire(make_claim(label))))
    assert outcomes(extended(store, extension(claim, Acquired(claim.value, 1, 0.0)))) == [NOT_OURS]


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
def test_a_foreign_value_is_held_and_no_operation_touches_it(store, raw, label, kind) -> None:
    claim = make_claim(label, task_id=label)
    FOREIGN[kind](raw, claim.keys.lock)
    before = raw.dump(claim.keys.lock)

    for how in ("try", "wait", "woken", "last"):
        reply = busy(store.run(calls.acquire(claim, how)))
        assert reply.relation == "foreign"
        assert reply.remaining == float("inf")
        assert reply.holder == Holder(ttl=float("inf"))
    held = Extension(claim, claim.value, 5, True)
    assert outcomes(extended(store, held)) == [NOT_OURS]
    assert not store.run(calls.settle(claim, calls.Release(note="1", always=True))).ours
    assert store.run(calls.hold(claim, holders.held_for_retry(claim.value), 5)) is False
    assert store.run(calls.break_lock(claim.keys, 30)) is None
    assert store.ask(calls.holder_of(claim.keys, 30)) == Holder()
    assert str(store.ask(calls.holder_of(claim.keys, 30))) == "a foreign value"

    assert raw.dump(claim.keys.lock) == before
    assert raw.pttl(claim.keys.lock) == -1


@pytest.mark.parametrize("at", ["yesterday", 1e300, -5, [1], {}])
def test_a_holder_that_wrote_nonsense_can_still_be_shown(store, client, label, at) -> None:
    keys = make_claim(label).keys
    client.set(keys.lock, json.dumps({"token": "x", "pid": 5, "acquired_at": at}))
    assert store.ask(calls.holder_of(keys, 30)) == Holder()
    assert str(busy(store.run(calls.acquire(make_claim(label)))).holder) == "a foreign value"
    assert client.exists(keys.lock)


def test_a_foreign_value_that_lapses_frees_the_lock(store, client, label) -> None:
    claim = make_claim(label)
    client.set(claim.keys.lock, "somebody", px=20_000)
    reply = busy(store.run(calls.acquire(claim)))
    assert 0 < reply.remaining <= 20
    client.pexpire(claim.keys.lock, 1)
    eventually(lambda: isinstance(store.run(calls.acquire(claim)), Acquired), "it lapses")


# -- keeping and giving back ------------------------------------------------------------------


def test_an_extension_gives_the_lock_its_whole_life_again(store, client, label) -> None:
    claim = make_claim(label)
    reply = taken(store.run(calls.acquire(claim)))
    client.pexpire(claim.keys.lock, 10_000)
    assert outcomes(extended(store, extension(claim, reply))) == [EXTENDED]
    assert client.pttl(claim.keys.lock) > 20_000


def test_many_locks_are_extended_at_once_and_each_has_its_own_answer(store, client, label) -> None:
    claims = [make_claim(name, ttl=10 + n) for n, name in enumerate(names_apart(label, 5))]
    replies = [taken(store.run(calls.acquire(claim))) for claim in claims]
    client.delete(claims[1].keys.lock)
    client.set(claims[2].keys.lock, "a thief")
    client.delete(claims[3].keys.lock)
    wanted = [extension(claim, reply) for claim, reply in zip(claims, replies, strict=True)]
    wanted[3] = extension(claims[3], replies[3], retake=False)
    assert outcomes(extended(store, *wanted)) == [
        EXTENDED,
        RETAKEN,
        NOT_OURS,
        NOT_OURS,
        EXTENDED,
    ]
    assert client.pttl(claims[4].keys.lock) > 13_000


def test_a_loser_neither_extends_nor_releases_nor_keeps_what_another_holds(
    store, client, label
) -> None:
    loser, winner = make_claim(label), make_claim(label)
    lost = taken(store.run(calls.acquire(loser)))
    client.delete(loser.keys.lock)
    taken(store.run(calls.acquire(winner)))
    before = client.get(winner.keys.lock)
    client.pexpire(winner.keys.lock, 5000)

    assert outcomes(extended(store, extension(loser, lost))) == [NOT_OURS]
    assert not store.run(calls.settle(loser)).ours
    assert store.run(calls.hold(loser, holders.held_for_retry(lost.value), 30)) is False

    assert client.get(winner.keys.lock) == before
    assert 0 < client.pttl(winner.keys.lock) <= 5000


def test_a_release_frees_the_lock_and_a_second_one_does_nothing(store, client, label) -> None:
    claim, other = make_claim(label), make_claim(label)
    taken(store.run(calls.acquire(claim)))
    assert store.run(calls.settle(claim)).ours
    assert not client.exists(claim.keys.lock)
    assert not store.run(calls.settle(claim)).ours
    taken(store.run(calls.acquire(other)))
    assert not store.run(calls.settle(claim)).ours
    assert json.loads(client.get(claim.keys.lock))["token"] == other.token


def test_a_token_that_only_begins_like_the_holders_is_another(store, label) -> None:
    claim = make_claim(label)
    taken(store.run(calls.acquire(claim)))
    short = Claim(claim.keys, claim.token[:-1], 30, claim.value)
    assert not store.run(calls.settle(short)).ours
    assert outcomes(
        extended(store, Extension(short, '{"token":"' + short.token + '"}', 1, True))
    ) == [0]


# -- keys that vanish -------------------------------------------------------------------------


def test_a_vanished_lock_is_taken_again_as_it_was(store, client, label) -> None:
    claim = make_claim(label)
    reply = taken(store.run(calls.acquire(claim)))
    client.delete(claim.keys.lock)
    assert outcomes(extended(store, extension(claim, reply))) == [RETAKEN]
    assert client.get(claim.keys.lock) == reply.value
    assert client.pttl(claim.keys.lock) > 20_000
    assert store.run(calls.settle(claim)).ours


def test_a_vanished_lock_is_not_taken_again_past_the_holders_right(store, client, label) -> None:
    claim = make_claim(label)
    reply = taken(store.run(calls.acquire(claim)))
    client.delete(claim.keys.lock)
    assert outcomes(extended(store, extension(claim, reply, retake=False))) == [NOT_OURS]
    assert not client.exists(claim.keys.lock)


def test_a_vanished_lock_that_somebody_took_is_lost(store, client, label) -> None:
    claim = make_claim(label)
    reply = taken(store.run(calls.acquire(claim)))
    client.delete(claim.keys.lock)
    taken(store.run(calls.acquire(make_claim(label))))
    assert outcomes(extended(store, extension(claim, reply))) == [NOT_OURS]


def test_an_extension_that_arrives_after_the_release_does_not_bring_the_lock_back(
    store: Server, client: redis.Redis, label: str
) -> None:
    claim = make_claim(label)
    held = taken(store.run(calls.acquire(claim)))
    assert store.run(calls.settle(claim, calls.Release(stray=True))).ours
    assert outcomes(extended(store, extension(claim, held))) == [NOT_OURS]
    assert not client.exists(claim.keys.lock)
    assert taken(store.run(calls.acquire(make_claim(label)))).fence > held.fence + 1


def test_what_another_may_have_had_in_between_is_not_taken_again(
    store: Server, client: redis.Redis, label: str
) -> None:
    claim = make_claim(label)
    held = taken(store.run(calls.acquire(claim)))
    client.delete(claim.keys.lock)
    other = make_claim(label)
    taken(store.run(calls.acquire(other)))
    assert store.run(calls.settle(other))
    assert outcomes(extended(store, extension(claim, held))) == [NOT_OURS]
    assert not client.exists(claim.keys.lock)


def test_who_saw_the_counter_since_takes_again_what_vanished(
    store: Server, client: redis.Redis, label: str
) -> None:
    claim = make_claim(label)
    held = taken(store.run(calls.acquire(claim)))
    client.set(claim.keys.fence, counter := held.fence + 10)  # another lock of this bucket
    (reply,) = extended(store, extension(claim, held))
    assert (reply.outcome, reply.counter) == (EXTENDED, counter)
    client.delete(claim.keys.lock)
    assert outcomes(extended(store, extension(claim, held))) == [NOT_OURS]
    again = extension(claim, held)._replace(counter=reply.counter)
    assert outcomes(extended(store, again)) == [RETAKEN]


def test_a_lock_kept_for_a_waiter_is_not_taken_again(store, client, label) -> None:
    claim, waiter = make_claim(label), make_claim(label)
    reply = taken(store.run(calls.acquire(claim)))
    busy(store.run(calls.acquire(waiter, "wait")))
    assert store.run(calls.settle(claim)).ours
    reserve_for_longer(client, claim)
    assert outcomes(extended(store, extension(claim, reply))) == [NOT_OURS]


def test_after_a_break_the_holder_does_not_take_the_lock_again(store, client, label) -> None:
    claim = make_claim(label, task_id="0c1e")
    reply = taken(store.run(calls.acquire(claim)))
    assert store.run(calls.break_lock(claim.keys, 30)).task_id == "0c1e"
    assert not client.exists(claim.keys.lock)
    assert outcomes(extended(store, extension(claim, reply))) == [NOT_OURS]
    assert store.run(calls.break_lock(claim.keys, 30)) is None
    taken(store.run(calls.acquire(make_claim(label))))


@pytest.mark.parametrize(
    ("by", "said"),
    [
        ("anna@host", "anna@host"),
        ('an "operator"\n\\ of näme', 'an "operator"\\n\\ of näme'),
        ("x" * 200, "x" * 100),
        ("", ""),
    ],
)
@pytest.mark.parametrize("retake", [True, False])
@pytest.mark.parametrize("is_taken", [True, False])
def test_the_holder_is_told_who_broke_its_lock(store, label, by, said, retake, is_taken) -> None:
    claim = make_claim(label)
    reply = taken(store.run(calls.acquire(claim)))
    store.run(calls.break_lock(claim.keys, 30, by=by))
    if is_taken:
        other = make_claim(label)
        taken(store.run(calls.acquire(other)))
        store.run(calls.break_lock(claim.keys, 30, by="somebody else"))
        taken(store.run(calls.acquire(make_claim(label))))
    (found,) = extended(store, extension(claim, reply)._replace(retake=retake))
    assert (found.outcome, found.broken_by) == (NOT_OURS, said)


def test_by_default_that_is_this_user_on_this_host(store, label) -> None:
    claim = make_claim(label)
    reply = taken(store.run(calls.acquire(claim)))
    store.run(calls.break_lock(claim.keys, 30))
    (found,) = extended(store, extension(claim, reply))
    assert found.broken_by == f"{getpass.getuser()}@{socket.gethostname()}"


def test_a_mark_of_an_older_release_does_not_say_who(store, client, label) -> None:
    claim = make_claim(label)
    reply = taken(store.run(calls.acquire(claim)))
    store.run(calls.break_lock(claim.keys, 30, by="anna@host"))
    mark = client.get(claim.keys.broken)
    client.set(claim.keys.broken, f"{claim.opening}{mark}")
    (found,) = extended(store, extension(claim, reply))
    assert (found.outcome, found.broken_by) == (NOT_OURS, "")
    assert claim.opening in mark, "which is what an older release looks for"


def test_one_that_nobody_broke_is_not_said_to_be_broken(store, label) -> None:
    claim, other = make_claim(label), make_claim(label)
    reply = taken(store.run(calls.acquire(claim)))
    store.run(calls.settle(claim))
    taken(store.run(calls.acquire(other)))
    (found,) = extended(store, extension(claim, reply))
    assert (found.outcome, found.broken_by) == (NOT_OURS, None)


def test_of_two_locks_broken_one_after_the_other_neither_comes_back(store, client, label) -> None:
    first, second = make_claim(label), make_claim(label)
    held = taken(store.run(calls.acquire(first)))
    store.run(calls.break_lock(first.keys, 30))
    also_held = taken(store.run(calls.acquire(second)))
    store.run(calls.break_lock(first.keys, 30))
    assert outcomes(extended(store, extension(first, held))) == [NOT_OURS]
    assert outcomes(extended(store, extension(second, also_held))) == [NOT_OURS]


def test_the_mark_of_a_break_goes_once_the_holder_has_no_right_any_more(
    store, client, label
) -> None:
    claim = make_claim(label, ttl=5)
    taken(store.run(calls.acquire(claim)))
    store.run(calls.break_lock(claim.keys, 30))
    assert 4000 < client.pttl(claim.keys.broken) <= 5000


# -- fences -----------------------------------------------------------------------------------


def test_a_fence_rises_with_each_acquisition(store, client, label) -> None:
    fences = []
    for _ in range(20):
        claim = make_claim(label)
        fences.append(taken(store.run(calls.acquire(claim))).fence)
        store.run(calls.settle(claim))
    assert fences == sorted(set(fences))


def test_a_fence_rises_across_the_locks_expiry(store, client, label) -> None:
    claim = make_claim(label)
    first = taken(store.run(calls.acquire(claim))).fence
    client.delete(claim.keys.lock)
    assert taken(store.run(calls.acquire(make_claim(label)))).fence > first


def test_a_fence_rises_across_a_flush(own_store, own_redis, label) -> None:
    first = taken(own_store.run(calls.acquire(make_claim(label)))).fence
    with own_redis.client() as client:
        client.flushall()
    assert taken(own_store.run(calls.acquire(make_claim(label)))).fence > first


def test_a_fence_rises_also_if_the_servers_clock_was_set_back(store, client, label) -> None:
    ahead = (int(time.time()) + 86_400) * 1_000_000
    client.set(make_claim(label).keys.fence, ahead)
    for number in (1, 2, 3):
        claim = make_claim(label)
        assert taken(store.run(calls.acquire(claim))).fence == ahead + number
        store.run(calls.settle(claim))
    client.delete(claim.keys.fence)  # other tests' locks have this counter too


def test_a_fence_rises_above_that_of_a_lock_that_was_taken_again(store, client, label) -> None:
    claim = make_claim(label)
    reply = taken(store.run(calls.acquire(claim)))
    ahead = reply.fence + 86_400_000_000  # given out when the server's clock was ahead
    client.delete(claim.keys.lock, claim.keys.fence)
    assert outcomes(extended(store, Extension(claim, reply.value, ahead, True, ahead))) == [RETAKEN]
    store.run(calls.settle(claim))
    assert taken(store.run(calls.acquire(make_claim(label)))).fence > ahead
    client.delete(claim.keys.fence)


# -- copies of a message ----------------------------------------------------------------------


def test_a_redelivered_copy_meets_its_own_lock_and_leaves_a_note(store, client, label) -> None:
    claim, copy = (make_claim(label, task_id=label, attempt=1) for _ in range(2))
    reply = taken(store.run(calls.acquire(claim)))
    client.pexpire(claim.keys.lock, 20_000)
    for _ in range(2):
        answer = busy(store.run(calls.acquire(copy)))
        assert answer.relation == "own"
        assert answer.holder.task_id == label
    record = json.loads(client.get(claim.keys.lock))
    assert record["redelivered"] is True
    assert record["token"] == claim.token
    assert 10_000 < client.pttl(claim.keys.lock) <= 20_000
    assert taken(store.run(calls.acquire(claim))).fence == reply.fence
    assert outcomes(extended(store, extension(claim, reply))) == [EXTENDED]
    assert store.run(calls.settle(claim)).ours


@pytest.mark.parametrize("done", [ENDED, EXPECTS_RESULT, PUBLISHING])
def test_a_copy_that_was_seen_learns_that_the_attempt_has_run(store, label, done) -> None:
    claim, copy = (make_claim(label, task_id=label) for _ in range(2))
    taken(store.run(calls.acquire(claim)))
    busy(store.run(calls.acquire(copy)))
    store.run(calls.settle(claim, calls.Release(note=done)))
    for how in ("try", "wait"):
        reply = store.run(calls.acquire(copy, how))
        assert isinstance(reply, Done)
        assert reply.note.kind == done
        assert 0 <= reply.age < 5


def test_a_finished_attempt_leaves_no_mark_if_no_copy_was_seen(store, client, label) -> None:
    claim, copy = (make_claim(label, task_id=label) for _ in range(2))
    taken(store.run(calls.acquire(claim)))
    store.run(calls.settle(claim, calls.Release(note="1")))
    assert not client.exists(claim.done_key)
    taken(store.run(calls.acquire(copy)))


def test_a_finished_attempt_leaves_its_mark_if_told_to(store, client, label) -> None:
    claim, copy = (make_claim(label, task_id=label) for _ in range(2))
    taken(store.run(calls.acquire(claim)))
    store.run(calls.settle(claim, calls.Release(note="1", always=True)))
    assert isinstance(store.run(calls.acquire(copy)), Done)
    assert 500 < client.ttl(claim.done_key) <= 600


def test_a_finished_attempt_whose_lock_is_gone_leaves_its_mark(store, client, label) -> None:
    claim, copy = (make_claim(label, task_id=label) for _ in range(2))
    taken(store.run(calls.acquire(claim)))
    busy(store.run(calls.acquire(copy)))
    client.delete(claim.keys.lock)
    assert not store.run(calls.settle(claim, calls.Release(note="1"))).ours
    assert isinstance(store.run(calls.acquire(copy)), Done)


def test_an_attempt_that_did_not_run_to_its_end_leaves_no_mark(store, client, label) -> None:
    claim, copy = (make_claim(label, task_id=label) for _ in range(2))
    taken(store.run(calls.acquire(claim)))
    busy(store.run(calls.acquire(copy)))
    store.run(calls.settle(claim, calls.Release(note="", always=True)))
    assert not client.exists(claim.done_key)
    taken(store.run(calls.acquire(copy)))


def test_a_mark_tells_how_long_ago_the_attempt_ended(store, client, label) -> None:
    claim, copy = (make_claim(label, task_id=label) for _ in range(2))
    taken(store.run(calls.acquire(claim)))
    store.run(calls.settle(claim, calls.Release(note="1", always=True)))
    client.pexpire(claim.done_key, 590_000)
    assert 10 <= store.run(calls.acquire(copy)).age < 15


def test_a_mark_is_of_one_attempt_of_one_task(store, label) -> None:
    claim = make_claim(label, task_id=label, attempt=1)
    taken(store.run(calls.acquire(claim)))
    store.run(calls.settle(claim, calls.Release(note="1", always=True)))
    for other in (
        make_claim(label, task_id=label, attempt=2),
        make_claim(label, task_id=label, attempt=0),
        make_claim(label, task_id=f"{label}2", attempt=1),
        make_claim(label),
    ):
        taken(store.run(calls.acquire(other)))
        store.run(calls.settle(other))


def test_a_mark_says_nothing_about_another_lock(store, label) -> None:
    claim = make_claim(label, task_id=label)
    taken(store.run(calls.acquire(claim)))
    store.run(calls.settle(claim, calls.Release(note="1", always=True)))
    taken(store.run(calls.acquire(make_claim(f"{label}2", task_id=label))))


def test_a_mark_lasts_for_as_long_as_a_copy_may_come(store, client, label) -> None:
    claim = dataclasses.replace(make_claim(label, task_id=label), done_ttl=4000.0)
    taken(store.run(calls.acquire(claim)))
    store.run(calls.settle(claim, calls.Release(note="1", always=True)))
    assert 3900 < client.ttl(claim.done_key) <= 4000
    copy = dataclasses.replace(make_claim(label, task_id=label), done_ttl=4000.0)
    client.pexpire(claim.done_key, 3_990_000)
    assert 10 <= store.run(calls.acquire(copy)).age < 15


def test_a_task_that_replaced_itself_is_no_copy_of_what_it_was(store, label) -> None:
    first = make_claim(label, task_id=label)
    taken(store.run(calls.acquire(first)))
    replacement = make_claim(label, task_id=label, nesting=1)
    assert busy(store.run(calls.acquire(replacement))).relation == "earlier"
    store.run(calls.settle(first, calls.Release(note="0", always=True)))
    taken(store.run(calls.acquire(replacement)))
    late = store.run(calls.acquire(make_claim(label, task_id=label, attempt=3)))
    assert isinstance(late, Done)
    assert late.note.kind == ENDED


def test_a_finished_attempt_runs_again_if_its_result_never_came(store, label) -> None:
    claim, copy = (make_claim(label, task_id=label) for _ in range(2))
    taken(store.run(calls.acquire(claim)))
    store.run(calls.settle(claim, calls.Release(note="1", always=True)))
    taken(store.run(calls.acquire(copy, again=True)))


# -- retries ----------------------------------------------------------------------------------


def test_a_retry_waits_for_its_earlier_attempt_while_that_is_alive(store, label) -> None:
    first = make_claim(label, task_id=label, attempt=0)
    taken(store.run(calls.acquire(first)))
    reply = busy(store.run(calls.acquire(make_claim(label, task_id=label, attempt=1))))
    assert reply.relation == "earlier"
    assert reply.holder.attempt == 0


def test_a_retry_takes_over_from_an_attempt_that_missed_its_heartbeats(
    store, client, label
) -> None:
    first = make_claim(label, task_id=label, attempt=0)
    retry = make_claim(label, task_id=label, attempt=1)
    held = taken(store.run(calls.acquire(first)))
    client.pexpire(first.keys.lock, 16_000)
    assert busy(store.run(calls.acquire(retry))).relation == "earlier"
    client.pexpire(first.keys.lock, 14_000)
    assert taken(store.run(calls.acquire(retry))).fence > held.fence
    assert outcomes(extended(store, extension(first, held))) == [NOT_OURS]
    assert not store.run(calls.settle(first)).ours


def test_a_copy_of_an_earlier_attempt_is_done(store, label) -> None:
    taken(store.run(calls.acquire(make_claim(label, task_id=label, attempt=2))))
    reply = store.run(calls.acquire(make_claim(label, task_id=label, attempt=1)))
    assert isinstance(reply, Done)
    assert reply.note.kind == ENDED


def test_a_lock_that_is_kept_for_the_retry_goes_to_it_and_to_nobody_else(
    store, client, label
) -> None:
    first = make_claim(label, task_id=label, attempt=0)
    held = taken(store.run(calls.acquire(first)))
    assert store.run(calls.hold(first, holders.held_for_retry(held.value), 40)) is True
    assert 39_000 < client.pttl(first.keys.lock) <= 40_000
    holder = store.ask(calls.holder_of(first.keys, 30))
    assert (holder.task_id, holder.attempt, holder.held_for_retry) == (label, 0, True)
    assert holder.fence == held.fence

    assert busy(store.run(calls.acquire(make_claim(label, task_id="other")))).relation == "other"
    assert outcomes(extended(store, extension(first, held))) == [NOT_OURS]
    assert not store.run(calls.settle(first)).ours
    retry = make_claim(label, task_id=label, attempt=1)
    assert taken(store.run(calls.acquire(retry))).fence > held.fence
    assert store.run(calls.settle(retry)).ours


def test_a_copy_of_the_attempt_that_kept_its_lock_is_done(store, label) -> None:
    claim, copy = (make_claim(label, task_id=label) for _ in range(2))
    held = taken(store.run(calls.acquire(claim)))
    store.run(calls.hold(claim, holders.held_for_retry(held.value), 40))
    reply = store.run(calls.acquire(copy))
    assert isinstance(reply, Done)
    assert reply.note.kind == ENDED


def test_a_kept_lock_can_be_broken(store, label) -> None:
    claim = make_claim(label, task_id=label)
    held = taken(store.run(calls.acquire(claim)))
    store.run(calls.hold(claim, holders.held_for_retry(held.value), 40))
    assert store.run(calls.break_lock(claim.keys, 30)).held_for_retry is True
    taken(store.run(calls.acquire(make_claim(label))))


# -- waiters ----------------------------------------------------------------------------------


def waiting(client: redis.Redis, claim: Claim) -> list[str]:
    return client.zrange(claim.keys.waiters, 0, -1)


def reserve_for_longer(client: redis.Redis, claim: Claim) -> None:
    """Keep a reservation for as long as a slow test needs."""
    value, left = client.pipeline().get(claim.keys.lock).pttl(claim.keys.lock).execute()
    if value is not None:  # else it lapsed: the machine stood still
        assert json.loads(value).get("reserved") is True
        assert 0 < left <= RESERVE * 1000
    client.set(claim.keys.lock, '{"token":"","reserved":true}', px=60_000)


def test_only_who_waits_is_written_down(store, client, label) -> None:
    taken(store.run(calls.acquire(make_claim(label))))
    for how, counted in (("try", 0), ("last", 0), ("wait", 1), ("woken", 1)):
        claim = make_claim(label)
        busy(store.run(calls.acquire(claim, how)))
        assert len(waiting(client, claim)) == counted
        store.run(calls.acquire(claim, "last"))
        assert waiting(client, claim) == []


def test_without_a_waiter_a_released_lock_is_simply_gone(store, client, label) -> None:
    claim = make_claim(label)
    taken(store.run(calls.acquire(claim)))
    store.run(calls.settle(claim))
    assert not client.exists(claim.keys.lock, claim.keys.wake, claim.keys.waiters)


def test_a_released_lock_is_kept_for_a_waiter_for_a_moment(store, client, label) -> None:
    holder, waiter, newcomer = (make_claim(label) for _ in range(3))
    taken(store.run(calls.acquire(holder)))
    busy(store.run(calls.acquire(waiter, "wait")))
    assert store.run(calls.settle(holder)).ours
    reserve_for_longer(client, holder)
    assert store.ask(calls.holder_of(holder.keys, 30)) is None
    reply = busy(store.run(calls.acquire(newcomer, "wait")))
    assert (reply.relation, reply.holder) == ("reserved", None)
    taken(store.run(calls.acquire(waiter, "woken")))
    assert waiting(client, waiter) == [newcomer.opening]


def test_who_tries_only_once_may_go_before_a_waiter(store, client, label) -> None:
    holder, waiter = make_claim(label), make_claim(label)
    taken(store.run(calls.acquire(holder)))
    busy(store.run(calls.acquire(waiter, "wait")))
    store.run(calls.settle(holder))
    reserve_for_longer(client, holder)
    taken(store.run(calls.acquire(make_claim(label), "try")))
    assert busy(store.run(calls.acquire(waiter, "woken"))).relation == "other"
    assert waiting(client, waiter) == [waiter.opening]


def test_a_waiter_at_the_end_of_its_patience_may_take_what_is_kept_for_another(
    store, client, label
) -> None:
    holder, waiter, impatient = (make_claim(label) for _ in range(3))
    taken(store.run(calls.acquire(holder)))
    busy(store.run(calls.acquire(waiter, "wait")))
    store.run(calls.settle(holder))
    reserve_for_longer(client, holder)
    taken(store.run(calls.acquire(impatient, "last")))


def test_a_reservation_that_nobody_takes_up_lapses(store, client, label) -> None:
    holder, waiter, newcomer = (make_claim(label) for _ in range(3))
    taken(store.run(calls.acquire(holder)))
    busy(store.run(calls.acquire(waiter, "wait")))
    store.run(calls.settle(holder))
    eventually(
        lambda: isinstance(store.run(calls.acquire(newcomer, "wait")), Acquired),
        "it lapses",
        5,
    )


def test_a_lock_is_not_kept_for_waiters_that_are_dead(store, client, label) -> None:
    holder, waiter = make_claim(label), make_claim(label)
    taken(store.run(calls.acquire(holder)))
    busy(store.run(calls.acquire(waiter, "wait")))
    assert 0 < client.pttl(waiter.keys.waiters) <= WAITER_TTL * 1000
    client.zadd(waiter.keys.waiters, {waiter.opening: (time.time() - 1) * 1000})
    store.run(calls.settle(holder))
    assert not client.exists(holder.keys.lock, holder.keys.waiters, holder.keys.wake)


def test_a_release_wakes_one_waiter(store, client, label) -> None:
    holder, first, second = (make_claim(label) for _ in range(3))
    taken(store.run(calls.acquire(holder)))
    busy(store.run(calls.acquire(first, "wait")))
    busy(store.run(calls.acquire(second, "wait")))
    store.run(calls.settle(holder))
    client.persist(holder.keys.wake)
    taken(store.block(calls.acquire(first, "woken"), first.keys.wake, 5))
    assert not client.exists(holder.keys.wake)
    busy(store.block(calls.acquire(second, "woken"), second.keys.wake, 0.05))


def has_sleepers(store: Server) -> bool:
    if isinstance(store, MemoryServer):
        return any(each._blocked for each in store._memory.sockets)  # it has no INFO
    told = [each.replies([("INFO", "clients")])[0] for each in store.primaries().values()]
    return any(int(info(each)["blocked_clients"]) > 0 for each in told)


def test_a_waiter_sleeps_until_it_is_woken(store, label) -> None:
    holder, waiter = make_claim(label), make_claim(label)
    taken(store.run(calls.acquire(holder)))
    busy(store.run(calls.acquire(waiter, "wait")))
    woken: list[Any] = []
    thread = threading.Thread(
        target=lambda: woken.append(
            store.block(calls.acquire(waiter, "woken"), waiter.keys.wake, 5)
        )
    )
    started = clock()
    thread.start()
    eventually(lambda: has_sleepers(store), "it sleeps in the server")
    woke_at = clock()
    store.run(calls.settle(holder))
    thread.join(5)
    # Its right counts from before the sleep.
    assert started <= taken(woken[0]).sent_at <= woke_at


def test_whoever_is_woken_has_the_lock_before_it_could_ask(own_redis, own_store, label) -> None:
    holder, waiter = make_claim(label), make_claim(label)
    taken(own_store.run(calls.acquire(holder)))
    with Proxy(own_redis.port) as proxy, own_redis.client() as client:
        behind = Node(source_from_url(f"redis://127.0.0.1:{proxy.port}"))
        busy(behind.run(calls.acquire(waiter, "wait")))
        replies: list[Any] = []
        thread = threading.Thread(
            target=lambda: replies.append(
                behind.block(calls.acquire(waiter, "woken"), waiter.keys.wake, 5)
            )
        )
        thread.start()
        eventually(lambda: has_sleepers(own_store), "it sleeps in the server")
        proxy.to_server.block()
        own_store.run(calls.settle(holder))
        thread.join(5)
        assert taken(replies[0]).value == client.get(waiter.keys.lock)
        behind.close()


def test_a_waiter_sleeps_no_longer_than_it_was_told_to(store, label) -> None:
    taken(store.run(calls.acquire(make_claim(label))))
    started = time.monotonic()
    busy(store.block(calls.acquire(make_claim(label), "woken"), make_claim(label).keys.wake, 0.2))
    assert time.monotonic() - started > 0.1
    assert elapsed(started) < 3


def test_a_waiter_that_cannot_sleep_says_so_and_does_not_ask_again_at_once(
    store, client, label
) -> None:
    claim, waiter = make_claim(label), make_claim(label)
    taken(store.run(calls.acquire(claim)))
    client.set(claim.keys.wake, "not a list")
    with pytest.raises(LockUnavailable, match="WRONGTYPE"):
        store.block(calls.acquire(waiter, "woken"), waiter.keys.wake, 5)
    client.delete(claim.keys.lock)
    taken(store.block(calls.acquire(waiter, "woken"), waiter.keys.wake, 5))


def test_a_woken_waiter_brings_the_script_along_if_the_server_has_forgotten_it(
    store, client, label
) -> None:
    claim = make_claim(label)
    client.script_flush()
    taken(store.block(calls.acquire(claim, "woken"), claim.keys.wake, 0.01))


def test_a_break_wakes_a_waiter(store, client, label) -> None:
    holder, waiter = make_claim(label), make_claim(label)
    taken(store.run(calls.acquire(holder)))
    busy(store.run(calls.acquire(waiter, "wait")))
    store.run(calls.break_lock(holder.keys, 30))
    taken(store.block(calls.acquire(waiter, "woken"), waiter.keys.wake, 5))


# -- what is left behind ----------------------------------------------------------------------


def test_any_number_of_locks_leaves_a_bounded_number_of_keys(own_store, own_redis) -> None:
    for number in range(3 * BUCKETS):
        claim = make_claim(str(number), task_id=str(number))
        waiter = make_claim(str(number))
        taken(own_store.run(calls.acquire(claim)))
        if number % 50 == 0:
            busy(own_store.run(calls.acquire(waiter, "wait")))
        own_store.run(calls.settle(claim, calls.Release(note="1", always=number % 50 == 1)))
    with own_redis.client() as client:
        lasting = [key for key in client.scan_iter(count=1000) if client.pttl(key) == -1]
        assert 0 < len(lasting) <= BUCKETS
        assert all(key.endswith(":fence") for key in lasting)


# -- trouble on the way -----------------------------------------------------------------------


def every_operation(store: Server, name: str, ttl: float) -> dict[str, Callable[[], Any]]:
    claim = make_claim(name, ttl=ttl)
    return {
        "acquire": lambda: store.run(calls.acquire(claim), hold_off=0),
        "wait": lambda: store.run(calls.acquire(claim, "wait"), hold_off=0),
        "extend": lambda: extended(store, Extension(claim, claim.value, 1, True)),
        "release": lambda: store.run(calls.settle(claim, calls.Release(note="1", always=True))),
        "hold": lambda: store.run(calls.hold(claim, holders.held_for_retry(claim.value), ttl)),
        "break_lock": lambda: store.run(calls.break_lock(claim.keys, ttl)),
        "holder": lambda: store.ask(calls.holder_of(claim.keys, ttl)),
    }


def test_scripts_that_the_server_forgot_are_sent_again(own_store, own_redis, label) -> None:
    claims = [make_claim(name) for name in names_apart(label, 3)]
    with own_redis.client() as client:
        client.script_flush()
        replies = [taken(own_store.run(calls.acquire(claim))) for claim in claims]
        client.script_flush()
        wanted = [extension(claim, reply) for claim, reply in zip(claims, replies, strict=True)]
        assert outcomes(extended(own_store, *wanted)) == [EXTENDED] * 3
        client.script_flush()
        assert own_store.run(calls.settle(claims[0])).ours
        client.script_flush()
        assert (
            own_store.run(calls.hold(claims[1], holders.held_for_retry(replies[1].value), 30))
            is True
        )
        client.script_flush()
        assert own_store.run(calls.break_lock(claims[2].keys, 30)) is not None
        client.script_flush()
        assert outcomes(extended(own_store, *wanted)) == [
            RETAKEN,
            NOT_OURS,
            NOT_OURS,
        ]


@contextlib.contextmanager
def full_server(tmp_path: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    with RedisServer("--maxmemory-policy", "noeviction") as server, server.client() as client:
        client.set("big", "x" * 1_000_000)
        client.config_set("maxmemory", "1mb")
        yield server.url, lambda: client.config_set("maxmemory", "0")


@contextlib.contextmanager
def replica(tmp_path: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    away = ("--replicaof", "127.0.0.1", str(free_port()))
    with RedisServer(*away) as server, server.client() as client:
        yield server.url, lambda: client.replicaof("no", "one")


@contextlib.contextmanager
def stale_replica(tmp_path: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    away = ("--replicaof", "127.0.0.1", str(free_port()))
    options = (*away, "--replica-serve-stale-data", "no")
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
    with RedisServer(*folder, "--rdbcompression", "no") as server, server.client() as client:
        client.mset({f"key{number}": "x" * 2000 for number in range(2000)})
        client.save()
    slow = ("--key-load-delay", "10000", "--loading-process-events-interval-bytes", "1024")
    with _Reachable(*folder, *slow) as server, server.client() as client:

        def finish() -> None:
            client.config_set("key-load-delay", 0)
            eventually(lambda: RedisServer.answers(server), "it has loaded")

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
        if self._process is not None and self._process.poll() is not None:
            pytest.skip("this redis-server does not know these options")
        try:
            socket.create_connection(("127.0.0.1", self.port), 5).close()
        except OSError:
            return False
        return True


TROUBLE: dict[Any, str] = {
    full_server: "OOM|used memory",
    replica: "(?i)read.?only",
    stale_replica: "MASTERDOWN|Link with MASTER",
    guarded_server: "(?i)auth",
    loading_server: "(?i)loading|no new locks for",
    silent_port: "(?i)refused",
    other_protocol: "Protocol|Invalid|Connection",
}
#: What a server in that trouble can do all the same.
POSSIBLE = {
    full_server: {"wait", "extend", "release", "break_lock", "holder"},
    replica: {"break_lock", "holder"},  # there was nothing to break
}


def error_of(operation: Callable[[], Any]) -> LockUnavailable | None:
    try:
        reply = operation()
    except LockUnavailable as error:
        return error
    if isinstance(reply, list) and isinstance(reply[0], LockUnavailable):
        return reply[0]  # one of several locks
    return None


def times_out_within(seconds: float, operation: Callable[[], Any]) -> bool:
    def times_out() -> None:
        error = error_of(operation)
        assert error is not None
        assert "timeout" in error.reason.lower()

    return within(seconds, times_out)


@pytest.mark.parametrize("trouble", TROUBLE, ids=lambda trouble: trouble.__name__)
def test_what_a_server_in_trouble_says_is_told_and_soon(tmp_path, label, trouble) -> None:
    ttl = 1.2
    with trouble(tmp_path) as (url, relieve):
        store = Node(source_from_url(url))

        def told_soon(operation: Callable[[], Any], name: str) -> bool:
            started = time.monotonic()
            error = error_of(operation)
            took = elapsed(started)
            if error is None:
                assert name in POSSIBLE.get(trouble, ()), f"{name} was possible"
                return took < ttl / 3 + 0.5
            assert error.key == lock_keys("redislock", label).lock
            return took < ttl / 3 + 0.5 and bool(re.search(TROUBLE[trouble], error.reason))

        for name, operation in every_operation(store, label, ttl).items():
            # A tenth of a second without an answer is a timeout, also where the machine is late.
            assert any(told_soon(operation, name) for _ in range(3)), name
        if relieve:
            relieve()
            claim = make_claim(label, ttl=ttl)
            taken(store.run(calls.acquire(claim)))
            assert store.run(calls.settle(claim)).ours
        store.close()


def test_a_server_without_memory_still_takes_locks_back(label, tmp_path) -> None:
    with RedisServer() as server, server.client() as client:
        store = Node(source_from_url(server.url))
        claim, copy = (make_claim(label, task_id=label) for _ in range(2))
        taken(store.run(calls.acquire(claim)))
        client.set("big", "x" * 1_000_000)
        client.config_set("maxmemory", "1mb")
        with pytest.raises(LockUnavailable):
            store.run(calls.acquire(make_claim(f"{label}2")))
        assert store.run(calls.settle(claim, calls.Release(note="1", always=True))).ours
        assert not client.exists(claim.keys.lock)
        assert isinstance(store.run(calls.acquire(copy)), Done)
        store.close()


def test_a_server_without_memory_serves_who_has_waited(label) -> None:
    """It is the taking that frees some."""
    with RedisServer() as server, server.client() as client:
        store = Node(source_from_url(server.url))
        holders = [make_claim(f"{label}{number}") for number in range(2)]
        sleeper, parked = (make_claim(each.keys.name, task_id="waits") for each in holders)
        for holder in holders:
            taken(store.run(calls.acquire(holder)))
        busy(store.run(calls.acquire(sleeper, "wait")))
        entry = json.dumps({"task": "pkg.task", "task_id": "waits"})
        assert isinstance(store.run(rooms.park(parked, Parking(entry, parked.entry_id))), Parked)
        client.set("big", "x" * 1_000_000)
        client.config_set("maxmemory", "1mb")
        settled = [store.run(calls.settle(holder)) for holder in holders]
        assert [reply.ours for reply in settled] == [True, True]
        with pytest.raises(LockUnavailable):
            store.run(calls.acquire(make_claim(f"{label} newcomer")))
        taken(store.block(calls.acquire(sleeper, "woken"), sleeper.keys.wake, 5))
        assert settled[1].offered is not None
        member = settled[1].offered.place.member
        taken(store.run(calls.acquire(dataclasses.replace(parked, member=member)), hold_off=None))
        store.close()


def test_what_was_replaced_stays_so_though_its_process_settles_after_others_did(
    store, label
) -> None:
    """The worker's main process has ended it, and given back its lock."""
    older = make_claim(label, task_id="older")
    taken(store.run(calls.acquire(older)))
    replacing = make_claim(label, task_id="newer")
    by = holders.successor_text("pkg.task", "newer")
    assert isinstance(
        store.run(rooms.park(replacing, Parking("{}", SLOT, replace=(by, 5.0)))), Parked
    )
    store.run(calls.settle(older))
    store.run(calls.settle(older, calls.Release(note=EXPECTS_RESULT, always=True)))
    copy = store.run(calls.acquire(make_claim(label, task_id="older")))
    assert isinstance(copy, Done)
    assert copy.note.replaced_by.task_id == "newer"


@pytest.mark.parametrize("note", ["", "1"])
def test_what_was_replaced_and_died_stays_replaced(store, label, note) -> None:
    """Its message comes back, also if its body had ended and its result is lost."""
    older, newer = (make_claim(label, task_id=name) for name in ("older", "newer"))
    taken(store.run(calls.acquire(older)))
    by = holders.successor_text("pkg.task", "newer")
    store.run(rooms.park(newer, Parking("entry", SLOT, in_front=True, replace=(by, 5.0))))
    assert store.run(calls.settle(older, calls.Release(note=note))).offered is not None
    taken(store.run(calls.acquire(dataclasses.replace(newer, member=SLOT))))
    store.run(calls.settle(newer))
    copy = store.run(calls.acquire(make_claim(label, task_id="older")))
    assert isinstance(copy, Done) is (note == "")
    assert note or copy.note.replaced_by.task_id == "newer"


def test_a_copy_of_what_is_to_end_for_another_waits_while_it_runs(store, label) -> None:
    """It may yet end in a result of its own, which the copy then finds; it does not run."""
    older, newer = (make_claim(label, task_id=name) for name in ("older", "newer"))
    taken(store.run(calls.acquire(older)))
    by = holders.successor_text("pkg.task", "newer")
    store.run(rooms.park(newer, Parking("entry", SLOT, in_front=True, replace=(by, 5.0))))
    assert busy(store.run(calls.acquire(make_claim(label, task_id="older")))).relation == "own"
    store.run(calls.settle(older, calls.Release(note="0")))
    copy = store.run(calls.acquire(make_claim(label, task_id="older")))
    assert copy.note.replaced_by.task_id == "newer"


def test_the_message_of_what_was_replaced_learns_by_whom(store, label) -> None:
    holder, older, newer = (make_claim(label, task_id=n) for n in ("holder", "older", "newer"))
    taken(store.run(calls.acquire(holder)))
    store.run(rooms.park(older, Parking("old", SLOT)))
    by = holders.successor_text("pkg.task", "newer"), None
    parked = store.run(rooms.park(newer, Parking("new", SLOT, replace=by)))
    assert parked.replaced == {older.entry_id: "old"}
    by = store.run(calls.acquire(older)).note.replaced_by
    assert (by.task, by.task_id) == ("pkg.task", "newer")


def test_a_replica_that_is_promoted_while_it_is_asked_gives_the_lock(label, tmp_path) -> None:
    with replica(tmp_path) as (url, promote):
        store = Node(source_from_url(url))
        claim = make_claim(label, ttl=6)
        timer = threading.Timer(0.2, promote)
        timer.start()
        taken(store.run(calls.acquire(claim)))
        timer.join()
        store.close()


def test_a_frozen_server_blocks_nobody_for_longer_than_a_third_of_the_ttl(
    own_store, own_redis, label
) -> None:
    ttl = 6
    taken(own_store.run(calls.acquire(make_claim(f"{label}warm", ttl=ttl))))
    operations = every_operation(own_store, label, ttl)
    for name in ("acquire", "extend", "release", "holder"):  # the others try in the same way
        operation = operations[name]
        own_redis.stop()
        assert times_out_within(ttl / 3 + 0.5, operation), name
        own_redis.resume()
    claim = make_claim(f"{label}2", ttl=ttl)
    taken(own_store.run(calls.acquire(claim)))
    assert own_store.run(calls.settle(claim)).ours


def test_a_frozen_server_ends_a_wait_soon_after_its_time(own_store, own_redis, label) -> None:
    holder, claim = make_claim(label, ttl=30), make_claim(label, ttl=1.5)
    taken(own_store.run(calls.acquire(holder)))

    def answers(kind: type) -> bool:
        """On a busy machine a server that runs may be late, too."""
        try:
            return isinstance(
                own_store.block(calls.acquire(claim, "woken"), claim.keys.wake, 0.05), kind
            )
        except LockUnavailable:
            return False

    eventually(lambda: answers(Busy), "the server has the script")
    own_redis.stop()

    def wait() -> None:
        with pytest.raises(LockUnavailable):
            own_store.block(calls.acquire(claim, "woken"), claim.keys.wake, 0.3)

    assert within(1.0, wait)
    own_redis.resume()
    own_store.run(calls.settle(holder))
    eventually(lambda: answers(Acquired), "it is free")


@pytest.mark.parametrize("idle", [0.0, 2 * TRUSTED])
def test_a_connection_that_the_server_closed_costs_no_lock(own_redis, own_store, label, idle):
    """Used again at once it fails, and there is another try; later it is looked at before."""
    claim = make_claim(label)
    taken(own_store.run(calls.acquire(claim)))
    with own_redis.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
    idling = own_store._connections["main", operation_timeout(30.0)]._idle
    idling[:] = [(connection, used_at - idle) for connection, used_at in idling]
    assert own_store.run(calls.settle(claim), once=bool(idle)).ours


def test_an_exchange_takes_no_new_connection(own_redis, own_store, label):
    for number in range(20):
        claim = make_claim(f"{label}{number}")
        taken(own_store.run(calls.acquire(claim)))
        assert own_store.run(calls.settle(claim)).ours
    assert len(own_store._connections["main", operation_timeout(30.0)]._idle) == 1


# -- exchanges that are cut short -------------------------------------------------------------


class SlowProxy(Proxy):
    """A way to the server on which answers are still under way when one looks for them."""

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        class Slow:
            def sendall(self, data: bytes) -> None:
                time.sleep(0.0007)
                sink.sendall(data)

            def __getattr__(self, name: str) -> Any:
                return getattr(sink, name)

        super()._pump(source, Slow())  # type: ignore[arg-type]


class CutShort(BaseException):
    """As a soft time limit is, raised from the outside at any place."""


def cut_short_at(step: int, call: Callable[[], Any]) -> bool:
    """Raise in the call where Python would look for a signal for the nth time.

    Returns whether there were that many.
    """
    steps = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal steps
        if event in ("call", "c_return"):
            steps += 1
            if steps == step:
                sys.setprofile(None)
                raise CutShort

    sys.setprofile(count)
    try:  # no context manager: it would make calls of its own
        call()
    except CutShort:
        pass
    finally:
        sys.setprofile(None)
    return steps >= step


@pytest.fixture
def slow_proxy(redis_server: RedisServer) -> Iterator[SlowProxy]:
    with SlowProxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def slow_store(slow_proxy: SlowProxy) -> Iterator[Server]:
    store = Node(source_from_url(slow_proxy.url))
    yield store
    store.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("connected", [True, False])
def test_an_answer_that_nobody_read_is_never_taken_for_the_next_one(
    slow_proxy, slow_store, redis_store, label, connected
) -> None:
    claims = [make_claim(f"{label}{number}", ttl=300, task_id=str(number)) for number in range(2)]
    for claim in claims:
        taken(redis_store.run(calls.acquire(claim)))
    step, goes_on = 0, True
    while goes_on:
        step += 2 if connected else 4  # each gap spans some, and a handshake has many
        if not connected:
            slow_proxy.cut_off()
            slow_proxy.reconnect()
        goes_on = cut_short_at(step, lambda: slow_store.ask(calls.holder_of(claims[0].keys, 300)))
        assert slow_store.ask(calls.holder_of(claims[1].keys, 300)).task_id == "1", f"step {step}"
    assert step > 50


def test_signals_at_any_time_mix_up_no_answers(slow_store, redis_store, label) -> None:
    claims = [make_claim(f"{label}{number}", task_id=str(number), ttl=600) for number in range(2)]
    held = [taken(redis_store.run(calls.acquire(claim))) for claim in claims]
    wanted = [extension(claim, reply) for claim, reply in zip(claims, held, strict=True)]
    chance = random.Random(label)
    cut = 0

    def handler(signum: int, frame: Any) -> None:
        raise CutShort

    before = signal.signal(signal.SIGALRM, handler)
    try:
        for _ in range(200):
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.00002, 0.006))
                    slow_store.ask(calls.holder_of(claims[0].keys, 30))
                finally:  # within the outer one: it may come here, too
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except CutShort:
                cut += 1
            assert slow_store.ask(calls.holder_of(claims[1].keys, 30)).task_id == "1"
    finally:
        signal.signal(signal.SIGALRM, before)
    assert outcomes(extended(slow_store, *wanted)) == [
        EXTENDED,
        EXTENDED,
    ]
    assert cut > 30


# -- a server that comes back -----------------------------------------------------------------


def test_a_server_that_came_back_empty_gives_no_new_lock_for_a_third_of_the_ttl(
    own_store, own_redis, label
) -> None:
    # A server counts whole seconds: a few tenths after a start late in one, it says one.
    eventually(lambda: time.time() % 1 < 0.2, "the start of a second")
    taken(own_store.run(calls.acquire(make_claim(label, ttl=6))))
    eventually(lambda: time.time() % 1 > 0.8, "the end of a second")
    own_redis.kill()
    gone = time.monotonic()
    own_redis.start()
    eventually(lambda: 0.3 < time.time() % 1 < 0.8, "its uptime is a second")
    claim = make_claim(label, ttl=6)
    with pytest.raises(LockUnavailable, match="no new locks for"):
        own_store.run(calls.acquire(claim), hold_off=0)
    taken(own_store.run(calls.acquire(claim)))
    assert time.monotonic() - gone >= 2.0


def test_what_a_server_that_came_back_empty_forgot_is_taken_again_at_once(
    own_store, own_redis, label
) -> None:
    claim = make_claim(label, ttl=18)
    reply = taken(own_store.run(calls.acquire(claim)))
    own_redis.restart_empty()
    started = time.monotonic()

    def is_retaken() -> bool:
        with contextlib.suppress(LockUnavailable):
            return outcomes(extended(own_store, extension(claim, reply))) == [RETAKEN]
        return False

    eventually(is_retaken, "it is taken again")
    assert elapsed(started) < 5  # a newcomer would be held off for six


def test_who_found_the_server_away_at_first_holds_off_too(own_redis, label) -> None:
    own_redis.kill()
    store = Node(source_from_url(own_redis.url))
    with pytest.raises(LockUnavailable):
        store.run(calls.acquire(make_claim(label, ttl=0.5)))
    own_redis.start()
    with pytest.raises(LockUnavailable, match="no new locks for"):
        store.run(calls.acquire(make_claim(label, ttl=30)), hold_off=0)
    store.close()


def test_a_server_that_was_only_out_of_reach_gives_locks_at_once(redis_server, label) -> None:
    with RedisServer() as server, Proxy(server.port) as proxy:
        store = Node(source_from_url(proxy.url))
        taken(store.run(calls.acquire(make_claim(label))))
        proxy.cut_off()
        with pytest.raises(LockUnavailable):
            store.run(calls.acquire(make_claim(f"{label}2", ttl=0.5)))
        proxy.reconnect()
        taken(store.run(calls.acquire(make_claim(f"{label}2")), hold_off=0))
        store.close()


def test_another_server_under_the_same_address_gives_no_new_lock_at_once(label) -> None:
    with RedisServer() as first, RedisServer() as second, Proxy(first.port) as proxy:
        store = Node(source_from_url(proxy.url))
        taken(store.run(calls.acquire(make_claim(label))))
        proxy.cut_off()
        proxy.target_port = second.port
        proxy.reconnect()
        with pytest.raises(LockUnavailable, match="no new locks for"):
            store.run(calls.acquire(make_claim(label)), hold_off=0)
        store.close()


def test_a_server_that_does_not_tell_which_it_is_is_held_off_after_a_break(
    own_redis, label
) -> None:
    def guard() -> None:
        with own_redis.client() as client:
            client.acl_setuser(
                "worker", enabled=True, passwords="+secret", keys="*", commands=["+@all", "-info"]
            )

    guard()
    store = Node(source_from_url(f"redis://worker:secret@127.0.0.1:{own_redis.port}"))
    taken(store.run(calls.acquire(make_claim(label))))
    taken(store.run(calls.acquire(make_claim(f"{label}2"))))
    own_redis.restart_empty()
    guard()
    with pytest.raises(LockUnavailable, match="no new locks for"):
        store.run(calls.acquire(make_claim(label)), hold_off=0)
    store.close()


def test_one_that_no_worker_has_taken_for_a_minute_counts_from_the_first_millisecond(
    store, client, label
) -> None:
    """A worker says so from then on, and `list` must not say less."""
    keys = lock_keys("redislock", label)
    seconds, micros = client.time()
    since = seconds * 1000 + micros // 1000 - UNTAKEN_AFTER * 1000
    client.zadd(keys.sent, {"a": since, "b": since + 30_000})
    assert Looking(store).untaken([keys.sent]) == [1]


def test_a_run_without_its_lock_is_told_until_it_ends_or_nobody_says_so(
    store, client, label
) -> None:
    claims = [make_claim(label, task_id=each) for each in ("first", "second")]
    keys, runs = claims[0].keys, []
    for claim in claims:
        runs.append(taken(store.run(calls.acquire(claim))))
        store.run(calls.break_lock(keys, 30))

    def mark(run: Acquired, ago: float = 0.0) -> None:
        now = store.ask(rooms.server_time(keys.lock)) - ago
        store.ask(calls.mark_lost(keys, run.fence, run.value, 'it said "no"', now))

    def told() -> list[tuple[str | None, str]]:
        _, (found,) = Looking(store).lost([keys.lost])
        return [(each.holder.task_id, each.why) for each in found]

    assert told() == []
    for run in runs:
        mark(run)
    assert told() == [("first", 'it said "no"'), ("second", 'it said "no"')]
    mark(runs[0], ago=lost.MARK_LIVES + 1)
    assert [task_id for task_id, _ in told()] == ["second"], "nobody says so of the first any more"
    assert 0 < client.ttl(keys.lost) <= lost.MARK_LIVES
    client.hset(keys.lost, "5", "x")
    client.hset(keys.lost, "6", "9999999999999|not a lock's value")
    assert [task_id for task_id, _ in told()] == ["second"]
    store.ask(calls.unmark_lost(keys, runs[1].fence))
    assert told() == []
    client.delete(keys.lost)
    client.set(keys.lost, "of another type")
    assert told() == []
