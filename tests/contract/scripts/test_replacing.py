"""What the scripts say of a newer run: to who holds the lock, and to who is older."""

from __future__ import annotations

import json
from typing import Any

import pytest

from celery_redislock import Holder
from celery_redislock.protocol import calls, holders, notes, rooms
from celery_redislock.protocol.claims import (
    EXTENDED,
    Claim,
    Done,
    Extended,
    Extension,
    Free,
    Older,
    Parked,
)
from celery_redislock.protocol.tokens import new_token
from tests.contract.claims import extended, keep
from tests.contract.clocks import clock
from tests.contract.scripts.a_room import SLOT, TASK, TTL, Room


def replaces(room: Room, task: str, grace: float = 5.0, **when: Any) -> Any:
    """The reply to a task that replaces who has the lock, and who waits."""
    by = holders.successor_text(TASK, room.task_id(task))
    return room.parks(task, SLOT, in_front=True, replace=(by, grace), **when)


def beats(room: Room, holder: Claim) -> Extended:
    """What the holder hears from its extension."""
    (reply,) = extended(room.store, Extension(holder, holder.value, 0, retake=False))
    assert isinstance(reply, Extended)
    return reply


def successor(room: Room, task: str) -> Holder:
    return Holder(task=TASK, task_id=room.task_id(task))


def older_than(room: Room, task: str) -> Older:
    return Older(room.task_id(task))


def told(room: Room, task: str, **options: Any) -> Holder | None:
    """By whom a task that must not run learns that it was replaced."""
    reply = room.store.run(calls.acquire(room.claim(task, **options)))
    assert isinstance(reply, Done), reply
    return reply.note.replaced_by


# -- who has the lock ---------------------------------------------------------------------------


def test_a_holder_hears_from_its_extension_who_waits_and_how_long_it_may_go_on(room: Room) -> None:
    holder = room.take("runs")
    assert beats(room, holder).replaced_by is None

    assert isinstance(replaces(room, "first"), Parked)
    reply = beats(room, holder)
    assert (reply.outcome, reply.replaced_by) == (EXTENDED, successor(room, "first"))
    assert reply.ends_in == 5

    room.pass_time(1)
    assert [*replaces(room, "second", grace=60).replaced] == [room.entry_id("first")]
    reply = beats(room, holder)
    assert reply.replaced_by == successor(room, "second")
    assert reply.ends_in == 4, "the time that it was given first counts"
    seen = room.store.ask(calls.holder_of(room.keys, TTL))
    assert seen.replaced_by == room.task_id("second")

    room.published(room.settle(holder), "second", SLOT)
    room.take("second", member=SLOT)
    assert told(room, "first") == successor(room, "second")


@pytest.mark.parametrize("kept", ["for its retry", "in the queue"])
def test_what_does_not_run_is_replaced_at_once_and_its_message_finds_out(
    room: Room, kept: str
) -> None:
    holder = room.take("runs")
    value = holders.held_for_retry(holder.value)
    if kept == "in the queue":
        run = {"task": "t", "attempt": 1, "nesting": 0}
        value = holders.kept_in_queue(holder.value, new_token(), **run)
    room.store.run(keep(holder, value, 60))

    assert isinstance(replaces(room, "newer"), Free)
    room.take("newer")
    for _ in range(2):
        assert told(room, "runs", attempt=1) == successor(room, "newer")


def test_what_cools_down_or_is_not_ours_is_waited_for(room: Room) -> None:
    room.settle(room.take("runs"), min_hold=60)
    for value in (room.client.get(room.keys.lock), "foreign"):
        room.client.set(room.keys.lock, value)
        assert isinstance(replaces(room, "newer"), Parked)
        assert room.client.get(room.keys.lock) == value


def test_what_was_replaced_stays_so_though_its_process_settles_after_others_did(room: Room) -> None:
    """The worker's main process has ended it, and given back its lock."""
    older = room.take("older")
    assert isinstance(replaces(room, "newer"), Parked)
    room.settle(older)
    room.settle(older, note=notes.EXPECTS_RESULT, always=True)
    assert told(room, "older") == successor(room, "newer")


@pytest.mark.parametrize("note", ["", "1"])
def test_what_was_replaced_and_died_stays_replaced(room: Room, note: str) -> None:
    """Its message comes back, also if its body had ended and its result is lost."""
    older = room.take("older")
    replaces(room, "newer")
    assert room.settle(older, note=note).offered is not None
    room.settle(room.take("newer", member=SLOT))
    if note:
        room.take("older")
    else:
        assert told(room, "older") == successor(room, "newer")


def test_a_copy_of_what_is_to_end_for_another_waits_while_it_runs(room: Room) -> None:
    """It may yet end in a result of its own, which the copy then finds; it does not run."""
    older = room.take("older")
    replaces(room, "newer")
    assert room.ask("older").relation == "own"
    room.settle(older, note="0")
    assert told(room, "older") == successor(room, "newer")


# -- who waits ----------------------------------------------------------------------------------


def kind_of(room: Room, task: str, **options: Any) -> str:
    """What the done note says to a message of that task about its end."""
    reply = room.store.run(calls.acquire(room.claim(task, **options)))
    assert isinstance(reply, Done), reply
    return reply.note.kind


