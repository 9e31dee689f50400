"""A waiting room beside a list in memory, whatever happens in which order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from celery_redislock.servers import lua
from celery_redislock.servers.connections import pools_from_url
from celery_redislock.servers.store import Store

from .room_machine import RoomMachine

#: It computes, and a busy machine has little time for it.
pytestmark = pytest.mark.timeout(1200)

#: The scripts that may give a turn: each has `turns.lua` in it.
SCRIPTS = ("ACQUIRE", "SETTLE", "PARK", "LOOK", "RESERVE")
#: Of a script, or of all that say it, a place and what stands there instead: each breaks a promise.
BROKEN = {
    "newcomers overtake": ("ACQUIRE", "if following and following ~= entry_id", "if false"),
    "a lock is taken on no condition": (
        "ACQUIRE", "stored, condition, 'PX', ttl)", "stored, 'PX', ttl)"),
    "who runs still waits": ("ACQUIRE", "    take_out(entry_id)\n", ""),
    "who runs is still set aside": ("ACQUIRE", "redis.call('HDEL', aside, entry_id)", ""),
    "what has run runs again when its turn comes": (
        "ACQUIRE", "not again and not is_first", "not again and not kept"),
    "a turn is not taken over": (
        "ACQUIRE", "elseif holder.queued then", "elseif false then"),
    "a limit of the room is no limit": ("PARK", "if limit and", "if false and"),
    "the newest goes to the end": (
        "PARK", "redis.call('LINSERT', room, 'BEFORE', others[1], id) < 1", "true"),
    "of a kind nobody is found": ("PARK", "list(kind, of_kind)", ""),
    "another release's lists are believed": ("PARK", "not is_listed() and kind ~= ''", "false"),
    "a copy waits beside the first": ("PARK", "redis.call('HEXISTS', entries, id) == 1", "false"),
    "a settle does not look": ("SETTLE", "elseif first then", "elseif false then"),
    "a settle gives back another's turn": (
        "SETTLE", "if is_under(current, opening) then", "if type(current) == 'string' then"),
    "who settles cannot publish and nobody is told": (
        "LOOK", "gives_up() or unpublished() or not", "gives_up() or not"),
    "a give-up is forgotten": (
        "LOOK", "gives_up() or unpublished() or not", "unpublished() or not"),
    "a give-up is sent once": (
        "LOOK", "redis.call('ZADD', deadlines, string.format('%.0f', till), id)",
        "redis.call('ZREM', deadlines, id)"),
    "a give-up that a worker has is sent again": (
        "LOOK", "state.flag == GIVING_UP_RECEIVED and state.till > now", "false"),
    "who declines gives its turn away": (
        "LOOK", "state.offers, state.flag = math.max(state.offers - 1, 0), GIVEN",
        "take_out(declined)"),
    "what was put back is still set aside": (
        "PUT_BACK", "redis.call('HDEL', aside, id)", ""),
    "that a worker has it is not noted": (
        "RECEIVED", "save_state(id, state)\nreturn", "return"),
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
        "ACQUIRE", "parked, state = next_in_line(entry_id)", "parked, state = next_in_line()"),
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
        "another release's lists are believed",
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
def slow_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """No turn lapses before the test says so, however busy the machine is."""
    for name in SCRIPTS:
        change(monkeypatch, name, "local PAUSE = 5000 ", "local PAUSE = 3600000 ")


def change(monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str) -> None:
    script = getattr(lua, name)
    assert script.text.count(old) == 1, "the script has changed"
    assert script.sha  # made now, of the text as it is: it is what is put back afterwards
    text = script.text.replace(old, new)
    monkeypatch.setattr(script, "text", text)
    monkeypatch.setattr(script, "sha", hashlib.sha1(text.encode()).hexdigest())


@pytest.fixture
def machine(redis_server: Any) -> Iterator[type[RoomMachine]]:
    class Machine(RoomMachine):
        store = Store(pools_from_url(redis_server.url))
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
def test_a_broken_room_is_found_out(machine, monkeypatch, how: str) -> None:
    name, old, new = BROKEN[how]
    for each in [name] if name else SCRIPTS:
        change(monkeypatch, each, old, new)
    is_long = settings.get_current_profile_name() == "long"
    if how in RARE and not is_long:
        pytest.skip("`make model` finds it out")
    with pytest.raises(AssertionError):
        play(machine, max_examples=4000 if is_long else 400, phases=[Phase.generate])
