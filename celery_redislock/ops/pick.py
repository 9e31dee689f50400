"""Which locks are meant: by filters, or by what `list` shows of one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from ..app.settings import AppLocks, app_locks
from ..core.holders import one_line
from ..core.keys import lock_keys
from ..tasks.target import Target, TargetError
from .survey import Found, all_locks, one_lock
from .table import SHORT, digest_of, telling


def chosen(
    found: Iterable[Found],
    task: str | None = None,
    node: str | None = None,
    older: float = 0.0,
) -> list[Found]:
    """Those of a task and on a node that match, if they are given, and held for so many seconds."""
    return [
        each
        for each in found
        if (task is None or matches(each.task, task))
        and (node is None or matches((each.holder and each.holder.node) or "", node))
        and (each.held_for or 0.0) >= older
    ]


def matches(name: str, glob: str) -> bool:
    """Whether a name is this one, or matches this glob."""
    return name == glob or fnmatchcase(name, glob)


def pick(app: Any, meant: Target) -> Target:
    """The lock with the name that is meant; or else the only one that `list` shows so: by its
    label, its key without the task, or at least eight characters of its digest or its task's id.

    Raises:
        TargetError: there are several.
        LockUnavailable: the server did not answer, or does not allow it.
    """
    locks, text = app_locks(app), meant.keys.name
    if text in app.tasks or one_lock(locks, text):
        return meant
    names = sorted({each.name for each in all_locks(locks, app) if _is_shown_as(each, text)})
    if len(names) > 1:
        some = ", ".join(map(one_line, names[:3]))
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        raise TargetError(f"{one_line(text)} is not clear: {some}{more}")
    return _target(locks, names) or meant


def _target(locks: AppLocks, names: Sequence[str]) -> Target | None:
    return Target(lock_keys(locks.prefix, names[0])) if names else None


def _is_shown_as(each: Found, text: str) -> bool:
    if text == telling(each):
        return True
    beginnings = (digest_of(each.name), each.holder and each.holder.task_id)
    return len(text) >= SHORT and any(known and known.startswith(text) for known in beginnings)