def test_who_replaces_a_waiting_task_alone_stores_its_result(room: Room) -> None:
    """If it dies, one of those who look does. A message of that task never does."""
    room.take("runs")
    assert isinstance(replaces(room, "first"), Parked)
    found = replaces(room, "second").replaced
    assert found == {room.entry_id("first"): room.entry("first")}
    assert replaces(room, "second").replaced == {}, "it was told so before"
    assert kind_of(room, "first") == notes.ENDED

    assert room.look().ended == {}
    room.pass_time(rooms.ENDED_AGAIN)
    expected = {room.entry_id("first"): (room.task_id("second"), room.entry("first"))}
    for _ in range(3):
        assert room.look().ended == expected
        assert room.look().ended == {}, "one of several looks"
        room.pass_time(rooms.ENDED_AGAIN)
    room.store.run(calls.mark_done(room.claim("first")))
    assert kind_of(room, "first") == notes.ENDED


def test_who_may_go_at_once_stores_the_result_of_whom_it_replaced(room: Room) -> None:
    holder = room.take("runs")
    assert isinstance(replaces(room, "first"), Parked)
    room.settle(holder)
    assert replaces(room, "second") == Free({room.entry_id("first"): room.entry("first")})
    assert replaces(room, "second") == Free({})


def test_what_did_not_wait_in_the_room_ends_itself(room: Room) -> None:
    """A message of it that comes stores that it was replaced, unless its run has ended."""
    older = room.take("older", says={"arrived": 1.0})
    replaces(room, "newer")
    room.settle(older, note=notes.EXPECTS_RESULT, always=True)
    assert kind_of(room, "older") == notes.EXPECTS_RESULT

    newer = room.take("newer", member=SLOT)
    room.store.run(keep(newer, holders.held_for_retry(newer.value), 60))
    replaces(room, "newest")
    assert kind_of(room, "newer", attempt=1) == notes.REPLACED


def test_a_replaced_task_stays_replaced_when_one_of_its_copies_ends(room: Room) -> None:
    """Another copy has asked for the lock already. It must not take the newer task's place."""
    room.take("runs")
    for task in ("first", "second"):
        assert isinstance(replaces(room, task, arrived=100.0), Parked)
    for _ in range(2):
        reply = replaces(room, "first", arrived=100.0)
        assert isinstance(reply, Done)
        assert reply.note == notes.Note(notes.ENDED, replaced_by=successor(room, "second"))
        room.store.run(calls.mark_done(room.claim("first")))
    assert told(room, "first") == successor(room, "second")


# -- who is older -------------------------------------------------------------------------------


def test_what_arrived_before_replaces_neither_who_runs_nor_who_waits(room: Room) -> None:
    """To the microsecond."""
    now = 1_800_000_000.0
    holder = room.take("runs", says={"arrived": now})
    older = replaces(room, "old", arrived=now - 1e-5)
    assert isinstance(older, Older)
    assert older.holder.task_id == room.task_id("runs")
    assert beats(room, holder).replaced_by is None

    assert isinstance(replaces(room, "new", arrived=now), Parked)
    assert replaces(room, "between", arrived=now - 1e-5) == older_than(room, "new")
    assert beats(room, holder).replaced_by == successor(room, "new")
    assert isinstance(replaces(room, "newer", arrived=now + 1e-5), Parked)
    assert isinstance(replaces(room, "nobody noted when"), Older)


def test_of_two_whose_age_is_known_the_older_replaces_neither(room: Room) -> None:
    """Each is measured where the message was received; the times are the lock server's."""
    now = clock()
    room.take("runs", says={"age": 50.0})
    older = replaces(room, "old", received=now - 80)
    assert isinstance(older, Older)
    assert older.holder.task_id == room.task_id("runs")
    assert isinstance(replaces(room, "new", received=now - 20), Parked)
    assert replaces(room, "between", received=now - 40) == older_than(room, "new")


def test_of_two_that_one_worker_received_its_own_clock_tells_the_order(room: Room) -> None:
    """What it measured for the server is late by as long as its calls took."""
    room.take("runs", says={"age": 600.0, "receipt": "ab:2000"})
    late, early = {"received": clock()}, {"received": clock() - 3600}
    older = replaces(room, "earlier", **late, receipt="ab:1999")
    assert isinstance(older, Older)
    assert older.holder.task_id == room.task_id("runs")

    assert isinstance(replaces(room, "first", **early, receipt="ab:2001"), Parked)
    assert isinstance(replaces(room, "third", **early, receipt="ab:10003"), Parked)
    assert replaces(room, "second", **late, receipt="ab:2002") == older_than(room, "third")

    elsewhere = {"received": clock() - 7200, "receipt": "cd:99999"}
    assert replaces(room, "other", **elsewhere) == older_than(room, "third"), (
        "two workers' clocks are not compared, but what they measured is"
    )
    assert isinstance(replaces(room, "later", **late, receipt="cd:1"), Parked)


@pytest.mark.parametrize("task_id", ["0c1e", 'a "quoted" one', "}]\\", "ключ", "\U0001f511", ""])
def test_a_successor_survives_whatever_it_is_called(task_id: str) -> None:
    text = holders.successor_text("pkg.task", task_id)
    assert text.count('"') == 4
    assert json.loads(text) == ["pkg.task", task_id]
    value = f'{{"token":"x","replaced":5,"by":{text}}}'.encode()
    assert holders.successor_of(value) == Holder(task="pkg.task", task_id=task_id)
    assert holders.parse(value, None).replaced_by == task_id
