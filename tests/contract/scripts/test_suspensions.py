"""What an operator suspends: `suspend.lua`, and what every script makes of `suspended.lua`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import pytest
import redis

from celery_redislock.protocol import calls
from celery_redislock.protocol.claims import Acquired, Busy, Extension, Parked, Reserved
from celery_redislock.protocol.keys import lock_keys
from celery_redislock.protocol.suspensions import Suspension, in_force
from tests.contract.claims import busy, keep, names_apart, taken
from tests.contract.scripts.a_room import KEPT, SLOT, TASK, Room
from tests.support.waiting import eventually

HOUR = 3600.0
OTHER = "pkg.other"


@pytest.fixture(autouse=True)
def _nothing_stays_suspended(inside: redis.Redis, label: str) -> Iterator[None]:
    """A bucket has other tests' locks, too."""
    yield
    inside.delete(lock_keys("redislock", label).suspended)


def order(room: Room, what: Suspension, seconds: float) -> Suspension | None:
    keys = room.keys
    return room.store.run(calls.suspend([keys.suspended], [keys.rooms], what, seconds))


def suspend(
    room: Room, task: str | None = TASK, lock: str | None = None, seconds: float = HOUR
) -> Suspension:
    """By the stopped clock of the room's lock."""
    what = Suspension(task=task, lock=lock, by="anna@host", why="migration", label="account 4")
    stored = order(room, what, seconds)
    assert stored is not None
    # The order is told the real time, and the lock of a test its own.
    text = json.loads(room.client.get(room.keys.suspended))
    text[what.target]["until"] = room.now + int(seconds * 1000)
    room.client.set(room.keys.suspended, json.dumps(text))
    return stored


def resume(room: Room, task: str | None = TASK, lock: str | None = None) -> Suspension | None:
    return order(room, Suspension(task=task, lock=lock), 0)


def other(room: Room, name: str = "other", **options):
    claim = room.claim(name, says={"task": OTHER}, **options)
    return dataclasses.replace(claim, task=OTHER)


def test_a_suspended_task_learns_who_suspended_it_until_when_and_why(room: Room) -> None:
    stored = suspend(room)
    assert (stored.task, stored.lock, stored.target) == (TASK, None, f"task {TASK}")
    assert stored.ends_at - stored.since == pytest.approx(HOUR, abs=0.002)

    room.pass_time(60)
    met = room.ask("first")
    assert (met.relation, met.holder, met.for_message) == ("suspended", None, True)
    assert met.remaining == pytest.approx(HOUR - 60, abs=1)
    assert met.suspension is not None
    assert (met.suspension.by, met.suspension.why) == ("anna@host", "migration")
    assert met.suspension.label == "account 4"
    assert str(met.suspension).startswith(f"task {TASK} (account 4), by anna@host until ")
    assert str(met.suspension).endswith(": migration")


def test_it_is_in_the_list_and_nowhere_else(room: Room) -> None:
    suspend(room)
    room.ask("first")
    room.ask("second", how="wait")
    room.park("first")
    assert not room.client.exists(room.keys.lock, room.keys.waiters)
    assert room.store.ask(calls.holder_of(room.keys, HOUR)) is None
    room.client.delete(room.keys.suspended)  # an eviction, or a restart without data
    room.take("first")


def test_it_ends_by_itself_and_leaves_the_list(room: Room) -> None:
    suspend(room, seconds=60)
    room.ask("first")
    room.pass_time(61)
    room.take("first")
    assert not room.client.exists(room.keys.suspended)


def test_what_waits_is_due_at_its_end_and_not_offered_before(room: Room) -> None:
    suspend(room, seconds=300)
    room.park("first", "second")
    assert room.due_in == pytest.approx(300, abs=1)
    room.pass_time(250)
    assert room.look().offered is None
    assert room.due_in == pytest.approx(50, abs=1)
    assert not room.under_way, "nothing is published for it"
    room.pass_time(51)
    room.published(room.look(), "first")
    assert room.waiting == ["first", "second"]


