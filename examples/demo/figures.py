"""The figures at the end of the demo, and whether they hold. Pure."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

from . import scenes
from .history import History, Run

#: The scenes: which rows they are about, and their names in the summary.
SCENES: Final = {
    "beat": ((scenes.REPORT,), "report, fired by beat"),
    "callers": (scenes.SYNC_ROWS, f"sync, {scenes.CALLERS} callers"),
    "kill": ((scenes.IMPORT,), "import, one killed"),
}
#: With fewer firings and runs the scene of beat shows nothing.
_MIN_FIRED: Final = 6
_MIN_RAN: Final = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tally:
    """One scene in figures.

    Attributes:
        fired: tasks that were sent.
        ran: bodies that ended.
        skipped: duplicates that ended without running.
        deferred: how often duplicates were put off; each of them still runs.
        interrupted: runs whose process was killed.
        overlapping: runs that started while another run under the same lock was going on.
    """

    fired: int
    ran: int
    skipped: int
    deferred: int
    interrupted: int
    overlapping: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figures:
    """The demo's result.

    Attributes:
        scenes: the tally of each scene.
        recovered_ms: milliseconds from the kill to the start of the next run under the same
            lock, or None if there was none.
        problems: which figures do not hold, in words. Empty if all do.
    """

    scenes: dict[str, Tally]
    recovered_ms: float | None
    problems: list[str]

    @property
    def total(self) -> Tally:
        """All scenes together."""
        names = [field.name for field in dataclasses.fields(Tally)]
        tallies = self.scenes.values()
        return Tally(**{name: sum(getattr(tally, name) for tally in tallies) for name in names})

    def to_dict(self) -> dict[str, Any]:
        """For machines."""
        return {
            "ok": not self.problems,
            "problems": self.problems,
            **dataclasses.asdict(self.total),
            "recovered_ms": self.recovered_ms,
            "scenes": {name: dataclasses.asdict(tally) for name, tally in self.scenes.items()},
        }


def figures_of(history: History, problems: Sequence[str] = ()) -> Figures:
    """Count what happened, and check it.

    Args:
        history: what happened.
        problems: what else went wrong.
    """
    tallies = {name: _tally(history, rows) for name, (rows, _) in SCENES.items()}
    recovered = _recovered(history)
    return Figures(
        scenes=tallies,
        recovered_ms=None if recovered is None else round(recovered * 1000, 1),
        problems=[*problems, *_broken(history, tallies, recovered)],
    )


def overlapping(runs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Runs that started before an earlier one under the same lock was over, each with that one."""
    found = []
    latest: Run | None = None
    for run in sorted(runs, key=lambda run: run.start):
        if latest is not None and run.start < latest.until:
            found.append((latest, run))
        if latest is None or run.until > latest.until:
            latest = run
    return found


def _tally(history: History, rows: tuple[str, ...]) -> Tally:
    return Tally(
        fired=len(history.fired(*rows)),
        ran=len(history.ended(*rows)),
        skipped=len(history.duplicates("skipped", *rows)),
        deferred=len(history.duplicates("deferred", *rows)),
        interrupted=len(history.killed(*rows)),
        overlapping=sum(len(overlapping(history.runs_of(row))) for row in rows),
    )


def _recovered(history: History) -> float | None:
    """Seconds from the kill to the next start."""
    for killed in history.killed(scenes.IMPORT):
        for run in history.runs_of(scenes.IMPORT):
            if killed.killed is not None and run is not killed and run.start >= killed.killed:
                return run.start - killed.killed
    return None


# -- what must hold ---------------------------------------------------------------------------


def _broken(history: History, tallies: dict[str, Tally], recovered: float | None) -> Iterator[str]:
    for name, (rows, label) in SCENES.items():
        for problem in (*_fates(history, rows), *_disorder(history, rows)):
            yield f"{label}: {problem}"
        if tallies[name].overlapping:
            yield f"{label}: {tallies[name].overlapping} runs overlap another one"
    yield from _of_beat(tallies["beat"])
    yield from _of_callers(tallies["callers"])
    yield from _of_kill(tallies["kill"], recovered)
    for event in history.lost:
        yield f"{history.row_of(event)}: a run lost its lock"
    for event in history.disowned:
        yield f"{history.row_of(event)}: a run released a lock that was not its own any more"


