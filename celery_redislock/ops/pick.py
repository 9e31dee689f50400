"""Finds the locks that a user means: by filters, or by what `list` shows of a lock."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from shlex import quote
from typing import Any

from ..app.settings import app_locks
from ..inspection.history import history
from ..inspection.locks import OUTSIDE, Found, lock, matches, snapshot
from ..inspection.rooms import AT_ONCE, ids_of, waiting
from ..protocol.canonical import task_in
from ..protocol.holders import one_line
from ..protocol.keys import lock_keys
from ..servers.looking import in_batches
from ..tasks.target import Target, TargetError, nearly
from ..tasks.task import locked_tasks
from .table import SHORT, digest_of, some, telling_of, who


def pick(app: Any, meant: Target) -> Target:
    """The lock that has this name; or else the only lock that `list` shows as this text."""
    text = meant.keys.name
    if text in app.tasks or lock(app, text):
        return meant
    name = _only(_shown_as(snapshot(app), text), text)
    return meant if name is None else Target(lock_keys(app_locks(app).prefix, name))


def ask_for_quotes(app: Any, text: str) -> None:
    """Raise if these words, which name no task, are what `list` shows of a lock."""
    if _shown_as([*snapshot(app), *history(app, running=True)], text):
        raise TargetError(
            f"that is a lock, not a task: write it in quotes, {quote(one_line(text))}"
        )


def of_waiting(app: Any, text: str) -> Target | None:
    """The lock for which the task waits whose id is, or begins with, this; or None."""
    names = sorted({each.name for each in snapshot(app) if each.waiting})
    ids: dict[str, Iterable[str]] = {}
    for batch in in_batches(names, AT_ONCE):
        ids |= ids_of(app, batch)
    long = waiting(app, [name for name in names if name not in ids])
    ids |= {room.name: [each.task_id for each in room.waiting] for room in long}
    exact = {name for name, those in ids.items() if text in those}
    begin = {
        name
        for name, those in ids.items()
        if len(text) >= SHORT and any(each.startswith(text) for each in those)
    }
    name = _only(exact or begin, text)
    return None if name is None else Target(lock_keys(app_locks(app).prefix, name))


def meant_by(app: Any, meant: Target) -> list[Found]:
    """The rows of the lock that a user means; only one row, if the user means one slot."""
    found = lock(app, meant.keys.name)
    return [each for each in found if meant.slot in ("", each.key) or each.lost_because is not None]


def of_task(app: Any, task: str) -> list[Found]:
    """The locks that runs of this task, which the app need not know, hold or wait for."""
    found = snapshot(app)
    awaited = {each.name: None for each in found if each.waiting}
    rooms = {room.name for room in waiting(app, awaited, 1) if room.total and room.task == task}
    return [each for each in found if task in (each.task, task_in(each.name)) or each.name in rooms]


def require_task(app: Any, task: str | None, found: Collection[Any]) -> None:
    """Raise, with similar names, if nothing was found and the app has no such task."""
    if found or task is None or any(matches(name, task) for name in (*app.tasks, OUTSIDE)):
        return
    raise TargetError(f"no such task: {one_line(task)}{nearly(task, _names(app))}")


def nothing_called(app: Any, text: str) -> TargetError:
    """The error for a text that names no lock that is held or waited for."""
    if history(app, name=pick_past(app, text), limit=1):
        return TargetError(f"nobody holds {one_line(text)} or waits for it: the lock is free")
    shown = map(telling_of, snapshot(app))
    near = nearly(text, {*_names(app), *shown})
    return TargetError(f"no such lock: nothing here is called {one_line(text)}{near}")


def _names(app: Any) -> list[str]:
    return [task.name for task in locked_tasks(app)]


def pick_past(app: Any, text: str) -> str:
    """The name of the lock in the history that a user means, as `pick`."""
    if history(app, name=text, limit=1, running=True):
        return text
    runs = history(app, running=True)
    return _only(_shown_as(runs, text), text) or text


def _only(names: Collection[str], text: str) -> str | None:
    """The only name, if there is one."""
    if len(names) > 1:
        meant = some([*map(one_line, sorted(names))])
        raise TargetError(f"{one_line(text)} is not clear: {meant}")
    return next(iter(names), None)


def _shown_as(found: Iterable[Any], text: str) -> set[str]:
    """The names of the locks shown as this text; else of those whose digest or id begins so."""
    exact, begin = set(), set()
    for each in found:
        known = (who(each).task_id or "", digest_of(each.name) or "")
        if text in (telling_of(each), *known):
            exact.add(each.name)
        elif len(text) >= SHORT and any(one.startswith(text) for one in known):
            begin.add(each.name)
    return exact or begin
