"""The waiting room: `room.lua` in each script that has it, on real servers and in memory.

`tests/proofs/model/room_machine.py` has the same rules in any order.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from celery_redislock.protocol import calls, holders
from celery_redislock.protocol.claims import (
    Acquired,
    Busy,
    Done,
    Free,
    Older,
    Parked,
    Reserved,
    Settled,
    to_ms,
)
from celery_redislock.protocol.clock import clock
from celery_redislock.protocol.rooms import ENDED_AGAIN
from tests.contract.scripts.a_room import (
    BESIDE_WAITERS,
    FOR_OTHERS,
    KEPT,
    LONGEST_PAUSE,
    SLOT,
    TTL,
    Room,
)

#: For `pass_time`: a moment longer than what must be over.
MORE = 0.001

# -- a task is published --------------------------------------------------------------------------


def test_who_releases_publishes_the_first_and_the_lock_is_free(room: Room) -> None:
    holder = room.take("holder")
    room.park("a", "b")
    reply = room.settle(holder)
    published = room.published(reply, "a")
    assert reply.ours
    assert (published.gives_up, published.since) == (False, 0)
    assert not room.client.exists(room.keys.lock)
    assert room.waiting == ["a", "b"], "it stays there until it has the lock"
    assert reply.due_in == room.due_in == KEPT
    assert room.settle(holder) == Settled(False, KEPT), "a second call publishes nobody"
    room.take("a", member=room.entry_id("a"))
    assert (room.waiting, room.under_way) == (["b"], {})
    assert room.due_in == pytest.approx(TTL, abs=5), "if the holder dies, somebody looks"


def test_a_published_task_tells_when_it_arrived_by_the_servers_clock(room: Room) -> None:
    holder = room.take("holder")
    room.park("a", received=clock() - 7)
    arrived = room.published(room.settle(holder), "a").arrived
    assert arrived == pytest.approx(room.now / 1000 - 7, abs=1)


@pytest.mark.parametrize("how", ["try", "wait", "woken", "last"])
def test_who_meets_a_free_lock_does_not_overtake_the_room(room: Room, how: str) -> None:
    room.take("holder")
    room.park("a")
    room.dies()
    reply = room.ask("newcomer", how)
    room.published(reply, "a")
    assert (reply.relation, reply.holder, reply.for_message) == ("other", None, False)
    again = room.ask("newcomer", how)
    assert (again.relation, again.offered) == ("other", None), "its message is under way"
    room.take("a")


def test_a_free_lock_is_not_kept_for_the_message_of_one_that_would_overtake(room: Room) -> None:
    room.take("holder")
    room.park("a")
    room.dies()
    reply = room.store.run(calls.reserve(room.claim("newcomer"), 10))
    assert isinstance(reply, Busy)
    room.published(reply, "a")
    assert (reply.holder, room.due_in) == (None, KEPT)
    room.leave("a")
    assert room.store.run(calls.reserve(room.claim("newcomer"), 10)) == Reserved()


def test_a_message_that_meets_a_held_lock_waits_on_where_it_was(room: Room) -> None:
    holder = room.take("holder")
    room.park("a")
    room.settle(holder)
    room.pass_time(KEPT)
    faster = room.take("faster")
    room.park("b")
    room.park("a", in_front=True)
    assert (room.waiting, room.under_way) == (["a", "b"], {})
    assert room.published(room.settle(faster), "a").since == 0, "its pauses begin anew"


# -- a caller that cannot publish -----------------------------------------------------------------


def test_what_a_lock_outside_of_tasks_frees_others_publish_at_once(room: Room) -> None:
    holder = room.take("holder")
    room.park("a")
    reply = room.settle(holder, publishes=False)
    assert (reply.offered, reply.due_in, room.due_in) == (None, 0, 0)
    room.published(room.look(), "a")


def test_a_lock_outside_of_tasks_does_not_overtake_unless_nobody_publishes(room: Room) -> None:
    room.settle(room.take("before"))
    room.take("holder")
    room.park("a")
    room.dies()
    room.pass_time(TTL + KEPT - 1)
    claim = room.lock_claim()
    busy = room.store.run(calls.acquire(claim))
    assert isinstance(busy, Busy)
    assert busy.offered is None
    room.pass_time(2)
    assert isinstance(room.store.run(calls.acquire(claim)), Acquired), "no worker looks"
    assert room.due_in < -KEPT, "that it took the lock is no look"


def test_one_that_cannot_be_published_here_does_not_block_those_behind(room: Room) -> None:
    holder = room.take("holder")
    room.park("a", "b")
    room.published(room.settle(holder), "a")
    assert room.look("a").offered is None, "others have some time for it"
    room.pass_time(FOR_OTHERS)
    room.published(room.look("a"), "b")
    assert room.look("a", "b").offered is None
    assert room.published(room.look(), "a").since > 0, "others publish it at once"
    room.pass_time(FOR_OTHERS)
    assert room.look("a", "b").offered is None
    room.take("newcomer")
    assert room.waiting == ["a", "b"], "the lock is kept for none of them"


def test_two_fleets_that_keep_a_lock_busy_both_have_their_turns(room: Room) -> None:
    """Those of the one fleet cannot publish the tasks of the other."""
    holder = room.take("holder")
    room.park("theirs", "ours")
    room.published(room.settle(holder), "theirs")
    assert room.look("theirs").offered is None
    assert room.due_in <= 1
    room.published(room.look(), "theirs")
    theirs = room.take("theirs")
    room.published(room.settle(theirs), "ours")


def test_one_that_others_can_publish_has_its_place_again_though_the_lock_is_never_free(
    room: Room,
) -> None:
    holder = room.take("holder")
    room.park("theirs", "ours")
    room.published(room.settle(holder), "theirs")
    room.look("theirs")
    room.pass_time(FOR_OTHERS)
    room.published(room.look("theirs"), "ours")
    ours = room.take("ours")
    room.published(room.look(), "theirs")
    assert room.look("theirs").offered is None, "it is published but once"
    room.ask("theirs")
    room.park("theirs")
    room.published(room.settle(ours), "theirs")
    assert room.look("theirs").offered is None, "others have some time for it again"


def test_who_cannot_publish_one_tries_again_with_growing_pauses(room: Room) -> None:
    holder = room.take("holder")
    room.park("a")
    room.settle(holder)
    pauses = []
    for _ in range(14):
        pauses.append(room.look("a").due_in)
        room.pass_time(pauses[-1])
    assert pauses[0] == BESIDE_WAITERS
    assert pauses == sorted(pauses)
    assert sum(pauses) > 60
    room.pass_time(4 * LONGEST_PAUSE)
    assert room.look("a").due_in == LONGEST_PAUSE


def test_however_many_cannot_be_published_here_block_those_behind_for_seconds_each(
    room: Room,
) -> None:
    holder = room.take("holder")
    unknown = [f"u{number}" for number in range(40)]
    room.park(*unknown, "known")
    reply = room.settle(holder)
    passed_over = []
    for _ in range(200):
        while reply.offered is not None and reply.offered.place.member != room.entry_id("known"):
            passed_over.append(reply.offered.place.member)
            reply = room.look(*passed_over)
        if reply.offered is not None:
            break
        passed_over = []
        room.pass_time(max(reply.due_in, MORE))
        reply = room.look()
    room.published(reply, "known")


# -- a message that does not come -----------------------------------------------------------------


def test_a_task_that_does_not_come_is_published_again_whenever_its_age_has_doubled(
    room: Room,
) -> None:
    holder = room.take("holder")
    room.park("a")
    reply = room.settle(holder)
    age = 0.0
    for pause in (5, 5, 10, 20, 40, 80, 160, 320, 600, 600):
        assert room.published(reply, "a").since == pytest.approx(age)
        assert reply.due_in == pause
        room.pass_time(pause - MORE)
        assert room.look().offered is None
        room.pass_time(MORE)
        age += pause
        reply = room.look()
    assert room.waiting == ["a"]


def test_the_lock_is_free_for_all_once_the_first_did_not_come(room: Room) -> None:
    holder = room.take("holder")
    room.park("a")
    room.settle(holder)
    room.pass_time(KEPT - MORE)
    room.ask("newcomer")
    room.pass_time(MORE)
    claim = room.take("newcomer")
    room.published(room.settle(claim), "a")
    room.take("a", member=room.entry_id("a"))
    assert room.waiting == [], "it came late, and runs"


def test_behind_those_that_do_not_come_the_next_has_its_chance_after_growing_pauses(
    room: Room,
) -> None:
    holder = room.take("holder")
    room.park(*"abcdef")
    room.published(room.settle(holder), "a")
    for task, pause in zip("bcdef", (5, 10, 20, 40, 40), strict=True):
        first = len(room.under_way)
        room.pass_time(pause - MORE)
        while room.look().offered is not None:
            pass  # those before are published again
        assert len(room.under_way) == first
        assert room.due_in <= MORE
        room.pass_time(MORE)
        while task not in room.under_way:
            assert room.look().offered is not None


def test_one_that_no_worker_takes_for_too_long_is_named_and_dropped_with_a_note(room: Room) -> None:
    holder = room.take("holder")
    room.park("a", "b")
    room.settle(holder)
    room.pass_time(100 - MORE)
    assert room.look(longest=100).too_long == []
    room.pass_time(MORE)
    assert room.look(longest=100).too_long == [room.entry_id("a")]
    assert room.drop("a") == {room.entry_id("a"): room.entry("a")}
    assert room.waiting == ["b"]
    room.pass_time(ENDED_AGAIN)
    assert room.look().ended == {room.entry_id("a"): ("", room.entry("a"))}
    assert isinstance(room.store.run(calls.acquire(room.claim("a"))), Done)


def test_one_that_has_come_or_was_replaced_meanwhile_is_not_dropped(
    make_room: Callable[..., Room],
) -> None:
    room = make_room(2)
    first, second = room.take_all()
    room.park("a")
    room.replaces("b")
    room.published(room.settle(first), "a")
    room.published(room.settle(second), "b", SLOT)
    room.pass_time(100)
    assert {*room.look(longest=100).too_long} == {SLOT, room.entry_id("a")}
    room.take("a", member=room.entry_id("a"))
    room.take("other")
    assert room.replaces("newer") == ["b"]
    assert room.drop("a", SLOT) == {}
    assert room.waiting == [SLOT]


# -- the pending slot -----------------------------------------------------------------------------


def test_the_newest_call_has_the_slot_and_the_place_of_the_one_before(room: Room) -> None:
    holder = room.take("holder")
    room.park("a")
    assert room.replaces("first") == []
    room.park("b")
    assert room.replaces("second") == ["first"]
    assert room.waiting == ["a", SLOT, "b"]
    room.take("a", member=room.settle(holder).offered.place.member)
    assert isinstance(room.store.run(calls.acquire(room.claim("first"))), Done)
    assert room.look().ended == {}, "who replaced it stores its result"
    room.pass_time(ENDED_AGAIN)
    assert room.look().ended == {
        room.entry_id("first"): (room.task_id("second"), room.entry("first"))
    }


def test_a_run_that_died_does_not_come_back_to_the_place_that_a_newer_call_has(room: Room) -> None:
    holder = room.take("holder")
    room.replaces("first")
    room.settle(holder)
    room.take("first", member=SLOT)
    room.replaces("newer")
    room.dies()
    room.published(room.look(), "newer", SLOT)
    room.ask("first", member=SLOT)
    room.take("newer", member=SLOT)


def test_one_that_was_replaced_while_its_message_came_does_not_replace_the_newer_call(
    room: Room,
) -> None:
    """Both arrived at one time: else each would have replaced the other, and none would run."""
    holder = room.take("holder")
    room.replaces("first", arrived=1.0)
    room.settle(holder)
    room.pass_time(KEPT)
    room.take("faster")
    room.ask("first", member=SLOT)
    assert room.replaces("newer", arrived=1.0) == ["first"]
    assert room.parks("first", SLOT, in_front=True, arrived=1.0) == Older(room.task_id("newer"))


def test_who_replaces_the_one_that_is_under_way_goes_at_once(room: Room) -> None:
    holder = room.take("holder")
    room.replaces("first")
    room.park("b")
    room.published(room.settle(holder), "first", SLOT)
    assert room.parks("newer", SLOT) == Free({room.entry_id("first"): room.entry("first")})
    assert (room.waiting, room.under_way) == ([SLOT, "b"], {})
    room.take("newer")
    assert room.waiting == ["b"], "it need not say that it has the slot"


def test_a_copy_goes_from_its_tasks_slot_and_not_behind_it(room: Room) -> None:
    room.take("holder")
    room.replaces("a")
    room.dies()
    room.take("a")
    assert room.waiting == []


@pytest.mark.parametrize("members", [(SLOT, ""), ("", SLOT)])
def test_a_copy_does_not_wait_beside_what_it_is_a_copy_of(room: Room, members: tuple[str, str]):
    """One that a broker delivers again may have begun: then it goes before all, as itself."""
    room.take("holder")
    room.park("a")
    first, second = members
    assert isinstance(room.parks("b", first), Parked)
    assert isinstance(room.parks("b", second, in_front=True), Parked)
    assert room.waiting == ["a", first or "b"]
    assert room.replaces("newer") == (["b"] if first else [])


# -- Debounce -------------------------------------------------------------------------------------

QUIET = (5.0, 12.0)


def test_a_call_waits_for_quiet_though_the_lock_is_free_and_blocks_nobody(room: Room) -> None:
    reply = room.parks("a", SLOT, quiet=QUIET)
    assert (reply.offered, reply.due_in) == (None, 5)
    room.settle(room.take("other"))
    room.pass_time(5 - MORE)
    assert room.look().offered is None
    room.pass_time(MORE)
    room.published(room.look(), "a", SLOT)
    room.take("a", member=SLOT)
    assert room.waiting == []


def test_a_newer_call_begins_the_quiet_anew_but_not_the_longest_wait(room: Room) -> None:
    assert room.replaces("a", quiet=QUIET) == []
    room.pass_time(4)
    reply = room.parks("b", SLOT, quiet=QUIET)
    assert ([*reply.replaced], reply.due_in) == ([room.entry_id("a")], 5)
    room.pass_time(4)
    assert room.parks("c", SLOT, quiet=QUIET).due_in == 4, "12 s after the first call"
    room.pass_time(4 - MORE)
    assert room.look().offered is None
    room.pass_time(MORE)
    room.published(room.look(), "c", SLOT)


def test_a_newer_call_runs_itself_once_the_longest_wait_is_over(room: Room) -> None:
    """Steady calls, each of which replaces the one that was published, all wait no longer."""
    room.parks("a", SLOT, quiet=QUIET)
    room.pass_time(QUIET[1])
    room.published(room.look(), "a", SLOT)
    assert room.parks("b", SLOT, quiet=QUIET) == Free({room.entry_id("a"): room.entry("a")})
    room.take("b")
    assert isinstance(room.parks("c", SLOT, quiet=QUIET), Parked)
    assert room.due_in == 5, "this is the next burst"


# -- who gives up ---------------------------------------------------------------------------------


def test_one_gives_up_behind_another_that_waits_for_ever(room: Room) -> None:
    room.take("holder")
    room.park("a")
    room.park("b", give_up=20)
    assert room.due_in == 20
    room.pass_time(20 - MORE)
    assert room.look().offered is None
    room.pass_time(MORE)
    look = room.look()
    assert room.published(look, "b").gives_up
    assert room.waiting == ["a", "b"], "its message may be lost"
    assert look.due_in == KEPT
    assert not room.leave("b").ours
    assert room.waiting == ["a"]


def test_a_give_up_whose_message_does_not_come_is_sent_again_with_growing_pauses(
    room: Room,
) -> None:
    room.take("holder")
    room.park("a", give_up=1)
    room.pass_time(1)
    for pause in (5, 5, 10, 20, 40, 80):
        look = room.look()
        assert room.published(look, "a").gives_up
        assert look.due_in == pause
        assert room.look().offered is None
        room.pass_time(pause)


# -- several slots --------------------------------------------------------------------------------


def test_for_each_free_slot_one_is_published(make_room: Callable[..., Room]) -> None:
    room = make_room(3)
    claims = room.take_all()
    room.park("a", "b", "c", "d")
    for claim, task in zip(claims, "abc", strict=True):
        room.published(room.settle(claim), task)
    assert room.look().offered is None
    assert room.ask("newcomer").offered is None
    for task in "cba":
        room.take(task)
    assert (room.waiting, room.due_in) == (["d"], pytest.approx(TTL, abs=5))


def test_beside_one_that_did_not_come_the_next_has_its_chance_in_time(
    make_room: Callable[..., Room],
) -> None:
    room = make_room(2)
    first, second = room.take_all()
    room.park("a", "b", "c")
    room.published(room.settle(first), "a")
    room.pass_time(4)
    reply = room.settle(second)
    room.published(reply, "b")
    assert reply.due_in == 1
    room.pass_time(1)
    room.published(room.look(), "a")
    look = room.look()
    room.published(look, "c")


# -- beside those who wait in a pool slot ---------------------------------------------------------


def test_a_waiter_goes_soon_if_the_first_does_not_come(room: Room) -> None:
    """Its message may need the pool slot."""
    holder = room.take("holder")
    room.park("a")
    waiter = room.claim("waiter")
    assert isinstance(room.store.run(calls.acquire(waiter, "wait")), Busy)
    room.published(room.settle(holder), "a")
    assert not room.client.exists(room.keys.wake), "the first goes before the waiter"
    room.pass_time(BESIDE_WAITERS - MORE)
    assert isinstance(room.store.run(calls.acquire(waiter, "woken")), Busy)
    room.pass_time(MORE)
    assert isinstance(room.store.run(calls.acquire(waiter, "woken")), Acquired)
    assert room.waiting == ["a"]


@pytest.fixture
def reserved_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a tenth of a second a machine may be late."""
    monkeypatch.setattr(calls, "RESERVE", 60.0)


