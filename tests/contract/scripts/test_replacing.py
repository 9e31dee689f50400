"""What the scripts say of a newer run: to who holds the lock, and to who is older."""

from __future__ import annotations

import json

import pytest

from celery_redislock import Holder
from celery_redislock.protocol import calls, holders, rooms
from celery_redislock.protocol.claims import (
    EXTENDED,
    Acquired,
    Claim,
    Done,
    Extension,
    Free,
    Older,
    Parked,
    Parking,
    Place,
)
from celery_redislock.protocol.clock import clock
from celery_redislock.protocol.keys import lock_keys
from celery_redislock.protocol.tokens import new_token
from tests.contract.scripts.a_room import SLOT, TASK
from tests.contract.servers.test_store import extended


def claim_of(label, task_id, attempt=0, member="", **when):
    token = new_token()
    value = holders.encode(
        token, ttl_ms=5000, task="pkg.task", task_id=task_id, attempt=attempt, **when
    )
    return Claim(
        lock_keys("redislock", label), token, 5, value, task_id, attempt, member=member, task=TASK
    )


def park(store, claim, grace=5.0, **when):
    by = holders.successor_text("pkg.task", claim.task_id)
    entry = json.dumps({"task": "pkg.task", "task_id": claim.task_id})
    parking = Parking(entry, SLOT, in_front=True, replace=(by, grace), **when)
    return store.run(rooms.park(claim, parking))


def extension(claim, held):
    return Extension(claim, held.value, held.fence, retake=True)


def test_a_holder_hears_from_its_extension_who_waits_and_how_long_it_may_go_on(store, label):
    holder, first, second = (claim_of(label, task_id) for task_id in ("runs", "first", "second"))
    held = store.run(calls.acquire(holder))
    (reply,) = extended(store, extension(holder, held))
    assert reply.replaced_by is None
    assert isinstance(park(store, first), Parked)
    (reply,) = extended(store, extension(holder, held))
    assert reply.outcome == EXTENDED
    assert reply.replaced_by == Holder(task="pkg.task", task_id="first")
    assert 4 < reply.ends_in <= 5
    assert list(park(store, second, grace=60).replaced) == [first.entry_id]
    (reply,) = extended(store, extension(holder, held))
    assert reply.replaced_by.task_id == "second"
    assert reply.ends_in <= 5, "the time that it was given first counts"
    assert store.ask(calls.holder_of(holder.keys, 5)).replaced_by == "second"
    offered = store.run(calls.settle(holder)).offered
    assert offered.place == Place(SLOT, second.entry_id)
    second = claim_of(label, "second", member=SLOT)
    assert isinstance(store.run(calls.acquire(second)), Acquired)
    assert isinstance(store.run(calls.acquire(first)), Done)


def test_a_task_that_is_asked_for_again_says_again_what_it_replaced(store, label):
    holder, other, first, second = (
        claim_of(label, task_id) for task_id in ("runs", "other", "first", "second")
    )
    store.run(calls.acquire(holder))
    assert isinstance(park(store, first), Parked)
    told = park(store, second).replaced
    assert list(told) == [first.entry_id]
    assert park(store, second).replaced == told, "the reply was lost"
    store.run(rooms.park(other, Parking("{}", "=other.task")))
    assert store.run(rooms.park(other, Parking("{}", "=other.task"))).replaced == {}
    store.ask(rooms.forget_ended(first.keys, first.entry_id, 5))
    assert park(store, second).replaced == {}, "it has its result"


def test_what_may_go_says_again_what_it_replaced(store, label):
    holder, first, second = (claim_of(label, task_id) for task_id in ("runs", "first", "second"))
    store.run(calls.acquire(holder))
    assert isinstance(park(store, first), Parked)
    store.run(calls.settle(holder))
    told = park(store, second)
    assert isinstance(told, Free)
    assert list(told.replaced) == [first.entry_id]
    assert park(store, second) == told, "the reply was lost"


def test_what_arrived_before_replaces_neither_who_runs_nor_who_waits(store, label):
    holder = claim_of(label, "runs", arrived=100.0)
    held = store.run(calls.acquire(holder))
    older = park(store, claim_of(label, "old"), arrived=99.0)
    assert isinstance(older, Older)
    assert older.holder.task_id == "runs"
    (reply,) = extended(store, extension(holder, held))
    assert reply.replaced_by is None
    assert isinstance(park(store, claim_of(label, "new"), arrived=102.0), Parked)
    assert park(store, claim_of(label, "between"), arrived=101.0) == Older("new")
    assert store.ask(calls.holder_of(holder.keys, 5)).replaced_by == "new"
    assert isinstance(park(store, claim_of(label, "nobody noted when")), Parked)


