"""A request that comes late: its asker waits for no reply, and has parked, given up, or ended."""

from __future__ import annotations

import pytest

from celery_redislock.protocol import calls
from celery_redislock.protocol.claims import RETAKEN, Acquired, Busy, Claim, Parked, Parking, to_ms
from celery_redislock.protocol.rooms import park
from tests.contract.claims import extended, extension, make_claim, outcomes, taken

from .a_room import KEPT


def comes_late(store, claim: Claim, how: str = "try") -> None:
    """It neither takes the lock nor waits for it."""
    assert isinstance(store.run(calls.acquire(claim, how)), Busy)


@pytest.mark.parametrize("how", ["try", "wait", "woken", "last"])
@pytest.mark.parametrize("had_it", [True, False])
def test_what_has_ended_does_not_get_the_lock(store, inside, label, how, had_it) -> None:
    claim = make_claim(label, task_id=label)
    if had_it:
        taken(store.run(calls.acquire(claim)))
    release = calls.Release(stray=calls.REQUEST)
    assert store.run(calls.settle(claim, release)).ours is had_it

    comes_late(store, claim, how)

    assert not inside.exists(claim.keys.lock)
    assert inside.zcount(claim.keys.waiters, 0, "+inf") == 0
    other = make_claim(label, task_id=f"{label}2")
    taken(store.run(calls.acquire(other)))
    comes_late(store, claim, how)
    assert store.run(calls.settle(other)).ours
    assert not inside.exists(claim.keys.lock), "it was kept for nobody who waits"


def test_it_does_not_though_another_waits_and_the_release_is_repeated(store, inside, label) -> None:
    claim, waiter = make_claim(label, task_id=label), make_claim(label)
    taken(store.run(calls.acquire(claim)))
    assert isinstance(store.run(calls.acquire(waiter, "wait")), Busy)
    store.run(calls.settle(claim, calls.Release(stray=calls.REQUEST)))
    assert isinstance(store.run(calls.acquire(waiter, "wait")), Busy)
    assert not store.run(calls.settle(claim)).ours
    assert inside.pttl(claim.keys.waiters) > to_ms(calls.WAITER_TTL)

    comes_late(store, claim, "woken")

    assert isinstance(store.run(calls.acquire(waiter, "woken")), Acquired)


def test_who_gave_up_does_not_keep_the_holder_from_what_vanished(store, inside, label) -> None:
    """Such as after an empty restart, in which nobody had an answer."""
    holder, newcomer = make_claim(label), make_claim(label, task_id=label)
    held = taken(store.run(calls.acquire(holder)))
    store.run(calls.settle(newcomer, calls.Release(stray=calls.REQUEST)))
    inside.delete(holder.keys.lock)

    assert outcomes(extended(store, extension(holder, held))) == [RETAKEN]


def test_outside_tasks_nothing_is_left_behind(store, inside, label) -> None:
    """A coroutine is cancelled every now and then, with its request on its way."""
    claim = make_claim(label)
    assert not store.run(calls.settle(claim, calls.Release(stray=calls.REQUEST))).ours

    assert not inside.exists(claim.keys.waiters)


def test_a_task_that_has_parked_stays_in_the_room(room) -> None:
    holder, claim = room.take("holder"), room.claim("task")
    assert isinstance(room.store.run(calls.acquire(claim, "wait")), Busy)
    parking = Parking(room.entry("task"), in_doubt=True, arrived=1.0)
    assert isinstance(room.store.run(park(claim, parking)), Parked)
    offered = room.published(room.settle(holder), "task")

    comes_late(room.store, claim, "last")

    assert room.waiting == ["task"]
    room.take("task", member=offered.place.member)
    assert room.waiting == []


@pytest.mark.parametrize("parks", [True, False])
def test_a_task_that_goes_on_is_not_noted_as_turned_away(room, parks) -> None:
    room.take("holder")
    claim = room.claim("task", sent="a message", turned_away=True, history=10)
    if parks:
        parking = Parking(room.entry("task"), in_doubt=True, arrived=1.0)
        assert isinstance(room.store.run(park(claim, parking)), Parked)
    else:
        room.settle(claim, stray=calls.REQUEST)

    assert isinstance(room.store.run(calls.acquire(claim, note="1")), Busy)

    assert not room.client.exists(claim.done_key, room.keys.turned)


@pytest.mark.parametrize("had_left", [True, False])
def test_a_place_is_given_up_late_and_its_task_has_parked_again(room, had_left) -> None:
    holder = room.take("holder")
    room.park("task", receipt="ab:1/first")
    place = room.published(room.settle(holder), "task").place
    if had_left:
        room.settle(room.claim("task"), leaves=place)
        assert room.waiting == []
    room.pass_time(KEPT)
    again = room.take("holder")
    room.park("task", receipt="/second")

    room.settle(room.claim("task"), leaves=place)

    assert room.waiting == ["task"]
    offered = room.published(room.settle(again), "task")
    room.settle(room.claim("task"), leaves=offered.place)
    assert room.waiting == []


def test_nobody_remembers_that_for_ever(room) -> None:
    room.settle(room.take("task"), stray=calls.REQUEST)
    assert 0 < room.client.pttl(room.keys.waiters) <= 120_000
    room.pass_time(121)

    room.take("holder")
    room.ask("next", "wait")

    assert room.client.zcard(room.keys.waiters) == 1
