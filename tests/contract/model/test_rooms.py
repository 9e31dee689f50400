"""A waiting room beside a list in memory, whatever happens in which order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from celery_redislock.servers.node import Node
from celery_redislock.servers.urls import source_from_url
from celery_redislock.testing import MemoryServer
from tests.contract.changed_scripts import rewritten, stopped_clock
from tests.contract.drivers import DB

from .room_machine import RoomMachine, way

#: It computes, and a busy machine has little time for it.
pytestmark = pytest.mark.timeout(1200)

#: The scripts that have `room.lua` in them.
ROOM = ("acquire", "settle", "park", "look", "reserve")
#: Scripts, a place in each of them, and what is there instead: each breaks a promise. The number is
#: that of a way on which this comes out. For four more it would take hundreds: what they break is
#: in `tests/contract/scripts/test_room.py`.
BROKEN: dict[str, tuple[Sequence[str], str, str, int]] = {
    # who may go
    "newcomers overtake": (["acquire"], "if may_go(member) then", "if true then", 2),
    "a lock outside of tasks overtakes": (
        ROOM, "(publishes or look > now - KEPT_FOR)", "publishes", 13),
    "a lock outside of tasks waits though nobody looks": (
        ROOM, "(publishes or look > now - KEPT_FOR)", "true", 3),
    "the lock is not kept for one whose message is under way": (
        ROOM, "(first > now - span and 1 or 0)", "0", 2),
    "the lock is kept for ever for one whose message is lost": (
        ROOM, "(first > now - span and 1 or 0)", "1", 1),
    "one waits for those behind it": (
        ROOM, "if other == member or free == 0 then", "if free == 0 then", 1),
    "a copy goes behind its own slot": (
        ["acquire"], "place_of(entry_id, '=' .. task) or entry_id", "entry_id", 48),
    "who has run runs again": (
        ["acquire"], "if task_id ~= '' and not again and not kept then", "if false then", 2),
    "who runs still waits": (["acquire"], "    leave(member, entry_id)\n", "", 1),
    # who is published
    "a release publishes nobody": (
        ["settle"], "has_room and publishes and offer(false, slot) or nil", "nil", 0),
    "who may not go publishes nobody": (["acquire"], "publishes and offer() or nil", "nil", 2),
    "one is published without a pause": (
        ROOM, "now + math.min(math.max(age, KEPT_FOR), LONGEST_PAUSE)", "now", 0),
    "one is never published again": (
        ROOM, "now + math.min(math.max(age, KEPT_FOR), LONGEST_PAUSE)", "now + 1e9", 0),
    "the pauses do not grow": (ROOM, "math.max(age, KEPT_FOR), L", "KEPT_FOR, L", 0),
    "the pauses grow without end": (
        ROOM, "math.min(math.max(age, KEPT_FOR), LONGEST_PAUSE)", "math.max(age, KEPT_FOR)", 4),
    "the ones behind get no chance": (
        ROOM, "last + pause_behind(redis.call('ZCARD', sent)) or 0", "math.huge or 0", 0),
    "the ones behind are all published at once": (
        ROOM, "return last and last + pause_behind(redis.call('ZCARD', sent)) or 0", "return 0", 5),
    "the chances do not get rarer": (
        ROOM, "math.min(KEPT_FOR * 2 ^ math.max(count - #slots, 0), LONGEST_CHANCE)",
        "KEPT_FOR", 6),
    "one that never comes keeps its place": (
        ROOM, "elseif age > GOES_LAST_AFTER then", "elseif false then", 4),
    "each publication is the first": (ROOM, "if not first and not aside then", "if true then", 0),
    # who cannot be published here
    "one passed over blocks": (ROOM, "if not passed_over[member] and (", "if (", 0),
    "the lock is kept for one passed over": (
        ROOM,
        "    if first <= now - FOR_OTHERS then", "    if false then", 0),
    "others have no time for one passed over": (
        ROOM, "    if first <= now - FOR_OTHERS then", "    if true then", 0),
    "one passed over waits until the lock is free": (
        ["look"], "offer(true, true)", "offer(false, true)", 7),
    "one passed over is published by nobody": (
        ROOM, "    state.due = DECLINED\n    save_state(member, state)\n", "", 0),
    "who passes one over looks for it without end": (
        ROOM, "    if passed_over[member] then\n", "    if false then\n", 0),
    "who passes one over that gives up looks for it without end": (
        ROOM, "passed_over[some[i]] and later(some[i]) or ", "", 12),
    # who looks after the room
    "nobody is to look after it": (ROOM, "    look_at(due)\n", "", 0),
    "nobody looks when one is due": (ROOM, "  due = math.min(due, next_chance(free))\n", "", 0),
    "the lock is kept for one that gives up": (
        ROOM, "if not first and not aside then", "if not first then", 5),
    "the next one that gives up is overtaken": (
        ["look"], "before == 0 and not is_next(member)", "before == 0", 5),
    "one that gives up and does not come is forgotten": (
        ["look"], "if before > 0 and not first_of(member) then", "if false then", 6),
    "nobody looks when one gives up": (ROOM, "math.min(due, next_deadline())", "due", 0),
    "nobody looks when a lock expires": (ROOM, "    due = math.min(due, now + left + 1)\n", "", 2),
    "an empty room is looked after for ever": (
        ROOM, "        redis.call('ZREM', rooms, lock_id)\n", "", 0),
    # pending slots
    "the newest does not replace": (
        ["park"], "receipt = receipt, id = id}", "receipt = receipt, id = state.id}", 0),
    "the newest goes last": (
        ["park"], "if not before or in_front == '1' then",
        "if redis.call('LREM', room, 1, member) then", 5),
    "the replaced one still runs": (
        ["park"],
        "  redis.call('SET', notes[state.id], replaced_note(successor, ENDED_NOTE), 'PX', done_ttl)"
        "\n", "", 6),
    "the replaced one gets no result": (
        ["park"], "  redis.call('HSET', ended, state.id, ended_text(task_id, before, now))\n",
        "", 3),
    "the older replaces the newer": (
        ["park"], "if is_newer(its_arrival, state.receipt) then", "if false then", 0),
    "the replaced replaces the newer": (
        ["park"], "if says_replaced(done_note) then", "if false then", 0),
    "who replaces counts as under way": (
        ["park"], "  redis.call('ZREM', sent, member)\n  redis.call('ZREM', deadlines",
        "  redis.call('ZREM', deadlines", 5),
    "who finds the slot of the next goes without replacing it": (
        ["park"], "(is_there or not before) and may_go", "may_go", 6),
    "who replaces the next waits": (["park"], "if may_be_next and", "if false and", 3),
    "who comes back overtakes": (["park"], "if may_be_next and", "if", 0),
    "an old message takes the newer call out": (
        ["acquire", "settle"], "  if state_of(member).id == id then\n    return take_out",
        "  if true then\n    return take_out", 0),
    # a message that meets a held lock
    "who comes and waits on is under way": (
        ["park"], "    redis.call('ZREM', sent, member)\n    state.due", "    state.due", 5),
    "who comes and waits on is not due": (["park"], "    state.due = 0\n", "", 30),
    "who comes and waits on gives up late": (
        ["park"], "    elseif gives_up_at then\n", "    elseif false then\n", 30),
    "who comes again enters again": (
        ["park"], "local is_there = before and state.id == id", "local is_there = false", 5),
    "who has begun goes last": (["park"], "in_front == '1' and 'LPUSH' or 'RPUSH'", "'RPUSH'", 1),
    "who runs is parked": (["park"], "if is_own or", "if", 15),
    "who may go is parked": (
        ["park"],
        "if not (waits_first or suspension) and (is_there or not before) and may_go(member)",
        "if false", 2),
    "a limit is no limit": (["park"], "if limit and not before and", "if false and", 7),
    # Debounce
    "a debounced one runs before it is quiet": (
        ["park"], "math.min(now + quiet, first_call + longest)", "0", 0),
    "a debounced one does not wait for quiet if the lock is free": (
        ["park"], "if not (waits_first or suspension) and (is_there",
        "if not suspension and (is_there", 4),
    "a newer call begins max_wait anew": (
        ["park"], "(before and state.first_call or now)", "now", 3),
    "quiet is waited for without end": (
        ["park"], "math.min(now + quiet, first_call + longest)", "now + quiet", 3),
    "a copy ends the quiet": (
        ["park"], "  if not waits_first then\n    -- This", "  if true then\n    -- This", 7),
    # give-ups
    "a give-up is forgotten": (["look"], "give_up() or offer(true, true)", "offer(true, true)", 0),
    "a give-up is sent once": (
        ["look"], "redis.call('ZADD', deadlines, string.format('%.0f', state.due), member)",
        "redis.call('ZREM', deadlines, member)", 0),
    "a give-up that is passed over blocks": (
        ["look"], "elseif not passed_over[member] then", "else", 12),
    "nobody is told that it gives up": (ROOM, "is_over and '1' or '0'", "'0'", 0),
    "who leaves stays": (["settle"], "  leave(leaver, leavers_id)\n", "", 0),
    "who leaves counts as under way": (
        ["acquire", "settle", "drop"],
        "  redis.call('ZREM', sent, member)\n  if entry", "  if entry", 0),
    "who leaves still gives up": (
        ["acquire", "settle", "drop"],
        "  redis.call('ZREM', deadlines, member)\n  redis.call('ZREM', sent",
        "  redis.call('ZREM', sent", 0),
    # who is dropped
    "what nobody takes is never dropped": (
        ["look"], "redis.call('ZRANGEBYSCORE', sent, '-inf', now - longest, 'LIMIT', 0, AT_ONCE)",
        "{}", 6),
    "the dropped one still runs": (
        ["drop"], "    note_over(notes[id], lasting(ENDED_NOTE), done_ttl)\n", "", 6),
    "the dropped one gets no result": (
        ["drop"], "redis.call('HSET', ended, id, ended", "string.format('%s', ended", 6),
    "nobody is to store the dropped ones' results": (
        ["drop"], "if reply[1] then", "if false then", 6),
    "results are forgotten": (["look"], "some_of(ended, AT_ONCE)", "{}", 3),
    "several store a result": (
        ["look"], "      redis.call('HSET', ended, some[i], ended_text(successor, entry, now))\n",
        "", 0),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _scripts(declared_keys: None) -> Iterator[None]:
    """They touch declared keys only, and their time is the machine's."""
    with stopped_clock():
        yield