def test_a_replaced_task_stays_replaced_when_one_of_its_copies_ends(store, label):
    """Another copy has asked for the lock already. It must not take the newer task's place."""
    holder, first, second = (claim_of(label, task_id) for task_id in ("runs", "first", "second"))
    store.run(calls.acquire(holder))
    assert isinstance(park(store, first, arrived=100.0), Parked)
    assert isinstance(park(store, second, arrived=100.0), Parked)
    assert park(store, first, arrived=100.0) == Older("second")
    store.run(calls.mark_done(first))
    assert park(store, first, arrived=100.0) == Older("second")
    done = store.run(calls.acquire(first))
    assert isinstance(done, Done)
    assert done.note.replaced_by == Holder(task="pkg.task", task_id="second")


def test_of_two_whose_age_is_known_the_older_replaces_neither(store, inside, label):
    """Each is measured where the message was received; the times are the lock server's."""
    holder, now = claim_of(label, "runs", age=5.0), clock()
    assert isinstance(store.run(calls.acquire(holder)), Acquired)
    older = park(store, claim_of(label, "old"), received=now - 8)
    assert isinstance(older, Older)
    assert older.holder.task_id == "runs"
    assert isinstance(park(store, claim_of(label, "new"), received=now - 2), Parked)
    assert park(store, claim_of(label, "between"), received=now - 4) == Older("new")


def test_ages_count_in_microseconds(store, label):
    now = 1_800_000_000.0
    assert isinstance(store.run(calls.acquire(claim_of(label, "runs", arrived=now))), Acquired)
    assert isinstance(park(store, claim_of(label, "first"), arrived=now - 1e-5), Older)
    assert isinstance(park(store, claim_of(label, "a"), arrived=now), Parked)
    assert park(store, claim_of(label, "b"), arrived=now - 1e-5) == Older("a")
    assert isinstance(park(store, claim_of(label, "c"), arrived=now + 1e-5), Parked)


def test_of_two_that_one_worker_received_its_own_clock_tells_the_order(store, label):
    """What it measured for the server is late by as long as its calls took."""
    runs = claim_of(label, "runs", age=0.0, receipt="ab:2000")
    assert isinstance(store.run(calls.acquire(runs)), Acquired)
    late, early = {"received": clock()}, {"received": clock() - 3600}
    older = park(store, claim_of(label, "earlier"), **late, receipt="ab:1999")
    assert isinstance(older, Older)
    assert older.holder.task_id == "runs"
    assert isinstance(park(store, claim_of(label, "first"), **early, receipt="ab:2001"), Parked)
    assert isinstance(park(store, claim_of(label, "third"), **early, receipt="ab:10003"), Parked)
    assert park(store, claim_of(label, "second"), **late, receipt="ab:2002") == Older("third")
    elsewhere = {"received": clock() - 7200, "receipt": "cd:99999"}
    assert park(store, claim_of(label, "other"), **elsewhere) == Older("third"), (
        "two workers' clocks are not compared, but what they measured is"
    )
    assert isinstance(park(store, claim_of(label, "later"), **late, receipt="cd:1"), Parked)


@pytest.mark.parametrize("kept", ["for its retry", "in the queue"])
def test_what_does_not_run_is_replaced_at_once_and_its_message_finds_out(store, label, kept):
    holder, newer = claim_of(label, "runs"), claim_of(label, "newer")
    held = store.run(calls.acquire(holder))
    if kept == "for its retry":
        store.run(calls.hold(holder, holders.held_for_retry(held.value), 60))
    else:
        value = holders.kept_in_queue(held.value, new_token(), task="t", attempt=1, nesting=0)
        store.run(calls.hold(holder, value, 60))
    assert isinstance(park(store, newer), Free)
    assert isinstance(store.run(calls.acquire(newer)), Acquired)
    reply = store.run(calls.acquire(claim_of(label, "runs", attempt=1)))
    assert isinstance(reply, Done)
    assert reply.note.replaced_by == Holder(task="pkg.task", task_id="newer")
    again = store.run(calls.acquire(claim_of(label, "runs", attempt=1)))
    assert again.note.replaced_by.task_id == "newer"


def test_what_cools_down_or_is_not_ours_is_waited_for(store, inside, label):
    holder, newer = claim_of(label, "runs"), claim_of(label, "newer")
    store.run(calls.acquire(holder))
    store.run(calls.settle(holder, calls.Release(min_hold=60)))
    before = inside.get(holder.keys.lock)
    assert isinstance(park(store, newer), Parked)
    assert inside.get(holder.keys.lock) == before
    inside.set(holder.keys.lock, "foreign")
    assert isinstance(park(store, claim_of(label, "newest")), Parked)
    assert inside.get(holder.keys.lock) == "foreign"


@pytest.mark.parametrize("task_id", ["0c1e", 'a "quoted" one', "}]\\", "ключ", "\U0001f511", ""])
def test_a_successor_survives_whatever_it_is_called(task_id):
    text = holders.successor_text("pkg.task", task_id)
    assert text.count('"') == 4
    assert json.loads(text) == ["pkg.task", task_id]
    value = f'{{"token":"x","replaced":5,"by":{text}}}'.encode()
    assert holders.successor_of(value) == Holder(task="pkg.task", task_id=task_id)
    assert holders.parse(value, None).replaced_by == task_id
