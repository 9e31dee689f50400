"""The runs of the last quarter of an hour, and since when the history has all of them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any, Final

from ..inspection.history import PastRun
from ..inspection.locks import Found
from .look import Seen

#: A run as plain data, as the page gets it.
Run = dict[str, Any]

#: Seconds that are shown.
WINDOW: Final = 900.0
#: How many runs are shown at most: the latest.
MOST: Final = 3000
#: From how many runs on it is known how long those of a lock, and those of a task, usually take;
#: and how many of the last ones tell it.
OF_LOCK, OF_TASK, LAST = 5, 10, 30


class Past:
    """The runs that have ended; each bucket keeps so many."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self.runs: dict[str, Run] = {}
        #: Seconds that a run usually takes, by the name of its lock, and by that of its task.
        self._of_locks: dict[str, float] = {}
        self._of_tasks: dict[str, float] = {}
        #: By bucket and task: since when all runs are kept, where older ones may be gone.
        self._since: dict[tuple[str, str | None], float] = {}
        #: Since when all runs are shown: there may be more than `MOST`.
        self._all_since = float("-inf")

    def remember(self, runs: Sequence[PastRun], now: float) -> None:
        """Take in all runs of the history, the latest first."""
        recent = [run for run in runs if (run.ended or run.began) > now - WINDOW]
        self._all_since = recent[MOST - 1].began if len(recent) > MOST else float("-inf")
        self.runs = {run["id"]: run for run in map(_as_run, recent[:MOST])}
        self._of_locks = dict(_usual(((run.name, run) for run in runs), OF_LOCK))
        self._of_tasks = dict(_usual(((run.holder.task or "", run) for run in runs), OF_TASK))
        self._since = self._known_since(runs)

    def usual(self, slot: Found) -> float | None:
        """How many seconds a run of this lock usually takes, or of its task; None if not known."""
        return self._of_locks.get(slot.name) or self._of_tasks.get(slot.task)

    def _known_since(self, runs: Sequence[PastRun]) -> dict[tuple[str, str | None], float]:
        begins = defaultdict[tuple[str, str | None], list[float]](list)
        for run in runs:
            begins[_bucket(run.key), run.holder.task].append(run.began)
        tasks = defaultdict[str, set[str | None]](set)
        for bucket, task in begins:
            tasks[bucket].add(task)
        # The tasks of a bucket share what it keeps: see taking.lua.
        return {
            (bucket, task): min(of)
            for (bucket, task), of in begins.items()
            if len(of) >= math.ceil(self._kept / len(tasks[bucket]))
        }

    def kept_since(self, seen: Seen) -> dict[str, float]:
        """By the lock's name, since when all its runs are shown, if that is within the window."""
        since = defaultdict[str, float](lambda: self._all_since)
        lists = [(each["name"], each["key"], each.get("task")) for each in self.runs.values()]
        lists += [(each.name, each.key, each.holder and each.holder.task) for each in seen.found]
        for name, key, task in lists:
            kept = self._since.get((_bucket(key), task), float("-inf"))
            since[name] = max(since[name], kept)
        return {name: at for name, at in since.items() if at > seen.now - WINDOW}


def _bucket(key: str) -> str:
    return key.partition("}:")[0]


def _as_run(run: PastRun) -> Run:
    told = {name: value for name, value in run.to_dict().items() if value}
    return {"id": f"{run.fence}:{run.name}", **told}


def _usual(runs: Iterable[tuple[str, PastRun]], fewest: int) -> Iterator[tuple[str, float]]:
    took = defaultdict[str, list[float]](list)
    for of, run in runs:
        if run.took is not None and run.how == "succeeded" and len(took[of]) < LAST:
            took[of].append(run.took)
    yield from ((of, round(median(each), 3)) for of, each in took.items() if len(each) >= fewest)