@pytest.mark.parametrize("seconds", [5, 7200])
def test_set_again_it_has_a_new_end_and_what_waits_is_looked_at(room: Room, seconds) -> None:
    suspend(room, seconds=600)
    room.park("first")
    suspend(room, seconds=seconds)
    assert room.due_in < 1
    assert room.look().offered is None
    assert room.due_in == pytest.approx(min(seconds, 600), abs=1)
    assert len(json.loads(room.client.get(room.keys.suspended))) == 1
    assert room.ask("second").remaining == pytest.approx(seconds, abs=1)


@pytest.mark.parametrize("is_task", [True, False])
def test_what_waited_is_due_when_it_is_resumed_after_the_list_was_lost(room, is_task) -> None:
    target = (TASK, None) if is_task else (None, room.label)
    suspend(room, *target)
    room.park("first")
    room.client.delete(room.keys.suspended)
    assert room.due_in > 60
    assert resume(room, *target) is None
    assert room.due_in < 1
    room.published(room.look(), "first")


def test_a_lock_that_is_resumed_makes_no_other_room_due(room: Room) -> None:
    suspend(room, None, room.label)
    room.park("first")
    room.client.zadd(room.keys.rooms, {"1|another": room.now + 5000})
    resume(room, None, room.label)
    try:
        assert room.client.zscore(room.keys.rooms, "1|another") == room.now + 5000
        assert room.due_in < 1
    finally:
        room.client.zrem(room.keys.rooms, "1|another")


def test_what_waits_in_any_bucket_is_due_when_its_task_is_resumed(store, inside, label) -> None:
    rooms = [Room(store, inside, name) for name in names_apart(label, 5)]
    lists, others = zip(*((room.keys.suspended, room.keys.rooms) for room in rooms), strict=True)
    task = Suspension(task=TASK)
    for room in rooms[1:]:
        room.take("holder")
        room.park("first")
    store.run(calls.suspend(lists, others, task, HOUR))
    assert inside.exists(*lists) == len(lists)
    assert min(room.due_in for room in rooms[1:]) > 60
    assert store.run(calls.suspend(lists, others, task, 0)).task == TASK
    assert not inside.exists(*lists)
    assert max(room.due_in for room in rooms[1:]) < 1
    assert rooms[0].due_in is None


def test_what_it_ends_is_counted_in_it(room: Room) -> None:
    suspend(room)
    for ended in (1, 2):
        room.store.run(calls.turn_away(room.claim("first"), None, suspended=True), once=True)
        (told,) = json.loads(room.client.get(room.keys.suspended)).values()
        assert told["ended"] == ended
    resume(room)
    room.store.run(calls.turn_away(room.claim("first"), None, suspended=True), once=True)
    assert not room.client.exists(room.keys.suspended), "it is over"


def test_what_runs_goes_on_and_the_next_one_waits(room: Room) -> None:
    first = room.take("first")
    room.park("second")
    suspend(room)
    assert room.ask("third").holder.task_id == room.task_id("first"), "who has the lock comes first"
    assert room.store.run(calls.extend(Extension(first, first.value, 0, retake=False))).outcome
    assert room.settle(first).offered is None
    assert room.ask("second").suspension
    assert isinstance(room.parks("second"), Parked)
    assert room.waiting == ["second"]


def test_what_has_begun_keeps_the_lock_that_is_kept_for_it(room: Room) -> None:
    first = room.take("first")
    value = json.dumps({"token": "", "held": True, "task_id": first.task_id, "attempt": 0})
    room.store.run(keep(first, value, 60))
    suspend(room)
    room.take("first", attempt=1)