def _fates(history: History, rows: tuple[str, ...]) -> Iterator[str]:
    """Every task that was fired must have run, or been skipped or killed, exactly once."""
    fates = Counter(run.task_id for run in history.runs_of(*rows))
    fates.update(event.task_id for event in history.duplicates("skipped", *rows))
    fired = set(history.fired(*rows))
    if lost := fired - fates.keys():
        yield f"{len(lost)} of {len(fired)} tasks neither ran nor were skipped"
    if twice := [task_id for task_id, times in fates.items() if times > 1]:
        yield f"{len(twice)} tasks ran or were skipped more than once"
    if unknown := fates.keys() - fired:
        yield f"{len(unknown)} tasks ran or were skipped that nobody fired"
    if going_on := [row for row in rows if history.running(row)]:
        yield f"still running at the end: {', '.join(going_on)}"


def _disorder(history: History, rows: tuple[str, ...]) -> Iterator[str]:
    """What the lock reports must agree with what the bodies wrote down."""
    for row in rows:
        fences = [run.fence for run in history.runs_of(row)]
        if any(later <= earlier for earlier, later in pairwise(fences)):
            yield f"the fences of {row} do not rise from run to run"
    runs = Counter(run.task_id for run in history.runs_of(*rows))
    if any(history.acquisitions[task_id] != times for task_id, times in runs.items()):
        yield "the lock was not taken once for each run"


def _of_beat(tally: Tally) -> Iterator[str]:
    if tally.fired < _MIN_FIRED or tally.ran < _MIN_RAN:
        yield f"beat: only {tally.fired} firings and {tally.ran} runs; at least 6 and 2 are due"
    if tally.fired != tally.ran + tally.skipped:
        yield f"beat: {tally.fired} fired, but {tally.ran} ran and {tally.skipped} were skipped"
    if tally.skipped < tally.ran:
        yield f"beat: {tally.skipped} skipped and {tally.ran} ran; two of three are to be skipped"


def _of_callers(tally: Tally) -> Iterator[str]:
    if (tally.fired, tally.ran) != (scenes.CALLERS, scenes.CALLERS):
        yield f"callers: {tally.fired} asked and {tally.ran} ran; {scenes.CALLERS} are due"
    if not tally.deferred:
        yield "callers: none was deferred, although they asked at once"


def _of_kill(tally: Tally, recovered: float | None) -> Iterator[str]:
    if (tally.interrupted, tally.ran) != (1, 1):
        yield f"kill: {tally.interrupted} run interrupted and {tally.ran} completed; 1 and 1 due"
    if recovered is None:
        yield "kill: no run started after it"
    elif recovered >= scenes.RECOVERY:
        yield f"kill: the next run started after {recovered:.1f} s; {scenes.RECOVERY:g} s are due"


# -- the table --------------------------------------------------------------------------------


def table_of(figures: Figures) -> list[str]:
    """The summary as aligned lines that fit a narrow terminal; the first is the head."""
    heads = [SCENES[name][1].partition(",")[0] for name in figures.scenes]
    columns = [dataclasses.asdict(tally) for tally in (*figures.scenes.values(), figures.total)]
    return [
        _line("", [*heads, "all"]),
        *(_line(name, [column[name] for column in columns]) for name in columns[0]),
    ]


def _line(label: str, cells: Sequence[object]) -> str:
    return f"{label:12}" + "".join(f"{cell!s:>8}" for cell in cells)


def verdict_of(figures: Figures) -> list[str]:
    """The table's result, in words."""
    took, broken = figures.recovered_ms, len(figures.problems)
    recovered = "nothing ran after the kill"
    if took is not None:
        recovered = f"recovered after the kill in {took:.0f} ms (lock_ttl: {scenes.LOCK_TTL} s)"
    return [
        recovered,
        f"overlapping runs: {figures.total.overlapping}",
        f"figures that do not hold: {broken}" if broken else "all figures hold",
    ]
