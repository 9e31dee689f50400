"""`celery redislock` from Python: list locks, break them, drop waiting tasks, suspend and resume.

    from celery_redislock.operations import break_locks, list_locks

    for lock in list_locks(app, task="shop.*", older=3600):
        print(lock.task, lock.key, lock.held_for)
    break_locks(app, node="celery@web-1")

The app must know its tasks: call this where the tasks are imported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from .app.settings import AppLocks, app_locks
from .errors import ConfigError, LockUnavailable
from .inspection.locks import Found, chosen, snapshot
from .inspection.locks import lock as lock_rows
from .inspection.locks import suspensions as suspensions_of
from .inspection.states import AWAITED, KEPT, RUNNING
from .protocol import calls, rooms
from .protocol.calls import break_lock, holder_of
from .protocol.checks import checked, plain, seconds_from
from .protocol.exchange import Query
from .protocol.holders import Holder, one_line, user_here
from .protocol.keys import MAX_LIMIT, LockKeys, in_all_buckets, lock_keys, name_of
from .protocol.names import NoLock
from .protocol.suspensions import Suspension
from .servers.looking import in_batches
from .servers.server import LOOKING_TTL
from .tasks.locked import Calls, LockedTask
from .tasks.room import end_replaced
from .tasks.target import TargetError, keys_of_call, locked_task, nearly

__all__ = [
    "Found",
    "Suspension",
    "break_locks",
    "drop_waiting",
    "holders",
    "list_locks",
    "list_suspensions",
    "resume",
    "suspend",
]

#: How many buckets one script suspends a task in: below a millisecond of the server's time.
AT_ONCE: Final = 128


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
    replies = iter(own.server.replies(commands, allows_wrong_type=True))
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


def suspend(
    app: Any,
    task: str | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    lock: str | None = None,
    seconds: float | timedelta,
    why: str = "",
    by: str | None = None,
    unknown: bool = False,
) -> Suspension:
    """Keep new runs of a task, or under one lock, from beginning for a while.

        suspend(app, "shop.sync", seconds=3600, why="migration")
        suspend(app, "shop.sync", [5], seconds=3600)   # one account only

    What runs goes on, and so does what has begun: a retry whose lock is kept runs, and any other
    waits for the end, as does a message that is redelivered. Calls do what they do as duplicates,
    by `on_conflict`: with `Queue()` they wait for the end, and with `Skip()` they end without a
    run. To suspend the same again sets a new end and reason. Workers of releases without this do
    not learn of it.

    Args:
        app: the Celery app.
        task: the task's name.
        args: with `kwargs`: the arguments of a call of that task, whose lock is suspended. Without
            any, all of the task's runs are.
        kwargs: see `args`.
        lock: instead of a task: a lock's key, its name, or the label under which `list_locks` has
            it.
        seconds: for how long.
        why: the reason, for people.
        by: who suspends it, for people; None for this process's user and host.
        unknown: accept a task that the app does not know, or a lock that nobody holds or waits for.

    Raises:
        ValueError: neither or both of task and lock are given; or seconds is no time; or there is
            no such task or lock, or several are called so.
        LockUnavailable: the server did not answer, or does not allow it. Some of the locks may be
            suspended: call this again, or `resume`.
        ConfigError: the settings are wrong, or name no server.
    """
    own = _locks(app)
    length = checked("suspend", "seconds", seconds, seconds_from(0.001))
    find = _to_come if unknown else _known
    meant = _meant(app, "suspend", task, args, kwargs, lock, find, unknown)
    user = user_here() if by is None else by
    stored = _in_buckets(own, dataclasses.replace(meant, by=user, why=why), length)
    assert stored is not None
    return stored


def resume(
    app: Any,
    task: str | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    lock: str | None = None,
) -> Suspension | None:
    """End a suspension before its time. What waits because of it goes on within seconds, and what
    is deferred when it comes back.

    Args:
        app: the Celery app.
        task: the task that is suspended.
        args: with `kwargs`: the arguments of the call whose lock is.
        kwargs: see `args`.
        lock: the key, name or label of the lock that is.

    Returns:
        The suspension; None if there is none, perhaps since the server has lost it.

    Raises:
        ValueError: neither or both of task and lock are given; or several are called so.
        LockUnavailable: the server did not answer, or does not allow it. Call this again.
        ConfigError: the settings are wrong, or name no server.
    """
    own = _locks(app)
    meant = _meant(app, "resume", task, args, kwargs, lock, _named, unknown=True)
    ended = _in_buckets(own, meant, 0.0)
    if ended is None and lock is not None:
        named = {each.lock for each in suspensions_of(app) if each.lock and each.label == lock}
        name = _only("resume", named, lock)
        return None if name is None else _in_buckets(own, Suspension(lock=name), 0.0)
    return ended


def list_suspensions(app: Any) -> list[Suspension]:
    """All suspensions that have not ended; what ends first comes first.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
        ConfigError: the settings are wrong, or name no server.
    """
    _locks(app)
    return suspensions_of(app)


def _meant(
    app: Any,
    where: str,
    task: str | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    lock: str | None,
    find: Callable[[Any, str, str], Suspension],
    unknown: bool,
) -> Suspension:
    """What is meant, without times. `find` finds a lock by its key, name or label."""
    if bool(task) is bool(lock):
        raise ValueError(f"{where}: what? Give either task or lock")
    if lock:
        return find(app, where, lock)
    assert task
    try:
        if args or kwargs:
            found, given = locked_task(app, task), kwargs or {}
            keys = keys_of_call(app, task, args, given)
            called = [task, *map(str, args), *(f"{k}={v}" for k, v in given.items())]
            label = Calls(found).label_of_call(args, given) or " ".join(called)
            return Suspension(lock=keys.name, label=label)
        if not unknown:
            locked_task(app, task)
    except TargetError as exc:
        raise ValueError(f"{where}: {exc}") from exc
    return Suspension(task=task)


def _named(app: Any, where: str, text: str) -> Suspension:
    """The lock with this key or name."""
    prefix = app_locks(app).prefix
    return Suspension(lock=lock_keys(prefix, name_of(prefix, text) or text).name)


def _known(app: Any, where: str, text: str) -> Suspension:
    """The lock that is listed with this key, name or label."""
    name, rows = _named(app, where, text).lock, snapshot(app)
    labels = {each.name: each.holder.label if each.holder else None for each in rows}
    called = [name] if name in labels else [each for each, label in labels.items() if label == text]
    if (only := _only(where, called, text)) is None:
        shown = {each for pair in labels.items() for each in pair if each} | {*app.tasks}
        raise ValueError(
            f"{where}: no task, and no lock that anybody holds or waits for, is called"
            f" {one_line(text)}{nearly(text, shown)} (--unknown, or unknown=True, accepts what is"
            " to come)"
        )
    return Suspension(lock=only, label=labels[only])


def _to_come(app: Any, where: str, text: str) -> Suspension:
    """The lock with this key or name; with its label, if it is there already."""
    named = _named(app, where, text)
    rows = lock_rows(app, named.lock or "")
    labels = (each.holder.label for each in rows if each.holder is not None)
    return dataclasses.replace(named, label=next(labels, None))


def _only(where: str, names: Collection[str], text: str) -> str | None:
    """The only one of these locks, if there is one."""
    if len(names) > 1:
        some = ", ".join(map(one_line, sorted(names)[:3]))
        raise ValueError(f"{where}: {one_line(text)} is not clear, it is the label of: {some}")
    return next(iter(names), None)


def _in_buckets(own: AppLocks, suspension: Suspension, seconds: float) -> Suspension | None:
    """Suspend this, or with 0 s end that, in each bucket that may have such locks."""
    if suspension.lock is not None:
        of = lock_keys(own.prefix, suspension.lock)
        return own.server.run(calls.suspend([of.suspended], [of.rooms], suspension, seconds))
    lists = own.server.joint(in_all_buckets(own.prefix, "suspended"))
    rooms = own.server.joint(in_all_buckets(own.prefix, "rooms"))
    made = [
        calls.suspend(some, own_rooms, suspension, seconds)
        for group, their_rooms in zip(lists, rooms, strict=True)
        for some, own_rooms in zip(
            in_batches(group, AT_ONCE), in_batches(their_rooms, AT_ONCE), strict=True
        )
    ]
    answers = own.server.run_all(made, ttl=LOOKING_TTL)
    for answer in answers:
        if isinstance(answer, LockUnavailable):
            raise answer
    found = [each for each in answers if isinstance(each, Suspension)]
    return max(found, key=lambda each: each.ends_at, default=None)


def _locks(app: Any) -> AppLocks:
    locks = app_locks(app)
    locks.require_address()
    return locks


# -- for the commands and the page, too --------------------------------------------------------


def to_break(
    found: Sequence[Found], task: str | None = None, node: str | None = None, older: float = 0.0
) -> list[Found]:
    """The locks to break for a user who names a task or a node. A node's are those of its runs: a
    lock that is kept for a message outlives the node.
    """
    return [
        each
        for each in chosen(found, task, node, older)
        if (node is None and each.state in (*KEPT, *AWAITED)) or each.state in RUNNING
    ]


def break_slot(locks: AppLocks, each: Found, by: str | None = None) -> bool:
    """Break the slot that was shown. False if another run has it by now, or nobody."""
    keys = lock_keys(locks.prefix, each.name)
    if each.key != keys.lock:
        keys = lock_keys(locks.prefix, each.name, MAX_LIMIT)
    task = each.holder.task if each.holder is not None else None
    holder = locks.server.run(break_lock(keys, LOOKING_TTL, each.token, by, task))
    return holder is not None or each.kept_for == "a waiter"


def drop_each(app: Any, locks: AppLocks, found: Iterable[Found]) -> Iterator[int]:
    """Drop the tasks that wait for these locks, and store that they were skipped. Yields the number
    for each lock at once: the server may go away before the last.
    """
    holders: dict[str, str] = {}
    for each in found:
        holders[each.name] = holders.get(each.name) or (each.holder and each.holder.task_id) or ""
    for name, by in holders.items():
        keys = lock_keys(locks.prefix, name)
        dropped = _drop_all(locks, keys, by)
        yield len(dropped)  # before the results: if storing them fails here, a worker does it
        for entry_id, entry in dropped.items():
            end_replaced(app, keys, LOOKING_TTL, entry_id, entry, by, unknown=True, late=True)


def _drop_all(locks: AppLocks, keys: LockKeys, by: str) -> dict[str, str]:
    """Drop all entries; returns them by id. In steps: one script for all would block the server."""
    dropped: dict[str, str] = {}
    while True:
        some = locks.server.run(rooms.drop(keys, LOOKING_TTL, by, locks.done_ttl))
        dropped.update(some)
        if len(some) < rooms.DROP_COUNT:
            return dropped