def test_a_reservation_is_made_as_ever_and_its_message_waits(room: Room) -> None:
    suspend(room)
    claim = room.claim("first", says={"queued": True})
    assert room.store.run(calls.reserve(claim, 600)) == Reserved()
    second = room.store.run(calls.reserve(room.claim("second", says={"queued": True}), 600))
    assert busy(second).holder.task_id == claim.task_id
    for kept in (claim.token, ""):
        met = room.ask("first", kept=kept)
        assert met.suspension, "its message must not run"
        assert room.client.exists(room.keys.lock), "and is still the only one"

    # Its place in the room takes that of the reservation: there is one for its task.
    room.park("first")
    assert not room.client.exists(room.keys.lock)
    third = room.store.run(calls.reserve(room.claim("third", says={"queued": True}), 600))
    assert busy(third).holder.task_id == claim.task_id
    assert busy(third).holder.queued
    resume(room)
    room.published(room.look(), "first")
    room.take("first", member=room.entry_id("first"))


def test_another_task_of_the_lock_is_not_touched_nor_is_who_is_no_task(room: Room) -> None:
    suspend(room)
    room.park("first", "second")
    for claim in (other(room), room.lock_claim()):
        taken(room.store.run(calls.acquire(claim)))
        room.settle(claim)


@pytest.mark.parametrize("how_many", [40, 400])
def test_another_task_that_waits_behind_suspended_ones_goes_first(
    room: Room, how_many: int
) -> None:
    holder = room.take("holder")
    room.park(*(f"n{i}" for i in range(how_many)))
    suspend(room)
    entry = json.dumps({"task": OTHER, "task_id": "b"})
    room.client.rpush(room.keys.room, "b:0.0")
    room.client.hset(room.keys.entries, mapping={"b:0.0": f"||{entry}", "#b:0.0": "0|||b:0.0"})
    offered = room.settle(holder).offered
    assert offered is not None
    assert offered.entry == entry

    # It is under way: others wait, and it is published again if its message does not come.
    assert isinstance(room.store.run(calls.acquire(other(room))), Busy)
    assert room.look().due_in == pytest.approx(KEPT, abs=0.1)
    room.pass_time(KEPT + 0.1)
    again = room.look().offered
    assert again is not None
    assert again.entry == entry


def test_a_suspended_lock_is_so_for_all_tasks_and_outside_of_them(room: Room) -> None:
    suspend(room, None, room.label)
    assert room.ask("first").suspension.lock == room.label
    assert busy(room.store.run(calls.acquire(other(room)))).suspension
    for how in ("try", "wait", "woken", "last"):
        assert busy(room.store.run(calls.acquire(room.lock_claim(), how))).suspension
    resume(room, None, room.label)
    taken(room.store.run(calls.acquire(room.lock_claim())))


def test_the_longest_keeps_it_off_and_others_stay_when_one_is_ended(room: Room) -> None:
    suspend(room, seconds=60)
    suspend(room, None, room.label)
    suspend(room, OTHER, seconds=2 * HOUR)
    assert room.ask("first").remaining == pytest.approx(HOUR, abs=1)
    resume(room, None, room.label)
    assert room.ask("first").remaining == pytest.approx(60, abs=1)
    resume(room)
    room.take("first")


def test_what_has_ended_leaves_with_the_next_order(room: Room) -> None:
    order(room, Suspension(task="pkg.old"), 0.01)
    order(room, Suspension(task="pkg.new"), HOUR)

    def left() -> list[str]:
        assert resume(room, "pkg.newer") is None
        return [*json.loads(room.client.get(room.keys.suspended))]

    eventually(lambda: left() == ["task pkg.new"], "the other one has ended")
    resume(room, "pkg.new")
    assert not room.client.exists(room.keys.suspended)


def test_a_newer_call_that_replaces_ends_no_run_and_no_kept_lock(room: Room) -> None:
    room.take("first")
    stored = room.client.get(room.keys.lock)
    suspend(room)
    grace = ('["pkg.task","b"]', 5.0)
    reply = room.parks("second", SLOT, replace=grace, in_front=True)
    assert isinstance(reply, Parked)
    assert room.client.get(room.keys.lock) == stored
    assert room.replaces("third", replace=grace, in_front=True) == ["second"]
    assert room.client.get(room.keys.lock) == stored


