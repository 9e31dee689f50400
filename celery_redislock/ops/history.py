"""The past: the last runs of the locks, and the duplicates that were turned away."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from ..app.settings import AppLocks
from ..protocol import past
from ..protocol.holders import cut
from ..protocol.keys import lock_keys
from ..protocol.past import Past
from ..servers.history import History

#: What a `RedisLock` is called instead of a task.
OUTSIDE: Final = "RedisLock"
#: Hours for which duplicates that were turned away are counted.
HOURS: Final = 48


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PastRun:
    """A run that had a lock.

    Attributes:
        key: the lock's whole key.
        name: the lock's name.
        task: the task's name, or None for a `RedisLock`.
        task_id: the task's id.
        attempt: the task's `retries`.
        node: the worker's node name, or the host's name.
        pid: the process.
        fence: the fencing token of its acquisition.
        label: what the task's `lock_label` made of the call, or None.
        began: when it took the lock: Unix time by the lock server's clock.
        ended: when it released it; None if it runs, or if that is not known, since it lapsed.
        how: "succeeded", "failed", "retried", "ignored", "rejected", "replaced" (by a newer run),
            "lost" (it owned the lock no more), "broken" (by an operator), "died" (its process),
            "terminated" (the worker ended its process), "not run" (it had the lock, but its body
            did not run), "released" (a `RedisLock`), "lapsed" (nobody released it: its worker
            died or was cut off), or "running".
        turned_away: how many duplicates ended without a run because of it.
    """

    key: str
    name: str
    task: str | None
    task_id: str | None
    attempt: int
    node: str | None
    pid: int | None
    fence: int
    label: str | None
    began: float
    ended: float | None
    how: str
    turned_away: int

    @property
    def took(self) -> float | None:
        """Seconds for which it had the lock, or None if that is not known."""
        return None if self.ended is None else self.ended - self.began

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self)


def past_runs(
    locks: AppLocks,
    *,
    task: str | None = None,
    name: str | None = None,
    since: float | None = None,
    limit: int | None = None,
    running: bool = False,
) -> list[PastRun]:
    """The runs that are kept, in the order of their beginnings, the latest first.

    Args:
        locks: the app's locks.
        task: only of this task, or of tasks that match this glob; "RedisLock" for locks outside
            tasks.
        name: only of the lock with this name.
        since: only those that ended later than this Unix time, or began later.
        limit: at most so many.
        running: also those that still have their lock.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    server, prefix = locks.server, locks.prefix
    name = name and lock_keys(prefix, name).name
    lists = [
        (bucket, each)
        for bucket, tasks in History(server).tasks(prefix, name).items()
        for each in tasks
        if task is None or _matches(each or OUTSIDE, task)
    ]
    most = limit if name is None and since is None else None
    runs, alive = _read(History(server), prefix, lists, most)
    found = (_past_run(prefix, run, alive) for run in runs)
    wanted = sorted(_filtered(found, name, since, running), key=lambda run: -run.began)
    return wanted[:limit]


def _read(
    history: History, prefix: str, lists: list[tuple[str, str]], most: int | None
) -> tuple[list[Past], dict[int, int]]:
    """The runs in these lists. And those that have their locks: see `History.running`."""
    runs = list(history.runs(lists, most))
    alive = history.running(prefix, [run for run in runs if run.how is None])
    doubtful = [run for run in runs if run.how is None and run.fence not in alive]
    # They lapsed, or ended after they were read: a run's lock is released as its end is recorded.
    where = {(lock_keys(prefix, _name(run.lock_id)).history, run.holder.task) for run in doubtful}
    again = [(bucket, task) for bucket, task in lists if (bucket, task or None) in where]
    now = {run.fence: run for run in history.runs(again)}
    return [now.get(run.fence, run) for run in runs], alive


def _name(lock_id: str) -> str:
    """The name of the lock with this id."""
    return re.sub(r"^\d+\|", "", lock_id)


def _matches(task: str, pattern: str) -> bool:
    return task == pattern or fnmatchcase(task, pattern)


def _filtered(
    runs: Iterable[PastRun], name: str | None, since: float | None, running: bool
) -> Iterator[PastRun]:
    for run in runs:
        is_wanted = name is None or run.name == name
        is_wanted = is_wanted and (running or run.how != past.RUNNING)
        if is_wanted and (since is None or (run.ended or run.began) >= since):
            yield run


def _past_run(prefix: str, run: Past, alive: Mapping[int, int]) -> PastRun:
    keys = lock_keys(prefix, _name(run.lock_id))
    holder = run.holder
    return PastRun(
        key=keys.lock,
        name=keys.name,
        task=holder.task,
        task_id=holder.task_id,
        attempt=holder.attempt,
        node=holder.node,
        pid=holder.pid,
        fence=run.fence,
        label=holder.label,
        began=run.began,
        ended=None if run.took is None else run.began + run.took,
        how=run.how or (past.RUNNING if run.fence in alive else past.LAPSED),
        turned_away=run.turned_away or alive.get(run.fence, 0),
    )


def turned_away(locks: AppLocks, *, task: str | None = None) -> dict[str, dict[int, int]]:
    """How many duplicates were turned away in each of the last 48 hours, by their task.

    Args:
        locks: the app's locks.
        task: only of this task, or of tasks that match this glob.

    Returns:
        For each task, the count by the hour's beginning as a Unix time; hours without any are left
        out.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    first = time.time() - HOURS * 3600
    return {
        cut(each): kept
        for each, hours in sorted(History(locks.server).turned_away(locks.prefix).items())
        if (task is None or _matches(each, task))
        and (kept := {hour: count for hour, count in sorted(hours.items()) if hour > first})
    }
