"""Finds the lock that an operator means: by its key, its name, or a task and a call's arguments."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..app.settings import app_locks
from ..protocol.holders import one_line
from ..protocol.keys import LockKeys, lock_keys, name_of
from ..protocol.names import NO_HEADERS, NoLock
from .task import SingletonTask, locked_tasks


class TargetError(Exception):
    """It is not clear which lock is meant. The message is one line."""


class Target(NamedTuple):
    """A lock, or one slot of it if that slot's key was given."""

    keys: LockKeys
    slot: str = ""  # the whole key of one slot, or "" for the whole lock

    @property
    def key(self) -> str:
        return self.slot or self.keys.lock


def word(text: Any) -> Any:
    """An argument as it was typed: JSON, or else the text itself."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def locked_task(app: Any, name: str) -> SingletonTask:
    """The task with that name, which takes locks. Raises `TargetError` if there is none."""
    task = app.tasks.get(name)
    if task is None:
        near = nearly(name, [each.name for each in locked_tasks(app)])
        raise TargetError(f"no such task: {one_line(name)}{near}")
    if not isinstance(task, SingletonTask):
        raise TargetError(
            f"{one_line(name)} takes no lock: its base is not SingletonTask, and redislock_tasks"
            " does not name it"
        )
    return task


def nearly(text: str, known: Iterable[str]) -> str:
    """The known names that are similar, or have a part that is, as the rest of an error."""
    from difflib import get_close_matches  # only for an error

    names = sorted(known)
    found = get_close_matches(text, names, 3, 0.75)
    for name in names:
        if name not in found and get_close_matches(text, name.split("."), 1, 0.75):
            found.append(name)
    return f"; did you mean {' or '.join(map(one_line, found[:3]))}?" if found else ""


def keys_of_call(
    app: Any,
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    headers: Mapping[str, Any] = NO_HEADERS,
) -> LockKeys:
    """The keys of the lock for a call of that task. Raises `TargetError` if there is none."""
    task = locked_task(app, name)
    try:
        return task.with_headers(headers).keys_of_call(args, kwargs)
    except NoLock as exc:
        raise TargetError(one_line(str(exc))) from exc
    except Exception as exc:  # a callable of the user's may raise anything
        raise TargetError(f"{one_line(name)}: {one_line(str(exc))}") from exc


def locate(
    app: Any,
    target: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    headers: Mapping[str, Any] = NO_HEADERS,
) -> Target:
    """The lock that is meant by a key, its name, or a task and a call. Raises `TargetError`."""
    prefix = app_locks(app).prefix
    name = name_of(prefix, target)
    if name is not None:
        if args or kwargs or headers:
            raise TargetError("a key takes no arguments and no headers")
        keys = lock_keys(prefix, name)
        return Target(keys, "" if target == keys.lock else target)
    if target in app.tasks or args or kwargs or headers:
        return Target(keys_of_call(app, target, args, kwargs or {}, headers))
    return Target(lock_keys(prefix, target))
