"""Counts what happened to all locks in the last quarter of an hour, however many these are; and how
long the tasks' runs usually take.
"""

from __future__ import annotations

from collections import Counter, deque
from statistics import median
from typing import Final

#: Seconds that are counted, and those that are forgotten together.
WINDOW: Final = 900.0
STEP: Final = 60.0
#: Of how many locks. What happens to further ones is counted without their names.
NAMES: Final = 20_000

#: Of how many tasks it is known how long they usually take, and from how many runs.
TASKS: Final = 1_000
FEWEST, RUNS = 3, 30

#: What is counted: calls that were skipped or refused, and runs that lost their lock.
AWAY: Final = "away"
LOST: Final = "lost"


class _ByName:
    """Counts by what happened and the lock's name."""

    def __init__(self) -> None:
        self.by_name: Counter[tuple[str, str]] = Counter()
        self._steps: deque[tuple[float, Counter[tuple[str, str]]]] = deque()

    def add(self, what: str, name: str, at: float, count: int) -> None:
        place = (what, name if (what, name) in self.by_name or len(self.by_name) < NAMES else "")
        # What comes late is forgotten late: steps are in order.
        if not self._steps or at >= self._steps[-1][0] + STEP:
            self._steps.append((at, Counter()))
        self._steps[-1][1][place] += count
        self.by_name[place] += count

    def prune(self, before: float) -> None:
        while self._steps and self._steps[0][0] < before:
            for place, count in self._steps.popleft()[1].items():
                self.by_name[place] -= count
                if not self.by_name[place]:
                    del self.by_name[place]


class Counts:
    """The counts. Events tell of each; the locks and the history tell it of each run, also where no
    worker sends events. The larger of the two is right: an event may be lost, the history forgets.
    """

    def __init__(self) -> None:
        self._told, self._kept = _ByName(), _ByName()
        #: What has been counted of each run of the history, and when it ended.
        self._of_runs: dict[tuple[str, int], tuple[float, int, bool]] = {}

    def tell(self, what: str, name: str, at: float) -> None:
        """An event told this of a lock."""
        self._told.add(what, name, at, 1)

    def keep(self, name: str, fence: int, at: float, away: int, lost: bool) -> None:
        """The history tells how many were skipped or refused because of this run, and whether it
        lost its lock.
        """
        _, counted, was_lost = self._of_runs.get((name, fence), (at, 0, False))
        if away > counted:
            self._kept.add(AWAY, name, at, away - counted)
        if lost and not was_lost:
            self._kept.add(LOST, name, at, 1)
        if away or lost:
            self._of_runs[name, fence] = (at, max(away, counted), lost or was_lost)

    def see(self, name: str, fence: int, at: float, away: int, began: float) -> None:
        """A look saw how many were skipped or refused because of this run so far. Of one that is
        older than what is counted, nobody knows when: those that come from now on count.
        """
        if began < at - WINDOW:
            self._of_runs.setdefault((name, fence), (at, away, False))
        self.keep(name, fence, at, away, False)

    def away(self, name: str) -> int:
        """How many calls of this lock were skipped or refused."""
        return self._of((AWAY, name))

    def totals(self) -> dict[str, int]:
        """How often each has happened, to all locks together."""
        totals = {AWAY: 0, LOST: 0}
        for place in self._told.by_name.keys() | self._kept.by_name.keys():
            totals[place[0]] += self._of(place)
        return totals

    def _of(self, place: tuple[str, str]) -> int:
        return max(self._told.by_name[place], self._kept.by_name[place])

    def prune(self, now: float) -> None:
        before = now - WINDOW
        for counts in (self._told, self._kept):
            counts.prune(before)
        old = [run for run, (at, *_) in self._of_runs.items() if at < before - STEP]
        for run in old:
            del self._of_runs[run]


class Usual:
    """How long the runs of each task take: the median of the last ones that succeeded."""

    def __init__(self) -> None:
        self._took: dict[str, deque[float]] = {}
        self._medians: dict[str, float] = {}

    def add(self, task: str, took: float) -> None:
        if task not in self._took and len(self._took) >= TASKS:
            return
        last = self._took.setdefault(task, deque(maxlen=RUNS))
        last.append(took)
        if len(last) >= FEWEST:
            self._medians[task] = round(median(last), 3)

    def of_tasks(self) -> dict[str, float]:
        """Seconds, by the tasks' names; without tasks that have too few known runs."""
        return dict(self._medians)
