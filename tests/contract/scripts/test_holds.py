"""An operator's hold: `hold.lua`, and what `acquire.lua` and others make of it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import redis

from celery_redislock.protocol import calls, holds
from celery_redislock.protocol.claims import Acquired, Busy, Extension, Parked, Reserved
from celery_redislock.protocol.holds import Hold, lua_pattern
from celery_redislock.protocol.keys import MAX_LIMIT, lock_keys
from tests.contract.claims import busy, taken
from tests.contract.scripts.a_room import TASK, TTL, Room
from tests.support.waiting import eventually

HOUR = 3600.0


@pytest.fixture(autouse=True)
def _no_hold_stays(inside: redis.Redis, label: str) -> Iterator[None]:
    """A bucket has other tests' locks, too."""
    yield
    inside.delete(lock_keys("redislock", label).holds)


def hold(room: Room, task: str | None = TASK, lock: str | None = None, seconds: float = HOUR):
    call = holds.hold(room.keys.holds, TTL, task, lock, seconds, "anna@host", "migration")
    stored = room.store.run(call)
    assert isinstance(stored, Hold)
    return stored


def end(room: Room, task: str | None = TASK, lock: str | None = None) -> Hold | None:
    ended = room.store.run(holds.end(room.keys.holds, TTL, task, lock))
    room.store.run(calls.free_of_hold(room.keys, TTL, holds.opening_of(task, lock)))
    return ended


def test_who_asks_for_a_lock_on_hold_learns_who_holds_it_off_until_when_and_why(room: Room) -> None:
    stored = hold(room)
    assert (stored.task, stored.lock, stored.target) == (TASK, None, f"task {TASK}")
    assert stored.since == pytest.approx(room.now / 1000, abs=5)
    assert stored.ends_at - stored.since == pytest.approx(HOUR, abs=0.002)

    room.pass_time(60)
    met = room.ask("first")
    assert (met.relation, met.for_message) == ("other", True)
    assert met.remaining == pytest.approx(HOUR - 60, abs=1)
    assert (met.holder.on_hold, met.holder.node) == (True, "anna@host")
    assert (met.holder.description, met.holder.acquired_at) == ("migration", stored.since)
    assert met.holder.task is None
    assert met.holder.task_id is None
    assert str(met.holder).startswith("an operator, anna@host, since ")
    assert str(met.holder).endswith(": migration")
    assert room.store.ask(calls.holder_of(room.keys, TTL)).on_hold, "and so do all others"


def test_it_ends_by_itself(room: Room) -> None:
    hold(room, seconds=60)
    room.ask("first")
    assert room.client.pttl(room.keys.holds) <= 60_000
    room.pass_time(61)
    room.take("first")


def test_whoever_ends_it_frees_the_lock_and_lets_the_room_go_on(room: Room) -> None:
    hold(room)
    room.ask("first")
    room.park("first", "second")
    assert room.look().offered is None
    assert room.due_in == pytest.approx(600, abs=1), "nobody looks in vain all the time"
    ended = end(room)
    assert ended is not None
    assert ended.why == "migration"
    assert room.due_in == 0
    room.published(room.look(), "first")
    assert end(room) is None


@pytest.mark.parametrize("limit", [1, 2])
def test_who_breaks_a_lock_need_not_know_its_limit(make_room, limit: int) -> None:
    """A room that is looked at as that of 1000 slots is published at once."""
    room = make_room(limit)
    holders = room.take_all()
    room.park("first", "second", "third")
    wide = lock_keys("redislock", room.label, MAX_LIMIT)
    room.store.run(calls.break_lock(wide, TTL, holders[-1].token))
    assert room.client.zrange(room.keys.rooms, 0, -1) == [room.keys.lock_id]
    assert room.due_in == 0
    room.published(room.look(), "first")
    assert room.look().offered is None


def test_a_run_goes_on_and_the_next_one_is_held_off(room: Room) -> None:
    first = room.take("first")
    room.park("second")
    hold(room)
    assert room.ask("third").holder.task_id == room.task_id("first")
    assert room.store.run(calls.extend(Extension(first, first.value, 0, retake=False))).outcome
    # What the room offers then is held off, and stays where it is.
    room.published(room.settle(first), "second")
    assert room.ask("second").holder.on_hold
    assert isinstance(room.parks("second"), Parked)
    assert room.waiting == ["second"]
    assert room.look().offered is None


def test_what_has_the_lock_keeps_it(room: Room) -> None:
    """A retry for which it is kept, and the message for which it was reserved."""
    claim = room.claim("queued", says={"queued": True})
    assert room.store.run(calls.reserve(claim, 600)) == Reserved()
    hold(room)
    room.settle(room.take("queued", kept=claim.token))
    met = room.store.run(calls.reserve(room.claim("next", says={"queued": True}), 600))
    assert isinstance(met, Busy)
    assert met.holder.on_hold


@pytest.mark.parametrize("how", ["try", "wait"])
def test_a_lock_outside_of_tasks_is_held_by_its_name(room: Room, how: str) -> None:
    hold(room)
    claim = room.lock_claim()
    first = taken(room.store.run(calls.acquire(claim)))
    room.settle(claim)
    hold(room, None, room.label)
    met = busy(room.store.run(calls.acquire(room.lock_claim(), "wait" if how == "wait" else "try")))
    assert met.holder.on_hold
    end(room, None, room.label)
    assert taken(room.store.run(calls.acquire(room.lock_claim()))).fence > first.fence


