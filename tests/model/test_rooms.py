"""A waiting room beside a list in memory, whatever happens in which order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from celery_redislock import _store
from celery_redislock._connect import pools_from_url
from celery_redislock._store import Store

from .room_machine import RoomMachine

#: Of a script, a place and what stands there instead: each breaks a promise.
BROKEN = {
    "it is forgotten once handed over": (
        "_HAND_OVER",
        "reply = {first, entry, gives_up and '1' or '0'}",
        "reply = {first, entry, gives_up and '1' or '0'} take_out(first, false)",
    ),
    "newcomers overtake": ("_ACQUIRE", "if first and first ~= entry then", "if false then"),
    "who runs still waits": ("_ACQUIRE", "redis.call('LREM', KEYS[5], 1, entry)", ""),
    "a limit of the room is no limit": ("_PARK", "if limit and", "if false and"),
    "the newest goes to the end": ("_PARK", "redis.call('LINSERT', KEYS[2], 'BEFORE', other[1]",
                                   "redis.call('RPUSH', KEYS[2], id) local _ = tostring(other[1]"),
    "a copy waits beside the first": ("_PARK", "redis.call('HEXISTS', KEYS[3], id) == 1", "false"),
    "a release does not look": ("_RELEASE", "redis.call('EXISTS', KEYS[6]) == 1", "false"),
    "nobody is to look after it": ("_PARK", "redis.call('ZADD', KEYS[4], 'LT', due, ARGV[7])", ""),
}  # fmt: skip


@pytest.fixture
def machine(redis_server: Any) -> Iterator[type[RoomMachine]]:
    class Machine(RoomMachine):
        store = Store(pools_from_url(redis_server.url))
        client = redis_server.client()
        met: ClassVar[set[str]] = set()

    yield Machine
    Machine.store.close()
    Machine.client.close()


def play(machine: type[RoomMachine], examples: int, **options: Any) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            database=None,
            suppress_health_check=list(HealthCheck),
            **options,
        ),
    )


def test_a_room_is_what_the_list_says_whatever_happens_in_which_order(machine) -> None:
    play(machine, 100)
    assert machine.met >= {
        "acquire: Acquired",
        "acquire: Busy other",
        "acquire: Busy own",
        "acquire: Busy queued",
        "acquire: Done",
        "park: Full",
        "park: Parked",
        "park: Turn",
    }


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_room_is_found_out(machine, monkeypatch, how: str) -> None:
    name, old, new = BROKEN[how]
    script = getattr(_store, name)
    assert script.text.count(old) == 1, "the script has changed"
    text = script.text.replace(old, new)
    monkeypatch.setattr(script, "text", text)
    monkeypatch.setattr(script, "sha", hashlib.sha1(text.encode()).hexdigest())
    with pytest.raises(AssertionError):
        play(machine, 400, phases=[Phase.generate])
