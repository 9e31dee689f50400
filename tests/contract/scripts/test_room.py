"""The waiting room, `room.lua`, rule by rule. Together, in any order, they are in
`tests/simulation`.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from celery_redislock.protocol import calls, holders, notes
from celery_redislock.protocol.claims import (
    Acquired,
    Busy,
    Done,
    Free,
    Full,
    Parked,
    Place,
    Reserved,
    Settled,
    to_ms,
)
from celery_redislock.protocol.rooms import ENDED_AGAIN
from tests.contract.clocks import clock
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
    assert (reply.holder.task_id, reply.holder.queued) == (room.task_id("a"), True)
    assert room.due_in == KEPT
    room.leave("a")
    assert room.store.run(calls.reserve(room.claim("newcomer"), 10)) == Reserved()


# -- a caller that cannot publish -----------------------------------------------------------------


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


def test_who_takes_the_lock_does_not_put_off_the_look_at_one_that_it_cannot_publish(
    room: Room,
) -> None:
    """Else those who can would look when this lock expires, and wait for turn after turn."""
    holder = room.take("holder")
    room.park("theirs", "ours")
    room.published(room.settle(holder), "theirs")
    room.look("theirs")
    room.pass_time(FOR_OTHERS)
    room.published(room.look("theirs"), "ours")
    due_in = room.due_in
    room.take("ours")
    assert room.due_in == due_in <= KEPT
    room.published(room.look(), "theirs")


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
    unknown = [f"u{number}" for number in range(20)]
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
    reply = room.parks("first", SLOT, in_front=True, arrived=1.0)
    assert reply.note.replaced_by.task_id == room.task_id("newer")


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


def test_one_that_comes_back_does_not_overtake_the_next_that_is_under_way(room: Room) -> None:
    """As what is rejected to be queued again, time and again: else nobody else would ever run."""
    holder = room.take("holder")
    room.park("a", "b")
    place = room.entry_id("a")
    room.published(room.settle(holder), "a")
    room.published(room.settle(room.take("a", member=place)), "b")
    room.ask("a", member=place)
    assert isinstance(room.parks("a", place, in_front=True), Parked)
    assert room.waiting == ["a", "b"]
    second = room.take("b", member=room.entry_id("b"))
    room.published(room.settle(second), "a")


def test_what_has_begun_waits_before_all_and_is_not_replaced(room: Room) -> None:
    room.take("holder")
    room.park("other")
    room.replaces("new")
    assert room.parks("begun", in_front=True).replaced == {}
    assert room.replaces("newest") == ["new"]
    assert room.waiting == ["begun", "other", SLOT]


def test_an_id_whose_entry_is_gone_blocks_nobody(room: Room) -> None:
    room.take("holder")
    room.park("first")
    room.dies()
    room.client.delete(room.keys.entries)
    room.take("late")
    assert not room.client.exists(room.keys.room)


def test_an_id_whose_entry_is_gone_does_not_give_up(room: Room) -> None:
    room.take("holder")
    room.park("first", give_up=30.0)
    room.client.delete(room.keys.entries)
    room.pass_time(31)
    assert room.look().offered is None
    assert not room.client.exists(room.keys.room, room.keys.deadlines, room.keys.entries)


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


def test_a_lock_that_is_kept_for_a_pool_slot_does_not_end_the_quiet_time(room: Room) -> None:
    holder = room.take("holder")
    room.ask("waiter", "wait")
    room.settle(holder)
    assert isinstance(room.parks("call", SLOT, quiet=(5.0, 60.0)), Parked)


# -- orders of an operator ------------------------------------------------------------------------


def test_the_room_of_a_broken_lock_is_due_at_once(room: Room) -> None:
    room.take("holder")
    room.park("a")
    assert room.store.run(calls.break_lock(room.keys, TTL)) is not None
    assert room.due_in <= 0
    room.published(room.look(), "a")


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


def test_nobody_is_to_look_at_a_lock_where_nothing_waited_to_be_dropped(room: Room) -> None:
    assert room.drop_all() == {}

    assert room.client.zscore(room.keys.rooms, room.keys.lock_id) is None


def test_the_room_keeps_its_id_when_an_operator_who_does_not_know_the_limit_drops(
    make_room,
) -> None:
    room, as_operators_know_it = make_room(2), make_room()
    room.take_all()
    room.park("a")

    assert list(as_operators_know_it.drop_all().values()) == [room.entry("a")]

    ids = room.client.zrange(room.keys.rooms, 0, -1)  # the bucket may have rooms of other tests
    assert [each for each in ids if each.endswith(room.keys.name)] == [room.keys.lock_id]
    assert room.due_in < 0.5


# -- one that the caller cannot publish -----------------------------------------------------------


def test_others_have_some_time_for_one_that_is_passed_over(room: Room) -> None:
    holder = room.take("holder")
    room.park("a", "b")
    room.published(room.settle(holder), "a")
    assert room.look("a").offered is None
    room.pass_time(FOR_OTHERS)
    room.published(room.look("a"), "b")


def test_who_can_publish_one_that_was_passed_over_does_so_though_the_lock_is_held(
    room: Room,
) -> None:
    room.take("holder")
    room.park("a")
    assert room.look("a").offered is None
    room.published(room.look(), "a")


# -- those whose time is over ---------------------------------------------------------------------


def test_one_whose_time_is_over_is_published_until_it_comes(room: Room) -> None:
    room.take("holder")
    room.park("first")
    room.park("a", give_up=20.0)
    for waits in (20, KEPT, KEPT, 2 * KEPT):
        room.pass_time(waits - MORE)
        assert room.look().offered is None
        room.pass_time(MORE)
        assert room.published(room.look(), "a").gives_up
    assert room.under_way == {"a": pytest.approx(4 * KEPT)}, "from its second publication on"


def test_the_lock_is_kept_for_one_whose_time_is_over_only_if_it_is_next(room: Room) -> None:
    room.take("holder")
    for task in "ab":
        room.park(task, give_up=20.0)
    room.pass_time(20)
    room.published(room.look(), "a")
    assert {*room.under_way} == {"a"}
    room.published(room.look(), "b")
    assert {*room.under_way} == {"a", "b"}, "all before it are under way"


def test_one_whose_time_is_over_and_that_is_passed_over_blocks_nobody(room: Room) -> None:
    room.take("holder")
    for task in "ab":
        room.park(task, give_up=20.0)
    room.pass_time(20)
    assert room.published(room.look("a"), "b").gives_up
    assert room.look("a").due_in >= BESIDE_WAITERS, "nor is it looked for without end"


def test_one_whose_time_is_over_just_after_it_was_published_is_not_published_twice(
    room: Room,
) -> None:
    holder = room.take("holder")
    room.park("a", give_up=20.0)
    room.pass_time(20 - MORE)
    assert not room.published(room.settle(holder), "a").gives_up
    room.pass_time(BESIDE_WAITERS - MORE)
    look = room.look()
    assert (look.offered, look.due_in) == (None, MORE)
    room.pass_time(MORE)
    assert room.published(room.look(), "a").gives_up, "its message did not come"


def test_who_leaves_gives_up_no_more(room: Room) -> None:
    room.take("holder")
    room.park("a", give_up=20.0)
    room.park("b")
    room.leave("a")
    assert room.due_in > 20


def test_one_that_comes_and_waits_on_is_due_as_ever_and_gives_up_in_its_time(room: Room) -> None:
    holder = room.take("holder")
    room.park("a", give_up=20.0)
    room.ask("waiter", "wait")
    room.published(room.settle(holder), "a")
    room.pass_time(BESIDE_WAITERS)
    waiter = room.take("waiter", "woken")
    assert isinstance(room.parks("a", give_up=20.0), Parked)
    room.published(room.settle(waiter), "a")
    room.pass_time(KEPT)
    room.take("faster")
    room.pass_time(20)
    assert room.published(room.look(), "a").gives_up
    assert isinstance(room.parks("a", give_up=0.001), Parked)
    assert room.due_in <= 0.001, "not only after the pause that follows a publication"


def test_a_copy_that_has_time_left_by_another_clock_waits_for_that_time(room: Room) -> None:
    room.take("holder")
    room.park("a", give_up=20.0)
    room.pass_time(20)
    assert room.published(room.look(), "a").gives_up

    assert isinstance(room.parks("a", give_up=7.0), Parked)

    assert room.look().offered is None
    assert room.due_in == 7
    room.pass_time(7)
    assert room.published(room.look(), "a").gives_up


def test_what_is_over_leaves_the_room_once_and_its_result_is_seen_to(room: Room) -> None:
    room.take("holder")
    room.park("over", "b")
    place, over = Place(room.entry_id("over"), room.entry_id("over")), notes.lasting(notes.ENDED)

    assert room.settle(room.claim("over"), note=over, always=True, leaves=place).ours

    assert room.waiting == ["b"]
    assert not room.settle(room.claim("over"), note=over, always=True, leaves=place).ours
    assert room.look().ended == {}, "by who took it out"
    room.pass_time(KEPT)
    assert room.look().ended == {room.entry_id("over"): ("", room.entry("over"))}
    assert isinstance(room.store.run(calls.acquire(room.claim("over"))), Done)


def test_what_is_not_in_the_room_any_more_is_not_over_by_that(room: Room) -> None:
    """It has its lock by now, for one."""
    place, over = Place(room.entry_id("runs"), room.entry_id("runs")), notes.lasting(notes.ENDED)
    room.settle(room.take("runs"))
    assert not room.settle(room.claim("runs"), note=over, always=True, leaves=place).ours
    room.take("runs")


# -- places -----------------------------------------------------------------------------------


def test_no_more_than_the_limit_wait_and_who_runs_does_not(room: Room) -> None:
    room.take("holder")
    room.park("a", "b", limit=2)
    assert isinstance(room.parks("c", limit=2), Full)
    assert isinstance(room.parks("holder"), Free)


def test_a_newer_call_keeps_the_place_of_the_one_before_which_takes_it_from_nobody(
    room: Room,
) -> None:
    room.take("holder")
    room.replaces("old")
    room.park("b")
    assert room.replaces("newer") == ["old"]
    assert room.waiting == [SLOT, "b"]
    room.leave("old", SLOT)
    assert room.waiting == [SLOT, "b"]


def test_an_empty_room_is_looked_after_only_for_the_results_of_the_dropped(room: Room) -> None:
    holder = room.take("holder")
    room.park("a")
    room.published(room.settle(holder), "a")
    room.settle(room.take("a", member=room.entry_id("a")))
    assert room.due_in is None
    room.take("holder")
    room.park("b")
    room.drop_all()
    assert room.due_in <= 0, "somebody is to store its result"


def test_a_debounced_call_is_due_when_it_is_quiet_or_max_wait_is_over(room: Room) -> None:
    quiet = {"quiet": (5.0, 12.0)}
    for task, due in (("a", 5), ("b", 5), ("c", 4)):  # four seconds apart, and the lock is free
        assert isinstance(room.parks(task, SLOT, **quiet), Parked)
        assert room.due_in == pytest.approx(due, abs=0.01)
        room.pass_time(0 if task == "c" else 4)
    room.pass_time(1)
    assert isinstance(room.parks("c", SLOT, **quiet), Parked)
    assert room.due_in == pytest.approx(3, abs=0.01), "a copy is no call"
    room.pass_time(2.9)
    assert room.look().offered is None
    room.pass_time(0.1)
    room.published(room.look(), "c", SLOT)
