"""A waiting room beside a list in memory, whatever happens in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from celery_redislock.servers.node import Node
from celery_redislock.servers.urls import source_from_url
from tests.support.scripts import rewritten

from .room_machine import RoomMachine

#: It computes, and a busy machine has little time for it.
pytestmark = [pytest.mark.timeout(1200), pytest.mark.usefixtures("declared_keys")]

#: The scripts that may give a turn: each has `turns.lua` in it.
SCRIPTS = ("acquire", "settle", "park", "look", "reserve")
#: Of a script, or of all that say it, a place and what stands there instead: each breaks a promise.
BROKEN = {
    "newcomers overtake": ("acquire", "if following and following ~= entry_id", "if false"),
    "a lock is taken on no condition": (
        "acquire", "stored, condition, 'PX', ttl)", "stored, 'PX', ttl)"),
    "who runs still waits": ("acquire", "    take_out(entry_id)\n", ""),
    "who runs is still set aside": ("acquire", "redis.call('HDEL', aside, entry_id)", ""),
    "what has run runs again when its turn comes": (
        "acquire", "not again and not is_first", "not again and not kept"),
    "a turn is not taken over": (
        "acquire", "elseif holder.queued then", "elseif false then"),
    "a limit of the room is no limit": ("park", "if limit and", "if false and"),
    "the newest goes to the end": (
        "park", "redis.call('LINSERT', room, 'BEFORE', others[1], id) < 1", "true"),
    "of a kind nobody is found": ("park", "list(kind, of_kind)", ""),
    "a copy waits beside the first": ("park", "redis.call('HEXISTS', entries, id) == 1", "false"),
    "a settle does not look": ("settle", "elseif first then", "elseif false then"),
    "a settle gives back another's turn": (
        "settle", "if is_under(current, opening) then", "if type(current) == 'string' then"),
    "who settles cannot publish and nobody is told": (
        "look", "gives_up() or unpublished() or not", "gives_up() or not"),
    "a give-up is forgotten": (
        "look", "gives_up() or unpublished() or not", "unpublished() or not"),
    "a give-up is sent once": (
        "look", "redis.call('ZADD', deadlines, string.format('%.0f', till), id)",
        "redis.call('ZREM', deadlines, id)"),
    "a give-up that a worker has is sent again": (
        "look", "state.flag == GIVING_UP_RECEIVED and state.till > now", "false"),
    "who declines gives its turn away": (
        "look", "state.offers, state.flag = math.max(state.offers - 1, 0), GIVEN",
        "take_out(declined)"),
    "what was put back is still set aside": (
        "put_back", "redis.call('HDEL', aside, id)", ""),
    "that a worker has it is not noted": (
        "received", "save_state(id, state)\nreturn", "return"),
    "it is forgotten once it has its turn": (
        "", "return {kind, id, entry, turn_token, state.offers}",
        "take_out(id) return {kind, id, entry, turn_token, state.offers}"),
    "a turn holds nothing": ("", "redis.call('SET', slot, value, 'NX', 'PX', pause)", ""),
    "a turn does not lapse": ("", "value, 'NX', 'PX', pause)", "value, 'NX')"),
    "a turn is offered without bound": (
        "", "return state.offers >= OFFERS and", "return false and"),
    "offers are not counted": (
        "", "offers = state.offers + 1, first", "offers = state.offers, first"),
    "one has two turns": ("", "not (turns[id] or", "not ("),
    "one is sent another message though it is there": (
        "acquire", "parked, state = next_in_line(entry_id)", "parked, state = next_in_line()"),
    "what a worker has is sent again": (
        "", "or is_away(state) or", "or"),
    "what a worker has is set aside": ("", "OFFERS and state.till <= now and", "OFFERS and"),
    "set aside is dropped": ("", "redis.call('HSET', aside, id, entry)", ""),
    "nobody is to look after it": (
        "", "  look_at(due)\n", ""),
}  # fmt: skip


#: Those of which it takes hundreds of ways to find them out: `make model` does.
RARE = frozenset(
    {
        "what a worker has is set aside",
        "who declines gives its turn away",
        "a copy waits beside the first",
        "who settles cannot publish and nobody is told",
        "what has run runs again when its turn comes",
        "a give-up that a worker has is sent again",
        "a lock is taken on no condition",
        "what was put back is still set aside",
    }
)


@pytest.fixture(autouse=True)
def slow_turns() -> Iterator[None]:
    """No turn lapses before the test says so, however busy the machine is."""
    with changed(SCRIPTS, "local PAUSE = 5000 ", "local PAUSE = 3600000 "):
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
        store = Node(source_from_url(redis_server.url))
        client = redis_server.client()
        met: ClassVar[set[str]] = set()

    yield Machine
    Machine.store.close()
    Machine.client.close()


def play(machine: type[RoomMachine], **options: Any) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            stateful_step_count=40,
            database=None,
            report_multiple_bugs=False,  # of two at once it would make a group
            suppress_health_check=list(HealthCheck),
            **options,
        ),
    )


def test_a_room_is_what_the_list_says_whatever_happens_in_which_order(machine) -> None:
    answers = {
        *("acquire: Acquired", "acquire: Busy other", "acquire: Busy own", "acquire: Done"),
        *("look: NoneType", "look: Offered", "look: gives up"),
        *("park: Full", "park: Parked", "park: Turn"),
    }
    for _ in range(5):  # a hundred ways meet all of them nearly always
        play(machine)
        if machine.met >= answers:
            return
    raise AssertionError(f"never met: {answers - machine.met}")


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_room_is_found_out(machine, how: str) -> None:
    name, old, new = BROKEN[how]
    is_long = settings.get_current_profile_name() == "long"
    if how in RARE and not is_long:
        pytest.skip("`make model` finds it out")
    with changed([name] if name else SCRIPTS, old, new), pytest.raises(AssertionError):
        play(machine, max_examples=4000 if is_long else 250, phases=[Phase.generate])
