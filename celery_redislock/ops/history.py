"""The past: the last runs of the locks, and the duplicates that were turned away."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from ..app.settings import AppLocks
from ..protocol import past
from ..protocol.holders import cut
from ..protocol.keys import lock_keys
from ..protocol.past import Past
from ..servers.history import AT_ONCE, History
from ..servers.looking import Looking
from ..servers.server import Server

#: What `list` and `history` show as the task of a `RedisLock`.
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
        began: when the run took the lock: Unix time by the lock server's clock.
        ended: when the run released the lock; None while it runs, or if the lock lapsed.
        how: "succeeded", "failed", "retried", "ignored", "rejected", "replaced" (by a newer run),
            "lost" (it owned the lock no more; it may go on), "broken" (by an operator), "died" (its
            process did),
            "terminated" (the worker ended its process), "not run" (the run had the lock, but no
            body ran), "released" (a `RedisLock`), "lapsed" (nobody released it: its worker
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
        """Seconds for which the run had the lock; None if `ended` is None."""
        return None if self.ended is None else self.ended - self.began

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def past_runs(
    locks: AppLocks,
    *,
    task: str | None = None,
    name: str | None = None,
    since: float | None = None,
    ended: Collection[str] = (),
    limit: int | None = None,
    running: bool = False,
) -> list[PastRun]:
    """The runs in the history, sorted by when they began, the latest first.

    Args:
        locks: the app's locks.
        task: only runs of this task, or of tasks that match this glob; "RedisLock" for locks
            outside tasks.
        name: only runs of the lock with this name.
        since: only runs that ended later than this Unix time, or began later.
        ended: only runs that ended in one of these ways, see `PastRun.how`; empty for all.
        limit: how many runs at most.
        running: also the runs that still have their lock.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    server, prefix = locks.server, locks.prefix
    name = name and lock_keys(prefix, name).name
    lists = [
        (bucket, each)
        for bucket, tasks in History(server).tasks(prefix, name).items()
        for each in tasks
        if task is None or matches(each or OUTSIDE, task)
    ]
    most = None if name or since is not None or ended else limit
    runs, alive = _read(server, prefix, lists, most)
    wanted = [
        run
        for run in (_past_run(prefix, each, alive) for each in runs)
        if (name is None or run.name == name)
        and (running or run.how != past.RUNNING)
        and (since is None or (run.ended or run.began) >= since)
        and (not ended or run.how in ended)
    ]
    return sorted(wanted, key=lambda run: -run.began)[:limit]


def _read(
    server: Server, prefix: str, lists: list[tuple[str, str]], most: int | None
) -> tuple[list[Past], dict[int, int]]:
    """The runs in these lists, and which of them still have their lock: see `History.running`."""
    history = History(server)
    runs = list(history.runs(lists, most))
    alive = history.running(prefix, [run for run in runs if run.how is None])
    doubtful = [run for run in runs if run.how is None and run.fence not in alive]
    going_on = _going_on(server, prefix, doubtful)
    # Read these again: each lapsed, or ended since (one script records the end and releases).
    where = {(lock_keys(prefix, _name(run.lock_id)).history, run.holder.task) for run in doubtful}
    again = [(bucket, task) for bucket, task in lists if (bucket, task or None) in where]
    now = {run.token: run for run in history.runs(again)}
    runs = [now.get(run.token, run) for run in runs]
    is_lost = [run.how is None and run.fence in going_on for run in runs]
    return [
        run._replace(how=past.LOST) if lost else run
        for run, lost in zip(runs, is_lost, strict=True)
    ], alive


def _going_on(server: Server, prefix: str, runs: list[Past]) -> set[int | None]:
    """The fences of the runs of these locks that go on without their locks."""
    keys = sorted({lock_keys(prefix, _name(run.lock_id)).lost for run in runs})
    found: set[int | None] = set()
    for first in range(0, len(keys), AT_ONCE):
        _, marks = Looking(server).lost(keys[first : first + AT_ONCE])
        found.update(each.holder.fence for lost in marks for each in lost)
    return found


def _name(lock_id: str) -> str:
    """The name of the lock with this id."""
    return re.sub(r"^\d+\|", "", lock_id)


def matches(name: str, glob: str) -> bool:
    """Whether the name equals this text, or matches it as a glob."""
    return name == glob or fnmatchcase(name, glob)


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
    """How many duplicates were turned away in each of the last 48 hours, by task.

    Args:
        locks: the app's locks.
        task: only of this task, or of tasks that match this glob.

    Returns:
        For each task, the count by the hour's beginning as a Unix time, without empty hours.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    first = time.time() - HOURS * 3600
    return {
        cut(each): kept
        for each, hours in sorted(History(locks.server).turned_away(locks.prefix).items())
        if (task is None or matches(each, task))
        and (kept := {hour: count for hour, count in sorted(hours.items()) if hour > first})
    }
