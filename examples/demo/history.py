"""What the events amount to: which runs there were, and what became of every task. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterable

from .events import Event


@dataclasses.dataclass(kw_only=True)
class Run:
    """One run of a body, as the body itself wrote it down.

    Attributes:
        end: when it ended; None while it runs, and if it was killed.
        killed: when its process was killed, or None.
    """

    row: str
    task_id: str
    node: str
    pid: int
    fence: int
    start: float
    end: float | None = None
    killed: float | None = None

    @property
    def until(self) -> float:
        """When it was over; infinity while it runs."""
        if self.end is not None:
            return self.end
        return math.inf if self.killed is None else self.killed


class History:
    """All that has happened so far. Events may come in any order of processes."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.ready: set[str] = set()
        self.runs: list[Run] = []
        self._conflicts: list[Event] = []
        self.lost: list[Event] = []
        self.acquisitions: Counter[str] = Counter()
        self.releases: Counter[str] = Counter()
        #: Releases of locks that were not theirs any more.
        self.disowned: list[Event] = []
        self._fired: dict[str, list[str]] = defaultdict(list)
        self._arrivals: list[Event] = []
        self._rows: dict[str, str] = {}
        for event in events:
            self.add(event)

    def add(self, event: Event) -> None:
        """Take note of an event."""
        if event.row:
            self._rows[event.task_id] = event.row
        if event.kind == "ready":
            self.ready.add(event.node)
        elif event.kind == "fired":
            self._fired[event.row].append(event.task_id)
        elif event.kind == "arrived":
            self._arrivals.append(event)
        elif event.kind == "start":
            self._start(event)
        elif event.kind in ("end", "killed"):
            self._end(event)
        elif event.kind == "acquired":
            self.acquisitions[event.task_id] += 1
        elif event.kind == "released":
            self.releases[event.task_id] += 1
            self.disowned += [] if event.data["owned"] else [event]
        elif event.kind == "conflict":
            self._conflicts.append(event)
        elif event.kind == "lost":
            self.lost.append(event)

    def _start(self, event: Event) -> None:
        self.runs.append(
            Run(
                row=event.row,
                task_id=event.task_id,
                node=event.node,
                pid=event.pid,
                fence=event.data["fence"],
                start=event.at,
            )
        )

    def _end(self, event: Event) -> None:
        for run in self.runs:
            if (run.task_id, run.pid, run.until) == (event.task_id, event.pid, math.inf):
                if event.kind == "end":
                    run.end = event.at
                else:
                    run.killed = event.at

    # -- questions ------------------------------------------------------------------------

    def row_of(self, event: Event) -> str:
        """The lock that an event is about; "" if nobody has said it yet."""
        return event.row or self._rows.get(event.task_id, "")

    def fired(self, *rows: str) -> list[str]:
        """The ids of the tasks that were sent."""
        return [task_id for row in rows for task_id in self._fired[row]]

    def runs_of(self, *rows: str) -> list[Run]:
        """The runs under these locks, in the order of their starts."""
        return sorted((run for run in self.runs if run.row in rows), key=lambda run: run.start)

    def ended(self, *rows: str) -> list[Run]:
        """The runs that ended by themselves."""
        return [run for run in self.runs_of(*rows) if run.end is not None]

    def killed(self, *rows: str) -> list[Run]:
        """The runs whose process was killed."""
        return [run for run in self.runs_of(*rows) if run.killed is not None]

    def running(self, row: str) -> Run | None:
        """The run that has started and not ended."""
        return next((run for run in self.runs_of(row) if run.until == math.inf), None)

    def duplicates(self, outcome: str, *rows: str) -> list[Event]:
        """The conflicts with this outcome. One task may have been deferred many times."""
        return [
            event
            for event in self._conflicts
            if self.row_of(event) in rows and event.data["outcome"] == outcome
        ]

    def waits(self, row: str) -> list[tuple[float, float | None]]:
        """From when to when tasks waited for this lock: from the arrival to the start."""
        starts = {run.task_id: run.start for run in self.runs_of(row)}
        arrivals = [event for event in self._arrivals if event.row == row]
        return [(event.at, starts.get(event.task_id)) for event in arrivals]
