"""The store: what each driver carries to the scripts and back, on real servers and in memory.

The scripts' own rules are in `tests/contract/scripts`, and in any order in `tests/simulation`.
"""

from __future__ import annotations

import dataclasses
import getpass
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from celery_redislock import Holder, LockUnavailable
from celery_redislock.inspection import history
from celery_redislock.inspection.locks import lost_of, walk
from celery_redislock.inspection.rooms import rooms_of
from celery_redislock.protocol import calls, holders, lost, past, rooms
from celery_redislock.protocol.claims import (
    EXTENDED,
    NOT_OURS,
    RETAKEN,
    Acquired,
    Busy,
    Done,
    Extension,
    Reserved,
)
from celery_redislock.protocol.keys import lock_keys
from celery_redislock.protocol.notes import PUBLISHING
from celery_redislock.protocol.rooms import UNTAKEN_AFTER
from celery_redislock.servers.restarts import info
from celery_redislock.servers.server import Server
from celery_redislock.testing import MemoryServer
from tests.contract.claims import (
    busy,
    extended,
    extension,
    keep,
    make_claim,
    names_apart,
    outcomes,
    taken,
)
from tests.contract.clocks import clock
from tests.contract.scripts.a_room import SLOT, Room
from tests.support.waiting import eventually

#: Every key that a script touches is in its KEYS.
pytestmark = pytest.mark.usefixtures("declared_keys")


@pytest.fixture
def client(inside: redis.Redis) -> redis.Redis:
    """A client that looks into what `store` is in: each rule holds on a server and in memory."""
    return inside


# -- a lock -----------------------------------------------------------------------------------


def test_a_held_lock_is_busy_and_names_its_holder_until_it_is_given_back(
    store, client, label
) -> None:
    claim = make_claim(label, ttl=15, task_id="0c1e", attempt=2)
    assert store.ask(calls.holder_of(claim.keys, 5)) is None
    reply = taken(store.run(calls.acquire(claim)))

    record = json.loads(client.get(claim.keys.lock))
    assert (record["token"], record["node"]) == (claim.token, socket.gethostname())
    assert (record["task"], record["task_id"], record["attempt"]) == ("pkg.task", "0c1e", 2)
    assert record["fence"] == reply.fence
    assert abs(record["acquired_at"] - time.time()) < 60
    assert 5000 < client.pttl(claim.keys.lock) <= 15_000, "no lock is without an expiry"

    second = make_claim(label, task_id="second")
    refused = busy(store.run(calls.acquire(second)))
    assert refused.relation == "other"
    for holder in (refused.holder, store.ask(calls.holder_of(claim.keys, 5))):
        assert (holder.task, holder.task_id, holder.attempt) == ("pkg.task", "0c1e", 2)
        assert (holder.fence, holder.held_for_retry) == (reply.fence, False)
        assert 5 < holder.ttl <= 15

    assert not store.run(calls.settle(second)).ours
    assert store.run(calls.settle(claim)).ours
    assert taken(store.run(calls.acquire(second))).fence > reply.fence
    assert not store.run(calls.settle(claim)).ours
    assert json.loads(client.get(claim.keys.lock))["token"] == second.token


def test_many_locks_are_extended_at_once_and_each_has_its_own_answer(store, client, label) -> None:
    claims = [make_claim(name, ttl=30 + n) for n, name in enumerate(names_apart(label, 5))]
    replies = [taken(store.run(calls.acquire(claim))) for claim in claims]
    client.delete(claims[1].keys.lock)
    client.set(claims[2].keys.lock, "a thief")
    client.delete(claims[3].keys.lock)
    client.pexpire(claims[4].keys.lock, 5_000)
    wanted = [extension(claim, reply) for claim, reply in zip(claims, replies, strict=True)]
    wanted[3] = extension(claims[3], replies[3], retake=False)

    found = outcomes(extended(store, *wanted))

    assert found == [EXTENDED, RETAKEN, NOT_OURS, NOT_OURS, EXTENDED]
    assert client.get(claims[1].keys.lock) == replies[1].value
    assert client.pttl(claims[4].keys.lock) > 10_000