def test_another_task_of_the_lock_is_not_held_off(room: Room) -> None:
    hold(room)
    room.ask("first")
    other = room.claim("other", says={"task": "pkg.other"})
    assert isinstance(room.store.run(calls.acquire(other)), Acquired)
    assert room.ask("first").holder.task_id == room.task_id("other")
    room.settle(other)
    assert room.ask("first").holder.on_hold


def test_the_longest_of_several_holds_and_others_stay_when_one_is_ended(room: Room) -> None:
    hold(room, "pkg.*", seconds=60)
    hold(room, None, f"{room.label[:9]}*")
    hold(room, "other.*", seconds=2 * HOUR)
    assert room.ask("first").remaining == pytest.approx(HOUR, abs=1)
    end(room, None, f"{room.label[:9]}*")
    assert room.ask("first").remaining == pytest.approx(60, abs=1)
    end(room, "pkg.*")
    room.take("first")


def test_a_hold_that_is_set_again_has_the_new_end(room: Room) -> None:
    hold(room, seconds=60)
    hold(room, seconds=HOUR)
    assert room.ask("first").remaining == pytest.approx(HOUR, abs=1)
    assert room.client.hlen(room.keys.holds) == 1


def test_what_has_ended_leaves_with_the_next_order(room: Room) -> None:
    hold(room, "pkg.old", seconds=0.01)
    hold(room, "pkg.new", seconds=HOUR)

    def left() -> list[str]:
        assert end(room, "pkg.newer") is None
        return room.client.hkeys(room.keys.holds)

    eventually(lambda: left() == ["task pkg.new"], "the other one has ended")
    end(room, "pkg.new")
    assert not room.client.exists(room.keys.holds)


def test_slots_that_runs_have_are_theirs_until_they_end(make_room) -> None:
    room = make_room(3)
    first = room.take("first")
    hold(room)
    assert room.ask("second").holder.on_hold
    assert room.store.run(calls.extend(Extension(first, first.value, 0, retake=False))).outcome
    room.settle(first)
    assert room.ask("second").holder.on_hold
    assert [room.client.get(slot)[:16] for slot in room.slots] == ['{"token":"","hol'] * 3
    end(room)
    assert not room.client.exists(*room.slots)


def test_a_waiter_that_was_woken_waits_on_until_the_hold_ends(room: Room) -> None:
    first = room.take("first")
    waiter = room.claim("waiter")
    assert isinstance(room.store.run(calls.acquire(waiter, "wait")), Busy)
    hold(room)
    room.settle(first)
    assert busy(room.store.run(calls.acquire(waiter, "woken"))).holder.on_hold
    end(room)
    assert room.client.llen(room.keys.wake) == 1
    assert isinstance(room.store.run(calls.acquire(waiter, "woken")), Acquired)


def test_a_run_that_lapsed_does_not_take_the_lock_again_from_a_hold(room: Room) -> None:
    first = room.take("first")
    stored = room.client.get(room.keys.lock)
    hold(room)
    room.dies()
    room.ask("second")
    fence = int(stored.split('"fence":')[1].split(",")[0])
    again = Extension(first, stored, fence, retake=True, counter=fence)
    assert room.store.run(calls.extend(again)).outcome == 0


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("shop.sync", ["shop.sync"], ["shopxsync", "shop.sync2", "a.shop.sync", "shop.syn"]),
        ("shop.*", ["shop.", "shop.sync", "shop.a.b"], ["shop", "my.shop.sync"]),
        ("*:7?", ["a:71", "b:c:7x"], ["a:7", "a:71x"]),
        ("a[0-5x]b", ["a3b", "axb"], ["a6b", "ab", "a-b"]),
        ("a[!0-5]b", ["a6b", "a!b"], ["a3b"]),
        ("50%-(a+b)^$", ["50%-(a+b)^$"], ["50%-aab^$", "50"]),
        ("näme*", ["näme", "nämen"], ["name"]),
        ("a[b", ["a[b"], ["ab"]),
        ("[]]", ["]"], ["["]),
        ("[%]", ["%"], ["]"]),
    ],
)
def test_a_glob_means_in_lua_what_it_means_in_python(room: Room, glob, yes, no) -> None:
    expected = Hold(task=glob, lock=None, by="", why="", since=0, ends_at=0)
    for text in (*yes, *no):
        lua = room.client.eval(
            "return string.find(ARGV[1], ARGV[2]) and 1 or 0", 0, text, lua_pattern(glob)
        )
        assert (lua == 1, expected.keeps(text, "")) == (text in yes, text in yes), text


def test_a_glob_that_could_hold_up_the_server_is_refused() -> None:
    with pytest.raises(ValueError, match="3 stars"):
        lua_pattern("*a*b*c*")
    assert lua_pattern(None) == ""


def test_a_text_that_is_no_hold_is_left_out() -> None:
    value = '{"token":"","hold":"task a","node":"b","acquired_at":1.5}'
    good = json.dumps([5000, "", "^a$", value]).encode()
    replies = [b"task a", good, b"task b", b"?", b"what", good, b"task c", b'[1, "", "", 5]']
    assert [each.target for each in holds.holds_in(replies, 4.0)] == ["task a"]
    assert holds.holds_in(replies, 6.0) == [], "it has ended"