@pytest.mark.usefixtures("reserved_for_a_minute")
def test_a_release_wakes_a_waiter_if_nobody_is_to_be_published(room: Room) -> None:
    holder = room.take("holder")
    room.park("a")
    room.ask("waiter", "wait")
    room.published(room.settle(holder), "a")
    room.pass_time(BESIDE_WAITERS)
    assert room.settle(room.take("second", "woken")).offered is None
    assert json.loads(room.client.get(room.keys.lock)) == {"token": "", "reserved": True}
    assert room.client.llen(room.keys.wake) == 1
    assert 0 < room.due_in <= 61, "the room is not forgotten"


def test_steady_waiters_do_not_keep_one_from_being_published_again(room: Room) -> None:
    holder = room.take("holder")
    room.park("a")
    room.ask("waiter", "wait")
    room.published(room.settle(holder), "a")
    room.pass_time(BESIDE_WAITERS)
    waiter = room.take("waiter", "woken")
    room.ask("another waiter", "wait")
    room.pass_time(KEPT)
    room.published(room.settle(waiter), "a")


# -- orders of an operator ------------------------------------------------------------------------


def test_the_room_of_a_broken_lock_is_due_at_once(room: Room) -> None:
    room.take("holder")
    room.park("a")
    assert room.store.run(calls.break_lock(room.keys, TTL)) is not None
    assert room.due_in <= 0
    room.published(room.look(), "a")