def test_a_copy_of_the_holders_message_meets_its_own_lock_and_learns_that_it_has_run(
    store, client, label
) -> None:
    claim, copy = (make_claim(label, task_id=label, attempt=1) for _ in range(2))
    taken(store.run(calls.acquire(claim)))

    assert busy(store.run(calls.acquire(copy))).relation == "own"
    assert json.loads(client.get(claim.keys.lock))["redelivered"] is True
    assert 0 < client.pttl(claim.keys.lock) <= 30_000

    assert store.run(calls.settle(claim, calls.Release(note=PUBLISHING))).ours
    reply = store.run(calls.acquire(copy))
    assert isinstance(reply, Done)
    assert reply.note.kind == PUBLISHING
    assert 0 <= reply.age < 60


def test_a_lock_that_is_kept_for_the_retry_goes_to_it_and_to_nobody_else(
    store, client, label
) -> None:
    first = make_claim(label, task_id=label)
    held = taken(store.run(calls.acquire(first)))
    assert store.run(keep(first, holders.held_for_retry(held.value), 90)).ours

    assert 30_000 < client.pttl(first.keys.lock) <= 90_000
    holder = store.ask(calls.holder_of(first.keys, 30))
    assert (holder.task_id, holder.fence, holder.held_for_retry) == (label, held.fence, True)
    assert busy(store.run(calls.acquire(make_claim(label, task_id="other")))).relation == "other"
    assert not store.run(calls.settle(first)).ours
    retry = make_claim(label, task_id=label, attempt=1)
    assert taken(store.run(calls.acquire(retry))).fence > held.fence


def test_a_holder_whose_lock_was_broken_is_told_by_whom(store, client, label) -> None:
    claim = make_claim(label, task_id="0c1e")
    reply = taken(store.run(calls.acquire(claim)))

    assert store.run(calls.break_lock(claim.keys, 30)).task_id == "0c1e"
    assert store.run(calls.break_lock(claim.keys, 30)) is None

    (found,) = extended(store, extension(claim, reply))
    by = f"{getpass.getuser()}@{socket.gethostname()}"
    assert (found.outcome, found.broken_by) == (NOT_OURS, by)
    assert not client.exists(claim.keys.lock)


def test_a_lock_is_reserved_for_a_message(store, label) -> None:
    claim = make_claim(label, task_id="queued")
    assert isinstance(store.run(calls.reserve(claim, 60)), Reserved)
    assert isinstance(store.run(calls.reserve(make_claim(label), 60)), Busy)
    assert store.run(calls.keep_reserved(claim, 60), once=True).outcome == EXTENDED


# -- values that are not ours -----------------------------------------------------------------

