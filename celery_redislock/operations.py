"""`celery redislock` from Python: list locks, break them, drop waiting tasks, hold locks.

    from celery_redislock.operations import break_locks, list_locks

    for lock in list_locks(app, task="shop.*", older=3600):
        print(lock.task, lock.key, lock.held_for)
    break_locks(app, node="celery@web-1")

The app must know its tasks: call this where the tasks are imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from .app.settings import AppLocks, app_locks
from .errors import ConfigError, LockUnavailable
from .inspection.holds import holds as holds_of
from .inspection.locks import Found, chosen, snapshot
from .inspection.states import AWAITED, KEPT, RUNNING
from .protocol import holds, rooms
from .protocol.calls import break_lock, free_of_hold, holder_of
from .protocol.checks import MAX_SECONDS, plain, seconds_from
from .protocol.exchange import Call, Query
from .protocol.holders import Holder, user_here
from .protocol.holds import Hold
from .protocol.keys import MAX_LIMIT, LockKeys, holds_key, in_all_buckets, lock_keys, name_of
from .protocol.names import NoLock
from .servers.server import LOOKING_TTL
from .tasks.locked import LockedTask
from .tasks.room import end_replaced

__all__ = [
    "Found",
    "Hold",
    "break_locks",
    "drop_waiting",
    "hold_locks",
    "holders",
    "list_holds",
    "list_locks",
    "unhold_locks",
]


def list_locks(
    app: Any, *, task: str | None = None, node: str | None = None, older: float | timedelta = 0.0
) -> list[Found]:
    """All locks that are held, kept, waited for or lately broken.

    Args:
        app: the Celery app.
        task: only locks of this task, or of tasks that match this glob.
        node: only locks held on this node, or on nodes that match this glob.
        older: only locks held for at least this many seconds.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
        ConfigError: the settings are wrong, or name no server.
    """
    _locks(app)
    return chosen(snapshot(app), task, node, plain(older))


def holders(app: Any, calls: Iterable[tuple[Any, ...]]) -> list[Holder | None]:
    """Who holds the locks of these calls, such as those of the rows of a list. Asks the server
    once, and each node of a cluster.

        holders(app, [(sync_account, (account.pk,)) for account in page])

    Args:
        app: the Celery app.
        calls: for each call the task or its name, and a sequence of its arguments; also a dict of
            its keyword arguments.

    Returns:
        For each call the holder, or None.

    Raises:
        ConfigError: a task is not a locked one, or the settings are wrong, or name no server.
        LockUnavailable: the server did not answer.
    """
    own = _locks(app)
    queries: list[Query[Holder | None] | None] = []
    for task, args, *more in calls:
        found = app.tasks.get(task) if isinstance(task, str) else task
        if not isinstance(found, LockedTask):
            raise ConfigError(f"holders: {task!r} is no task with a lock in this app")
        try:
            keys = found.keys_of_call(tuple(args), *more or ({},))
        except NoLock:
            queries.append(None)
        else:
            queries.append(holder_of(keys, found.lock_options.lock_ttl))
    commands = [command for query in queries if query for command in query.commands]
    replies = iter(own.server.replies(commands, wrong_type=True))
    return [
        None if query is None else query.read([next(replies) for _ in query.commands])
        for query in queries
    ]


def break_locks(
    app: Any,
    locks: Iterable[Found] | None = None,
    *,
    task: str | None = None,
    node: str | None = None,
    older: float | timedelta = 0.0,
    by: str | None = None,
) -> list[Found]:
    """Take locks away from their holders. The holders run on, and learn that they lost the lock.

    A lock that has another holder by now is left alone, as is a value that is not a lock of ours.
    If the server goes away meanwhile, only some of the locks are broken: call this again.

    Args:
        app: the Celery app.
        locks: break these, from `list_locks`, instead of a choice by task, node and older.
        task: locks of this task, or of tasks that match this glob; "*" for all.
        node: locks of runs on this node, or on nodes that match this glob. A lock that is kept for
            a message in the queue belongs to no node.
        older: locks held for at least this many seconds.
        by: who breaks them, as the holders are told; None for this process's user and host.

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
        locks = to_break(snapshot(app), task, node, plain(older))
    held = [each for each in locks if each.token is not None]
    return [each for each in held if break_slot(own, each, by)]


def drop_waiting(app: Any, locks: Iterable[Found] | None = None, *, task: str | None = None) -> int:
    """Drop the tasks that wait for locks: they end as with `Skip()`.

    Tasks with another name that wait for the same lock are dropped too.

    Args:
        app: the Celery app.
        locks: the locks, from `list_locks`, instead of a choice by task.
        task: locks of this task, or of tasks that match this glob; "*" for all.

    Returns:
        How many tasks were dropped.

    Raises:
        ValueError: neither locks nor a task are given.
        LockUnavailable: the server did not answer, or does not allow it.
        ConfigError: the settings are wrong, or name no server.
    """
    own = _locks(app)
    if locks is None:
        if task is None:
            raise ValueError("drop_waiting: of which locks? Give locks or task; task='*' is all")
        locks = to_break(snapshot(app), task)
    return sum(drop_each(app, own, [each for each in locks if each.waiting]))


