"""Operators' orders: break a lock, drop the tasks that wait for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..app.settings import AppLocks
from ..protocol import calls, rooms
from ..protocol.keys import MAX_LIMIT, LockKeys, lock_keys
from ..servers.server import LOOKING_TTL
from ..tasks.room import end_replaced
from .pick import chosen
from .states import AWAITED, KEPT, RUNNING
from .survey import Found


def to_break(
    found: Sequence[Found], task: str | None = None, node: str | None = None, older: float = 0.0
) -> list[Found]:
    """The locks to break for an order that names a task or a node.

    For a node these are the locks of its runs: a lock that is kept for a message outlives the node.
    """
    return [
        each
        for each in chosen(found, task, node, older)
        if (node is None and each.state in (*KEPT, *AWAITED)) or each.state in RUNNING
    ]


def break_slot(locks: AppLocks, each: Found, by: str | None = None) -> bool:
    """Break the slot that was shown. False if another run has it by now, or nobody.

    Args:
        locks: the locks.
        each: the slot as it was shown.
        by: who breaks it, as the holder is told; None for this process's user and host.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    keys = lock_keys(locks.prefix, each.name)
    if each.key != keys.lock:
        keys = lock_keys(locks.prefix, each.name, MAX_LIMIT)
    holder = locks.server.run(calls.break_lock(keys, LOOKING_TTL, each.token, by, each.task))
    return holder is not None or each.kept_for == "a waiter"


def drop_waiting(app: Any, locks: AppLocks, found: Iterable[Found]) -> Iterator[int]:
    """Drop the tasks that wait for these locks, and store that they were skipped. Yields the number
    for each lock at once: the server may go away before the last.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    holders: dict[str, str] = {}
    for each in found:
        holders[each.name] = holders.get(each.name) or (each.holder and each.holder.task_id) or ""
    for name, by in holders.items():
        keys = lock_keys(locks.prefix, name)
        dropped = _drop_all(locks, keys, by)
        yield len(dropped)  # before the results: if storing them fails here, a worker does it
        for entry_id, entry in dropped.items():
            end_replaced(app, keys, LOOKING_TTL, entry_id, entry, by, unknown=True)


def _drop_all(locks: AppLocks, keys: LockKeys, by: str) -> dict[str, str]:
    """Drop all entries; returns them by id. In steps: one script for all would block the server."""
    dropped: dict[str, str] = {}
    while True:
        some = locks.server.run(rooms.drop(keys, LOOKING_TTL, by, locks.done_ttl))
        dropped.update(some)
        if len(some) < rooms.DROP_COUNT:
            return dropped
