"""What operators order: break a lock, drop the tasks that wait for it, put back those set aside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..app.options import MAX_LIMIT
from ..app.settings import AppLocks
from ..core.keys import LockKeys, lock_keys
from ..core.server import LOOKING_TTL
from ..tasks.target import with_slots_of
from ..tasks.turns import end_replaced
from .survey import Found, named


def all_of(found: Sequence[Found], task: str) -> list[Found]:
    """All locks that this task holds; and what was set aside of it, if no other task has the lock:
    whoever drops that drops all who wait for the lock.
    """
    others = {each.name for each in found if each.task not in ("", task)}
    return [
        each for each in found if each.task == task and not (each.is_aside and each.name in others)
    ]


def break_slot(locks: AppLocks, each: Found) -> bool:
    """Break the slot that was shown. False if somebody else has it now."""
    keys = lock_keys(locks.prefix, each.name)
    if each.key != keys.lock:
        keys = lock_keys(locks.prefix, each.name, MAX_LIMIT)
    holder = locks.store.locks.break_lock(keys, LOOKING_TTL, each.token)
    return holder is not None or each.state == "reserved"


def drop_waiting(app: Any, locks: AppLocks, found: Sequence[Found]) -> int:
    """Drop the tasks that wait for these locks, and store that they were skipped. How many."""
    count = 0
    for name in {each.name: None for each in found}:
        holder = next((each.holder for each in found if each.name == name and each.holder), None)
        by = (holder and holder.task_id) or ""
        keys = lock_keys(locks.prefix, name)
        dropped = locks.store.rooms.drop_waiting(keys, LOOKING_TTL, by, locks.done_ttl)
        count += len(dropped)
        for entry_id, entry in dropped.items():
            end_replaced(app, keys, LOOKING_TTL, entry_id, entry, by, unknown=True)
    return count


def put_back(app: Any, locks: AppLocks, keys: LockKeys) -> int:
    """Let the tasks of this lock that were set aside wait again. How many."""
    entries = locks.store.looking.all_set_aside(keys)
    keys = with_slots_of(app, keys, {named(*each).task for each in entries.items()})
    return sum(locks.store.rooms.put_back(keys, entry_id, LOOKING_TTL) for entry_id in entries)
