"""Finds the locks that a user means: by filters, or by what `list` shows of a lock."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from ..app.settings import AppLocks, app_locks
from ..protocol.canonical import parts_of
from ..protocol.holders import Holder, one_line
from ..protocol.keys import lock_keys
from ..tasks.target import Target, TargetError, nearly
from ..tasks.task import locked_tasks
from .history import OUTSIDE, PastRun, matches, past_runs
from .rooms import heads_of
from .survey import Found, all_locks, one_lock
from .table import SHORT, digest_of, telling_of


def chosen(
    found: Iterable[Found], task: str | None = None, node: str | None = None, older: float = 0.0
) -> list[Found]:
    """The locks whose task and node match, if given, held for at least `older` seconds."""
    return [
        each
        for each in found
        if (task is None or matches(each.task, task))
        and (node is None or matches((each.holder and each.holder.node) or "", node))
        and (each.held_for or 0.0) >= older
    ]


def pick(app: Any, meant: Target) -> Target:
    """The lock that has this name; or else the only lock that `list` shows with this text: as its
    label, its key without the task, or the first eight or more characters of digest or task's id.

    Raises:
        TargetError: several locks match.
        LockUnavailable: the server did not answer, or does not allow it.
    """
    locks, text = app_locks(app), meant.keys.name
    if text in app.tasks or one_lock(locks, text):
        return meant
    found = all_locks(locks, app)
    name = _only({each.name for each in found if _is_shown_as(_Shown.present(each), text)}, text)
    return meant if name is None else Target(lock_keys(locks.prefix, name))


def of_task(app: Any, task: str) -> list[Found]:
    """The locks of this task, which the app need not know: those that its runs hold, and those that
    it waits for.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    locks = app_locks(app)
    found = all_locks(locks, app)
    awaited = [lock_keys(locks.prefix, each.name) for each in found if each.waiting]
    heads = zip(awaited, heads_of(locks.server, awaited), strict=True)
    rooms = {keys.name for keys, (_, first) in heads if first.task == task}
    return [
        each
        for each in found
        if task in (each.task, *(parts_of(each.name) or ())[:1]) or each.name in rooms
    ]


def require_task(app: Any, task: str | None, found: Collection[Any]) -> None:
    """Nothing was found for a task, or a glob: has the app such a task at all?

    Raises:
        TargetError: it has none. The error names tasks with similar names.
    """
    if found or task is None or any(matches(name, task) for name in (*app.tasks, OUTSIDE)):
        return
    raise TargetError(f"no such task: {one_line(task)}{nearly(task, _names(app))}")


def nothing_called(app: Any, text: str) -> TargetError:
    """The error for a text that names no lock that is held or waited for: the history may know it;
    else with what is called nearly so.

    Raises:
        TargetError: several locks of the history match.
        LockUnavailable: the server did not answer, or does not allow it.
    """
    locks = app_locks(app)
    if past_runs(locks, name=pick_past(locks, text), limit=1):
        return TargetError(f"nobody holds {one_line(text)} or waits for it: the lock is free")
    shown = {_Shown.present(each).telling for each in all_locks(locks, app)}
    near = nearly(text, {*_names(app), *shown})
    return TargetError(f"no such lock: nothing here is called {one_line(text)}{near}")


def _names(app: Any) -> list[str]:
    return [task.name for task in locked_tasks(app)]


def pick_past(locks: AppLocks, text: str) -> str:
    """The name of the lock in the history that a user means: by its name, or by what `history`
    shows of it, as `pick`.

    Raises:
        TargetError: several locks match.
        LockUnavailable: the server did not answer, or does not allow it.
    """
    if past_runs(locks, name=text, limit=1, running=True):
        return text
    runs = past_runs(locks, running=True)
    return _only({run.name for run in runs if _is_shown_as(_Shown.past(run), text)}, text) or text


def _only(names: Collection[str], text: str) -> str | None:
    """The only name, if there is one."""
    if len(names) > 1:
        some = ", ".join(map(one_line, sorted(names)[:3]))
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        raise TargetError(f"{one_line(text)} is not clear: {some}{more}")
    return next(iter(names), None)


class _Shown(NamedTuple):
    """What a table shows of a lock."""

    name: str
    telling: str
    task_id: str | None

    @classmethod
    def present(cls, each: Found) -> _Shown:
        holder = each.holder or Holder()
        return cls(each.name, telling_of(each.name, each.task, holder.label), holder.task_id)

    @classmethod
    def past(cls, run: PastRun) -> _Shown:
        return cls(run.name, telling_of(run.name, run.task or OUTSIDE, run.label), run.task_id)


def _is_shown_as(shown: _Shown, text: str) -> bool:
    if text == shown.telling:
        return True
    beginnings = (digest_of(shown.name), shown.task_id)
    return len(text) >= SHORT and any(known and known.startswith(text) for known in beginnings)
