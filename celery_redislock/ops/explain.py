"""Which lock a call gets and why, and what would happen to the call now."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from ..app.options import LockOptions
from ..inspection.locks import Found, lock, suspensions
from ..inspection.states import AWAITED, NO_LOCK, RUNNING
from ..protocol.names import NO_HEADERS
from ..protocol.suspensions import Suspension, longest_of
from ..tasks.protect import pattern_of
from ..tasks.target import keys_of_call, locked_task
from ..tasks.task import SingletonTask
from .table import in_units, suspended


def explain(
    app: Any,
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    headers: Mapping[str, Any] = NO_HEADERS,
) -> dict[str, Any]:
    """All about the lock of one call, as plain data, in the order in which it is shown."""
    task = locked_task(app, name)
    keys = keys_of_call(app, name, args, kwargs, headers)
    call = task.with_headers(headers)
    options = task.lock_options
    slots, limit = lock(app, keys.name), len(keys.slots) + 1
    suspension = longest_of(suspensions(app), name, keys.name)
    return {
        "task": name,
        "key": keys.lock,
        "name": keys.name,
        "label": call.label_of_call(args, kwargs),
        "lock_key": _lock_key_in_words(options),
        "options_from": _source(task),
        "arguments": {k: repr(v) for k, v in call.arguments_of_call(args, kwargs).items()},
        "lock_ttl": options.lock_ttl,
        "lock_limit": limit,
        "lock_scope": options.lock_scope,
        "policy": repr(options.on_conflict),
        "standing": slots,
        "suspended": suspension and suspended(suspension),
        "now": _now(task, slots, limit, suspension),
    }


def _lock_key_in_words(options: LockOptions) -> str:
    key: Any = options.lock_key
    text = repr(list(key)) if isinstance(key, tuple) else repr(key)
    if key is None:
        text = "not set: all arguments"
    elif callable(key):
        where = getattr(key, "__qualname__", text)
        text = f"a callable, {getattr(key, '__module__', '?')}.{where}"
    headers = f"; headers: {', '.join(options.lock_headers)}" if options.lock_headers else ""
    return text + headers


def _source(task: SingletonTask) -> str:
    pattern = pattern_of(task)
    if pattern is not None:
        return f"redislock_tasks[{pattern!r}]"
    module = inspect.getmodule(task.run)
    return f"the task's own, in {module.__name__ if module else type(task).__module__}"


def _now(
    task: SingletonTask, slots: Sequence[Found], limit: int, suspension: Suspension | None
) -> str:
    """What would happen to the call."""
    locks = task.app_locks
    if not locks.enabled:
        return "redislock_enabled is False: it would run without a lock"
    options = task.lock_options
    taken = [each for each in slots if each.state not in (*AWAITED, *NO_LOCK)]
    waiting = max((each.waiting for each in slots), default=0)
    what = options.on_conflict.describe(waiting)
    waits = suspension is not None and any(
        each.waiting and each.holder is not None and each.holder.task == task.name for each in slots
    )
    if options.lock_scope != "running" and (taken or waits):
        sent = {
            "existing": "apply_async would send nothing, and return the existing task's result",
            "raise": "apply_async would raise LockConflict",
            "publish": "it would be sent, and its policy would decide in the worker",
        }[options.on_queued_conflict]
        if options.on_queued_conflict != "publish":
            return f"{_blocked_by(taken) if taken else 'a call of it waits'}: {sent}"
    if suspension is not None:
        if options.lock_scope == "queued":
            what = "it would be sent, and wait in Redis until that ends"
        elif options.on_conflict.replaces:
            what = "it would wait in Redis until that ends, and end no run"
        elif not locks.is_quorum:
            what = what.replace("in its pool slot", "in Redis")
        if sum(each.state in RUNNING for each in taken) < limit:
            return f"the task or its lock is suspended: {what}"
    if options.lock_scope == "queued":
        return "the lock is free: it would be sent, and keep the lock until it starts"
    reserved = [each for each in taken if each.kept_for == "a waiter"]
    if len(taken) < limit and not waiting:
        return f"the lock is free: {what if options.on_conflict.admits else 'it would run'}"
    if reserved and len(reserved) == len(taken) and not waiting:
        return (
            "the lock is being handed over: it may run, or wait behind the task that gets the lock"
        )
    quiet = next((each.due_in for each in slots if each.due_in is not None), None)
    if quiet is not None:
        how = what if options.on_conflict.admits else "it would run"
        return f"nobody holds the lock; the last call waits for quiet, {in_units(quiet)}: {how}"
    if any(each.state == "not taken" for each in slots):
        return (
            f"nobody holds the lock, and no worker has taken what waits for it ({waiting}): {what}"
        )
    if len(taken) < limit:
        return f"the lock is free, but others wait before it ({waiting}): {what}"
    return f"{_blocked_by(taken)}: {what}"


def _blocked_by(taken: Sequence[Found]) -> str:
    first = taken[0]
    if first.state == "foreign":
        return "a foreign value blocks its key"
    if first.holder is None:
        return "the lock is being handed over"
    more = f" and {len(taken) - 1} more" if len(taken) > 1 else ""
    return f"held by {first.holder}{more}"
