"""A pause that a run's body asks for counts from the end of that run. Only its own task's next
attempt has the lock meanwhile, and does not end the pause.
"""

from __future__ import annotations

import json

import pytest

from celery_redislock.protocol import calls, holders, notes, rooms
from celery_redislock.protocol.claims import Acquired, Claim, Done
from tests.contract.claims import taken

from .a_room import TTL, Room

PAUSE = 600.0
NOTE = notes.lasting(notes.ENDED)


def leave(room: Room, claim: Claim, seconds: float, pause: float = PAUSE) -> None:
    """The run of this claim ends, asks for a pause, and leaves the lock to its retry."""
    key = next(each for each in room.slots if holds(room, each, claim))
    value = holders.held_for_retry(room.client.get(key))
    assert room.settle(claim, note=NOTE, always=True, heir=(value, seconds), pause=pause).ours


def holds(room: Room, key: str, claim: Claim) -> bool:
    return (room.client.get(key) or "").startswith(claim.opening)


def rest(room: Room) -> float:
    """Seconds until the first slot is free."""
    return room.client.pttl(room.keys.lock) / 1000


def about(seconds: float) -> object:
    return pytest.approx(seconds, abs=1)


def test_after_the_retry_the_rest_of_the_pause_is_kept(room):
    leave(room, room.take("runs"), 5)
    assert rest(room) == about(PAUSE), "no retry need come"
    assert room.ask("other").for_message
    room.pass_time(100)

    retry = room.take("runs", attempt=1)
    assert rest(room) == about(TTL)
    room.pass_time(100)
    assert room.settle(retry, note=NOTE, always=True).ours
    assert rest(room) == about(PAUSE - 200)
    assert room.ask("other").holder.cooling_down
    room.pass_time(PAUSE - 200 + 1)
    room.take("other")


@pytest.mark.parametrize(("first", "second"), [(PAUSE, 60.0), (60.0, PAUSE)])
def test_of_the_pauses_of_several_attempts_the_longest_is_kept(room, first, second):
    leave(room, room.take("runs"), 5, first)
    leave(room, room.take("runs", attempt=1), 5, second)
    assert rest(room) == about(PAUSE)
    assert room.settle(room.take("runs", attempt=2), pause=5.0).ours
    assert rest(room) == about(PAUSE)


def test_a_lock_is_kept_for_a_retry_that_comes_after_the_pause(room):
    leave(room, room.take("runs"), PAUSE + 60)
    assert rest(room) == about(PAUSE + 60)
    room.pass_time(PAUSE + 30)
    assert room.settle(room.take("runs", attempt=1)).ours
    room.take("other")


@pytest.mark.parametrize("how", ["retries", "replaces itself"])
def test_in_a_pause_the_task_that_asked_for_it_goes_on_and_no_other_does(room, how):
    """Its run did not leave the lock to the next one: it did not know the next one's lock."""
    assert room.settle(room.take("runs"), pause=PAUSE).ours
    assert room.ask("other").holder.cooling_down
    room.pass_time(100)
    more = {"attempt": 1} if how == "retries" else {"nesting": 1, "says": {"nesting": 1}}
    later = room.take("runs", **more)
    assert room.settle(later).ours
    assert rest(room) == about(PAUSE - 100)


@pytest.mark.parametrize("died", [True, False], ids=["died", "in vain"])
def test_one_that_did_not_run_to_its_end_goes_on_in_the_pause_and_its_earlier_copies_do_not(
    room, died
):
    """Else its own message would be turned away as a duplicate of it."""
    leave(room, room.take("runs"), 5)
    assert room.settle(room.take("runs", attempt=1), died=died).ours
    assert room.ask("other").holder.cooling_down
    assert isinstance(room.store.run(calls.acquire(room.claim("runs"))), Done)
    again = room.take("runs", attempt=1)
    assert room.settle(again, note=NOTE).ours
    assert rest(room) == about(PAUSE)
    assert isinstance(room.store.run(calls.acquire(room.claim("runs", attempt=1))), Done)


def test_who_holds_the_lock_under_a_pause_knows_the_value_that_is_stored(room):
    """It takes the lock again with it, if that vanishes; and leaves it to the retry after it."""
    leave(room, room.take("runs"), 5)
    claim = room.claim("runs", attempt=1)
    reply = taken(room.store.run(calls.acquire(claim)))
    assert reply.value == room.client.get(room.keys.lock)
    assert reply.fence == json.loads(reply.value)["fence"]
    assert taken(room.store.run(calls.acquire(claim))) == reply._replace(
        sent_at=pytest.approx(reply.sent_at, abs=10)
    )


@pytest.mark.parametrize("died", [True, False], ids=["died", "lives"])
def test_the_process_of_the_retry_dies_in_the_pause(room, died):
    leave(room, room.take("runs"), 5)
    retry = room.take("runs", attempt=1)
    kept = (holders.opening_of_held("heir"), 50.0)
    assert room.settle(retry, heir=kept, died=died).ours
    assert rest(room) == about(PAUSE)
    again = room.take("runs", attempt=2, kept="heir")
    assert room.settle(again, stray=True, died=died).ours
    assert rest(room) == about(PAUSE)