def test_whoever_waits_can_be_dropped_and_does_not_run(room: Room) -> None:
    holder = room.take("holder")
    room.park("a", give_up=100)
    room.replaces("b")
    room.published(room.settle(holder), "a")
    dropped = room.drop_all()
    assert dropped == {room.entry_id(task): room.entry(task) for task in "ab"}
    assert room.waiting == []
    assert not room.client.exists(room.keys.deadlines, room.keys.sent)
    assert room.due_in <= 0, "somebody is to store their results"
    room.pass_time(ENDED_AGAIN)
    assert room.look().ended.keys() == dropped.keys()
    assert isinstance(room.store.run(calls.acquire(room.claim("a"))), Done)


def test_only_a_reservation_is_for_a_message_that_may_take_long(room: Room) -> None:
    """Who waits does so in its pool slot for the room, and in Redis for a reservation."""
    room.take("holder")
    room.park("a")
    room.dies()
    assert not room.ask("other").for_message
    room.leave("a")
    queued = room.claim("queued")
    queued.value = holders.encode(queued.token, ttl_ms=to_ms(TTL), task_id="queued", queued=True)
    assert room.store.run(calls.reserve(queued, TTL)) == Reserved()
    assert room.ask("other").for_message


def test_one_whose_time_is_over_does_not_overtake(room: Room) -> None:
    holder = room.take("holder")
    room.park("first")
    room.park("gives up", give_up=1.0)
    room.pass_time(1)
    room.published(room.look(), "gives up")
    room.published(room.settle(holder), "first")
    room.ask("gives up", member=room.entry_id("gives up"))
    room.take("first", member=room.entry_id("first"))


def test_one_whose_time_is_over_keeps_its_place_if_it_is_the_next(room: Room) -> None:
    holder = room.take("holder")
    room.park("first", give_up=1.0)
    room.park("second")
    room.pass_time(1)
    room.published(room.look(), "first")
    assert room.settle(holder).offered is None
    room.ask("second")
    room.ask("newcomer")
    room.take("first", member=room.entry_id("first"))
