"""What `celery redislock` does, from Python: list locks, break them, drop the tasks that wait.

    from celery_redislock.operations import break_locks, list_locks

    for lock in list_locks(app, task="shop.*", older=3600):
        print(lock.task, lock.key, lock.held_for)
    break_locks(app, node="celery@web-1")

The app must know its tasks: call this where they are imported.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .app.settings import AppLocks, app_locks
from .ops import orders
from .ops.pick import chosen
from .ops.survey import Found, all_locks

__all__ = ["Found", "break_locks", "drop_waiting", "list_locks"]


def list_locks(
    app: Any, *, task: str | None = None, node: str | None = None, older: float = 0.0
) -> list[Found]:
    """All locks that are held, kept, waited for or were broken lately, and the tasks set aside.

    Args:
        app: the Celery app.
        task: only of this task, or of tasks that match this glob.
        node: only held on this node, or on nodes that match this glob.
        older: only held for at least so many seconds.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
        ConfigError: the settings are wrong, or name no server.
    """
    return chosen(all_locks(_locks(app), app), task, node, older)


def break_locks(
    app: Any,
    locks: Iterable[Found] | None = None,
    *,
    task: str | None = None,
    node: str | None = None,
    older: float = 0.0,
    by: str | None = None,
) -> list[Found]:
    """Take locks away from their holders. These run on, and learn that they lost them.

    A lock that somebody else has by now is left alone, as is a value that is no lock of ours. If
    the server goes away meanwhile, some of them are broken: call it again.

    Args:
        app: the Celery app.
        locks: these, which `list_locks` gave; instead of what follows.
        task: those of this task, or of tasks that match this glob; "*" for all.
        node: those of runs on this node, or on nodes that match this glob. What is kept for a
            message in the queue is not the node's.
        older: those held for at least so many seconds.
        by: who does it, which the holders are told; None for this process's user and host.

    Returns:
        The locks that were broken.

    Raises:
        ValueError: neither locks nor a task, node or age are given.
        LockUnavailable: the server did not answer, or does not allow it.
        ConfigError: the settings are wrong, or name no server.
    """
    own = _locks(app)
    if locks is None:
        if task is None and node is None and not older:
            raise ValueError("break_locks: which? Give locks, task, node or older; task='*' is all")
        locks = orders.to_break(all_locks(own, app), task, node, older)
    held = [each for each in locks if each.token is not None]
    return [each for each in held if orders.break_slot(own, each, by)]


def drop_waiting(app: Any, locks: Iterable[Found] | None = None, *, task: str | None = None) -> int:
    """Drop the tasks that wait in the rooms of locks or were set aside: they end as with `Skip()`.

    So do tasks of others that wait for the same lock.

    Args:
        app: the Celery app.
        locks: of these, which `list_locks` gave; instead of the task.
        task: of this task's locks, or of those of tasks that match this glob; "*" for all.

    Returns:
        How many were dropped.

    Raises:
        ValueError: neither locks nor a task are given.
        LockUnavailable: the server did not answer, or does not allow it.
        ConfigError: the settings are wrong, or name no server.
    """
    own = _locks(app)
    if locks is None:
        if task is None:
            raise ValueError("drop_waiting: of which locks? Give locks or task; task='*' is all")
        locks = orders.to_break(all_locks(own, app), task)
    return sum(orders.drop_waiting(app, own, [each for each in locks if each.waiting]))


def _locks(app: Any) -> AppLocks:
    locks = app_locks(app)
    locks.require_server()
    return locks