@contextmanager
def changed(names: Sequence[str], old: str, new: str) -> Iterator[None]:
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(rewritten(name, old, new))
        yield


@pytest.fixture
def machine(redis_server: Any) -> Iterator[type[RoomMachine]]:
    class Machine(RoomMachine):
        store = Node(source_from_url(f"{redis_server.url}/{DB}"))
        client = redis_server.client(DB)
        met: ClassVar[set[str]] = set()

    store, client = Machine.store, Machine.client
    yield Machine
    store.close()
    client.close()


def test_a_room_is_what_the_list_says_whatever_happens_in_which_order(machine) -> None:
    answers = {
        *("acquire: Acquired", "acquire: Busy other", "acquire: Busy own", "acquire: Done"),
        *("look: NoneType", "look: Offered", "look: gives up"),
        *("park: Full", "park: Parked", "park: Free", "park: Older"),
    }
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=settings.default.max_examples // 2,
            stateful_step_count=40,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    for seed in itertools.takewhile(lambda seed: not machine.met >= answers, range(100)):
        way(machine(), seed)  # what those seldom meet
    assert machine.met >= answers


def test_so_is_a_room_in_memory(machine) -> None:
    machine.store = MemoryServer()
    machine.client = machine.store.client
    for seed in range(8):
        way(machine(), seed)


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_room_is_found_out(machine, how: str) -> None:
    names, old, new, seed = BROKEN[how]
    with changed(names, old, new), pytest.raises(AssertionError):
        for each in (seed, *range(1000)):
            way(machine(), each)