def hold_locks(
    app: Any,
    *,
    task: str | None = None,
    lock: str | None = None,
    seconds: float | timedelta,
    why: str = "",
    by: str | None = None,
) -> Hold:
    """Keep new runs from locks for a while: their tasks do what they do as duplicates.

        hold_locks(app, task="shop.*", seconds=3600, why="migration")

    A run that has a lock goes on, and so does what has begun: a retry that keeps its lock runs, and
    one that does not waits for the end of the hold, as does a message that is redelivered. To hold
    the same again sets a new end and reason. Workers of releases without holds learn of one only
    where a newer worker has met it.

    Args:
        app: the Celery app.
        task: hold the locks of this task, or of tasks that match this glob; "*" for all.
        lock: hold the lock with this key or name, or those whose names match this glob.
        seconds: for how long.
        why: the reason, for people.
        by: who holds them, for people; None for this process's user and host.

    Raises:
        ValueError: neither or both of task and lock are given; or seconds is no time, or a glob has
            too many stars.
        LockUnavailable: the server did not answer, or does not allow it. Some of the locks may be
            held: call this again, or `unhold_locks`.
        ConfigError: the settings are wrong, or name no server.
    """
    own, name = _locks(app), _held_name(app, "hold_locks", task, lock)
    try:
        length = seconds_from(0.001)(seconds)
    except ValueError:
        raise ValueError(
            f"hold_locks: seconds={seconds!r}; accepted: a number of seconds up to"
            f" {MAX_SECONDS:g}, or a timedelta"
        ) from None
    user = user_here() if by is None else by
    make = lambda key: holds.hold(key, LOOKING_TTL, task, name, length, user, why)  # noqa: E731
    stored = own.server.run(make(holds_key(own.prefix)))
    assert stored is not None
    _in_buckets(own, stored, make)
    return stored


def unhold_locks(app: Any, *, task: str | None = None, lock: str | None = None) -> Hold | None:
    """End a hold before its time. What waits for its locks goes on.

    Args:
        app: the Celery app.
        task: the task or the glob that was held.
        lock: the lock's key or name, or the glob, that was held.

    Returns:
        The hold; None if there was none.

    Raises:
        ValueError: neither or both of task and lock are given.
        LockUnavailable: the server did not answer, or does not allow it. Call this again.
        ConfigError: the settings are wrong, or name no server.
    """
    own, name = _locks(app), _held_name(app, "unhold_locks", task, lock)
    target = holds.target_of(task, name)
    found = next((each for each in list_holds(app) if each.target == target), None)
    make = lambda key: holds.end(key, LOOKING_TTL, task, name)  # noqa: E731
    if found is None:
        return None
    _in_buckets(own, found, make)
    opening = holds.opening_of(task, name)
    for each in {each.name for each in snapshot(app) if each.state == "on hold"}:
        keys = lock_keys(own.prefix, each, MAX_LIMIT)
        own.server.run(free_of_hold(keys, LOOKING_TTL, opening))
    own.server.run(make(holds_key(own.prefix)))
    return found


def list_holds(app: Any) -> list[Hold]:
    """All holds that have not ended; the first that ends comes first.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
        ConfigError: the settings are wrong, or name no server.
    """
    _locks(app)
    return holds_of(app)


def _held_name(app: Any, what: str, task: str | None, lock: str | None) -> str | None:
    """The lock's name.

    Raises:
        ValueError: not one of both is given.
    """
    if (task is None) is (lock is None):
        raise ValueError(f"{what}: which locks? Give either task or lock; task='*' is all")
    return lock and (name_of(app_locks(app).prefix, lock) or lock)


def _in_buckets(own: AppLocks, hold: Hold, make: Callable[[str], Call[Any]]) -> None:
    """Make a call in each bucket that may have locks of this hold.

    Raises:
        LockUnavailable: a bucket's server did not answer, or does not allow it.
    """
    keys = in_all_buckets(own.prefix, "holds")
    if hold.is_of_one_lock:
        assert hold.lock is not None
        keys = [lock_keys(own.prefix, hold.lock).holds]
    answers = own.server.run_all([make(key) for key in keys], ttl=LOOKING_TTL)
    for answer in answers:
        if isinstance(answer, LockUnavailable):
            raise answer


def _locks(app: Any) -> AppLocks:
    locks = app_locks(app)
    locks.require_address()
    return locks


# -- for the commands and the page, too --------------------------------------------------------


def to_break(
    found: Sequence[Found], task: str | None = None, node: str | None = None, older: float = 0.0
) -> list[Found]:
    """The locks to break for a user who names a task or a node.

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
    holder = locks.server.run(break_lock(keys, LOOKING_TTL, each.token, by, each.task))
    return holder is not None or each.kept_for == "a waiter"


def drop_each(app: Any, locks: AppLocks, found: Iterable[Found]) -> Iterator[int]:
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