@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("pause", [0.0, PAUSE], ids=["held", "paused"])
def test_what_is_kept_for_a_retry_whose_process_dies_before_it_has_it_is_given_back(
    make_room, limit, pause
):
    room = make_room(limit)
    others = [room.take(f"other{number}") for number in range(limit - 1)]
    leave(room, room.take("runs"), 900, pause)
    retry = room.claim("runs", attempt=1)
    assert not room.settle(retry, stray=True).ours, "it may only have been late"
    assert not room.settle(room.claim("runs", attempt=2), died=True).ours, "it is not its own"
    assert room.settle(retry, stray=True, died=True).ours
    key = room.slots[len(others)]
    assert room.client.pttl(key) / 1000 == about(pause) if pause else not room.client.exists(key)
    if pause:
        assert room.ask("other").holder is not None
        assert json.loads(room.client.get(key)).get("held") is None


def test_a_retry_that_died_before_it_had_its_lock_leaves_it_to_its_own_retry(room):
    leave(room, room.take("runs"), 900, 0.0)
    kept = (holders.opening_of_held("heir"), 50.0)
    assert room.settle(room.claim("runs", attempt=1), heir=kept, died=True).ours
    assert rest(room) == about(50)
    room.take("runs", attempt=2, kept="heir")


def test_what_died_without_its_lock_leaves_none_to_its_retry(room):
    claim = room.take("runs")
    room.dies()
    kept = (holders.opening_of_held("heir"), 50.0)
    assert not room.settle(claim, heir=kept, died=True).ours
    room.take("other")


@pytest.mark.parametrize("limit", [1, 3])
def test_a_copy_that_comes_in_the_pause_of_its_run_meets_the_run_s_note(make_room, limit):
    room, note = make_room(limit), notes.EXPECTS_RESULT
    assert room.settle(room.take("runs"), note=note, pause=PAUSE).ours
    room.pass_time(7)

    done = room.store.run(calls.acquire(room.claim("runs")))

    assert done == Done(notes.Note(note), age=about(7))
    if limit == 1:
        call = calls.acquire(room.claim("runs"), again=notes.NO_MESSAGE)
        assert room.store.run(call).holder.cooling_down, "if it is no copy"
    assert isinstance(room.store.run(calls.acquire(room.claim("runs", attempt=1))), Acquired)


def test_a_copy_of_what_did_not_come_to_its_end_meets_none(room):
    assert room.settle(room.take("runs"), note=notes.PUBLISHING, pause=PAUSE).ours
    busy = room.ask("runs")
    assert busy.holder.cooling_down
    assert busy.relation == "other"


def test_what_was_replaced_in_a_room_is_ended_by_who_replaced_it(room):
    """If the process that parked it dies, its worker stores no failure."""
    room.take("runs")
    older = room.claim("older")
    assert not room.store.ask(rooms.goes_on_elsewhere(older, ()))
    assert room.replaces("older") == []
    assert room.store.ask(rooms.goes_on_elsewhere(older, ()))
    assert room.replaces("newer") == ["older"]
    assert room.store.ask(rooms.goes_on_elsewhere(older, ()))


def test_what_is_in_the_pause_after_its_run_does_not_go_on_elsewhere(room):
    """If its process dies before it has stored the result, its message comes back."""
    claim, other = room.take("runs"), room.claim("runs")
    assert room.store.ask(rooms.goes_on_elsewhere(other, ()))
    assert not room.store.ask(rooms.goes_on_elsewhere(claim, ()))
    assert room.settle(claim, pause=PAUSE).ours
    assert not room.store.ask(rooms.goes_on_elsewhere(other, ()))
    assert not room.store.ask(rooms.goes_on_elsewhere(claim, ()))


@pytest.mark.parametrize("retry", ["waits", "runs"])
def test_a_newer_call_that_replaces_the_retry_waits_for_the_end_of_the_pause(room, retry):
    leave(room, room.take("runs"), 5)
    runs = room.take("runs", attempt=1) if retry == "runs" else None
    by = holders.successor_text("pkg.task", room.task_id("newer"))
    room.parks("newer", replace=(by, 5.0))
    room.pass_time(100)
    assert runs is None or room.settle(runs).offered is None
    assert rest(room) == about(PAUSE - 100)
    assert room.ask("other").holder.cooling_down


def test_a_reservation_of_a_retry_that_is_given_up_leaves_the_pause(room):
    """With `lock_scope`, the message of the retry names what is kept for it."""
    claim = room.take("runs")
    value = holders.kept_in_queue(
        room.client.get(room.keys.lock), "kept", task="pkg.task", attempt=1, nesting=0
    )
    assert room.settle(claim, note=NOTE, heir=(value, 5.0), pause=PAUSE).ours
    assert rest(room) == about(PAUSE)
    given_up = Claim(room.keys, "kept", TTL, "")
    assert room.store.run(calls.settle(given_up)).ours
    assert rest(room) == about(PAUSE)
    holder = room.ask("other").holder
    assert holder.cooling_down
    assert not holder.queued


def test_a_clock_that_is_set_back_makes_no_pause_longer_than_it_is(room):
    claim = room.take("runs")
    room.set_time(room.now - 30_000)
    assert room.settle(claim, min_hold=2.0).ours
    assert 0 < rest(room) <= 2
