"""Faults that are planted into the package, to see that the properties find them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from celery_redislock.servers import scripts
from celery_redislock.tasks import decide, room


def _script(name: str, old: str, new: str) -> Callable[[], None]:
    """Change the text of a script, also where it is included."""

    def plant() -> None:
        real = scripts._source
        text = real(name)
        assert old in text, f"{name}.lua has changed: {old!r}"
        changed = text.replace(old, new)
        scripts._source = lambda each: changed if each == name else real(each)
        scripts.text_of.cache_clear()
        scripts.sha_of.cache_clear()

    return plant


def _function(module: Any, name: str, made: Callable[[Any], Any]) -> Callable[[], None]:
    """Replace a function wherever the package has bound it by name."""

    def plant() -> None:
        real = getattr(module, name)
        instead = made(real)
        for each, there in list(sys.modules.items()):
            if each.startswith("celery_redislock") and vars(there).get(name) is real:
                setattr(there, name, instead)

    return plant


FAULTS: dict[str, Callable[[], None]] = {
    "a held lock is taken": _script(
        "acquire", "if free then\n  if may_go", "free = free or other\nif free then\n  if may_go"
    ),
    "nothing is extended": _script(
        "extend", "    redis.call('PEXPIRE', slot, ttl)\n    if description", "    if description"
    ),
    "a lock never expires": _script(
        "taking", "redis.call('SET', slot, stored, 'PX', ttl)", "redis.call('SET', slot, stored)"
    ),
    "the fence is the minute": _script(
        "taking", "local least = (redis.call('GET', counter) or 0) + 1",
        "fence = string.format('%.0f', math.floor(time[1] / 60)); number = tonumber(fence)\n"
        "local least = 0",
    ),
    "the last parked is first": _script(
        "park", "in_front == '1' and 'LPUSH' or 'RPUSH'", "in_front == '1' and 'RPUSH' or 'LPUSH'"
    ),
    "a lock is not suspended": _script("suspended", "in_force['lock '", "in_force['none '"),
    "a task is not suspended": _script("suspended", "in_force['task '", "in_force['none '"),
    "a suspension is of all tasks": _script(
        "suspended", "local is_longer", "of_task = of_task or select(2, next(in_force))\n"
        "    local is_longer",
    ),
    "resume wakes nobody": _script(
        "suspend", "local some_may_wait = ends", "local some_may_wait = false\nwas_there = {}"
    ),
    "a retry is no different": _function(decide, "wait_its_turn", lambda real: _turned_away),
    "a copy from a room is put off": _function(
        decide, "_has_own_message", lambda real: lambda facts, state: False
    ),
    "nobody publishes from a room": _function(room, "publish_again", lambda real: _nothing),
    "a lock_pause is none": _script(
        "settle", "math.max(rest_of_min_hold(), tonumber(pause) or 0)", "rest_of_min_hold()"
    ),
    "no quiet is waited for": _script(
        "park", "math.min(now + quiet, first_call + longest)", "math.min(now + 1, first_call + 1)"
    ),
    "max_wait is twice as long": _script(
        "park", "string.format('%.0f', now + give_up_after)",
        "string.format('%.0f', now + 2 * give_up_after)",
    ),
}  # fmt: skip


def _turned_away(facts: Any, state: Any, busy: Any) -> Any:
    return state, decide.TurnedAway(decide.Outcome.SKIPPED, busy.holder, busy.suspension)


def _nothing(*args: object, **kwargs: object) -> None:
    """Do nothing."""