def test_a_debounced_call_is_offered_when_quiet_and_suspension_are_over(room: Room) -> None:
    suspend(room, seconds=60)
    room.parks("first", SLOT, quiet=(5.0, 30.0))
    room.pass_time(10)
    assert room.look().offered is None
    assert room.due_in == pytest.approx(50, abs=1)
    room.pass_time(51)
    room.published(room.look(), "first", SLOT)


def test_one_that_gives_up_is_published_at_its_time_and_keeps_no_lock_for_itself(
    room: Room,
) -> None:
    suspend(room)
    room.park("first", give_up=30.0)
    room.park("second")
    assert room.due_in == pytest.approx(30, abs=1)
    room.pass_time(31)
    offered = room.published(room.look(), "first")
    assert offered.gives_up
    assert not room.under_way, "its policy acts: no lock is kept for it"
    assert isinstance(room.store.run(calls.acquire(other(room))), Acquired)


def test_a_retry_that_gave_up_and_waits_on_is_published_when_the_suspension_ends(
    room: Room,
) -> None:
    """No policy may drop it. With that time, it would be published at once, again and again."""
    suspend(room, seconds=60)
    room.park("first", give_up=30.0)
    room.pass_time(31)
    room.published(room.look(), "first")
    assert isinstance(room.parks("first", in_front=True), Parked)
    assert room.look().offered is None
    assert room.due_in == pytest.approx(29, abs=1)
    room.pass_time(30)
    assert not room.published(room.look(), "first").gives_up


def test_slots_that_runs_have_are_theirs_until_they_end(make_room) -> None:
    room = make_room(3)
    first = room.take("first")
    suspend(room)
    assert room.ask("second").suspension
    assert room.store.run(calls.extend(Extension(first, first.value, 0, retake=False))).outcome
    room.settle(first)
    assert room.ask("second").suspension
    assert not room.client.exists(*room.slots)


def test_a_waiter_that_was_woken_waits_no_more_in_its_pool_slot(room: Room) -> None:
    first = room.take("first")
    waiter = room.claim("waiter")
    assert isinstance(room.store.run(calls.acquire(waiter, "wait")), Busy)
    another = other(room, "another")
    assert isinstance(room.store.run(calls.acquire(another, "wait")), Busy)
    suspend(room)
    room.settle(first)
    assert room.client.lpop(room.keys.wake), "the release woke one"
    assert busy(room.store.run(calls.acquire(waiter, "woken"))).suspension
    room.client.delete(room.keys.lock)  # the reservation for the one that was woken lapses
    room.park("waiter")
    assert room.client.llen(room.keys.wake) == 1, "another task's turn"
    assert isinstance(room.store.run(calls.acquire(another, "woken")), Acquired)


def test_a_list_that_is_none_suspends_nothing(room: Room) -> None:
    for text in ("?", "[]", '{"task pkg.task": 5}', '{"task pkg.task": {"until": "x"}}'):
        room.client.set(room.keys.suspended, text)
        room.settle(room.take("first"))
    room.client.delete(room.keys.suspended)
    room.client.rpush(room.keys.suspended, "a list")
    room.take("first")


def test_people_read_the_same_lists() -> None:
    good = {"task": "a", "by": "b", "why": "c", "since": 1.5, "until": 5000}
    texts = [
        json.dumps({"task a": good, "what": 5, "lock": {"until": 6000}}).encode(),
        b"?", None, b"[]", json.dumps({"task a": good}).encode(),
    ]  # fmt: skip
    (found,) = in_force(texts, 4.0)
    assert found == Suspension(task="a", by="b", why="c", since=1.5, ends_at=5.0)
    assert in_force(texts, 6.0) == [], "it has ended"


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_copy_of_a_run_that_died_waits_though_its_own_pause_is_there(room, attempt):
    """Without a suspension it goes on in the pause."""
    assert room.settle(room.take("a", attempt=attempt), pause=600.0, died=True).ours
    suspend(room, task=TASK)
    assert room.ask("a", attempt=attempt).relation == "suspended"
    resume(room, task=TASK)
    room.take("a", attempt=attempt)