FOREIGN: dict[str, Callable[[redis.Redis, str], Any]] = {
    "text": lambda client, key: client.set(key, "locked by somebody else"),
    "bytes": lambda client, key: client.set(key, b"\xff\xfe\x00"),
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
    assert not store.run(keep(claim, holders.held_for_retry(claim.value), 5)).ours
    assert store.run(calls.break_lock(claim.keys, 30)) is None
    assert store.ask(calls.holder_of(claim.keys, 30)) == Holder()
    assert str(store.ask(calls.holder_of(claim.keys, 30))) == "a foreign value"

    assert raw.dump(claim.keys.lock) == before
    assert raw.pttl(claim.keys.lock) == -1


# -- waiters ----------------------------------------------------------------------------------


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
        return any(store._lines.values())  # it has no INFO
    told = [each.replies([("INFO", "clients")])[0] for each in store.primaries().values()]
    return any(int(info(each)["blocked_clients"]) > 0 for each in told)


def test_a_waiter_sleeps_until_it_is_woken(store, label) -> None:
    holder, waiter = make_claim(label), make_claim(label)
    taken(store.run(calls.acquire(holder)))
    busy(store.run(calls.acquire(waiter, "wait")))
    woken: list[Any] = []
    thread = threading.Thread(
        target=lambda: woken.append(
            store.block(calls.acquire(waiter, "woken"), waiter.keys.wake, 20)
        )
    )
    started = clock()
    thread.start()
    eventually(lambda: has_sleepers(store), "it sleeps in the server")
    woke_at = clock()
    store.run(calls.settle(holder))
    thread.join(30)
    sent_at = taken(woken[0]).sent_at
    assert started <= sent_at
    if not isinstance(store, MemoryServer):  # its right counts from before the sleep
        assert sent_at <= woke_at


def test_a_waiter_sleeps_no_longer_than_it_was_told_to(store, label) -> None:
    taken(store.run(calls.acquire(make_claim(label))))
    started = time.monotonic()
    busy(store.block(calls.acquire(make_claim(label), "woken"), make_claim(label).keys.wake, 0.2))
    assert time.monotonic() - started > 0.1
    assert time.monotonic() - started < 5, "a wake-up would come no later"


def test_a_waiter_that_cannot_sleep_says_so_and_does_not_ask_again_at_once(
    store, client, label
) -> None:
    claim, waiter = make_claim(label), make_claim(label)
    taken(store.run(calls.acquire(claim)))
    client.set(claim.keys.wake, "not a list")
    with pytest.raises(LockUnavailable, match="WRONGTYPE"):
        store.block(calls.acquire(waiter, "woken"), waiter.keys.wake, 20)
    client.delete(claim.keys.lock)
    taken(store.block(calls.acquire(waiter, "woken"), waiter.keys.wake, 5))


def test_a_woken_waiter_brings_the_script_along_if_the_server_has_forgotten_it(
    store, client, label
) -> None:
    claim = make_claim(label)
    client.script_flush()
    taken(store.block(calls.acquire(claim, "woken"), claim.keys.wake, 0.01))


# -- a room, the history, and who goes on without its lock ------------------------------------


def test_tasks_wait_in_a_room_and_are_served(store, client, label) -> None:
    room = Room(store, client, label)
    holder = room.take("holder")
    room.park("a", "b", "c")
    assert room.replaces("older") == []
    assert room.replaces("newer") == ["older"]

    room.published(room.settle(holder), "a")
    room.take("a", member=room.entry_id("a"))
    assert room.drop("b") == {}, "it is not under way"
    assert room.leave("c").ours

    assert room.waiting == ["b", SLOT]
    assert room.store.ask(rooms.server_time(room.keys.lock)) > 0
    assert room.look().ended == {}
    assert room.drop_all().keys() == {room.entry_id("b"), room.entry_id("newer")}
    assert room.waiting == []

    for task in ("older", "b", "newer"):  # their results are stored
        store.ask(rooms.forget_ended(room.keys, room.entry_id(task), 5))
    assert room.look().due_in is None, "no worker looks after it any more"


def test_what_ran_is_in_the_history(store, label) -> None:
    claim = dataclasses.replace(make_claim(label, task_id=label), task=label, history=5)
    taken(store.run(calls.acquire(claim)))
    assert store.run(calls.settle(claim, calls.Release(stray=True, run_end=past.DIED))).ours
    store.run(calls.turn_away(claim, 0), once=True)

    runs = history.kept_runs(store, [(claim.keys.history, label)])
    assert [each.how for each in runs] == ["died"]
    assert sum(history.by_the_hour(store, "redislock")[label].values()) == 1


def test_one_that_no_worker_has_taken_for_a_minute_counts_from_the_first_millisecond(
    store, client, label
) -> None:
    """A worker says so from then on, and `list` must not say less."""
    keys = lock_keys("redislock", label)
    seconds, micros = client.time()
    since = seconds * 1000 + micros // 1000 - UNTAKEN_AFTER * 1000
    client.zadd(keys.sent, {"a": since, "b": since + 30_000})
    client.rpush(keys.room, "a", "b")
    (room,) = rooms_of(store, "redislock", [label])
    assert (room.total, room.untaken) == (2, 1)


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
        found = lost_of(store, [(keys.lost, keys.name)])
        return [(each.holder.task_id, each.lost_because) for each in found]

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


def test_a_run_whose_lock_expires_while_an_operator_looks_is_one_row(store, client, label) -> None:
    """It lost its lock, and a late extension had taken it again."""
    keys = make_claim(label).keys
    held = taken(store.run(calls.acquire(make_claim(label))))
    now = store.ask(rooms.server_time(keys.lock))
    store.ask(calls.mark_lost(keys, held.fence, held.value, "no answer", now))

    found = []
    for each in walk(store, "redislock"):
        if each.name == keys.name:
            client.delete(keys.lock)  # as soon as it is seen
            found.append(each.state)
    assert found == ["held"]

    assert [each.state for each in lost_of(store, [(keys.lost, keys.name)])] == ["without its lock"]
