"""Whether tasks lose their locks, or are kept from running, as history and operators tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from ...inspection.history import last_runs, turned_away
from ...inspection.locks import suspensions
from ...protocol.past import LAPSED, LOST, PastRun
from ..table import count_of, suspended
from .checkup import OK, WARNING, Checkup, Finding

#: So many runs in a row that lost their lock, or hours in which only duplicates came, are too many.
IN_A_ROW: Final = 3

_Last: TypeAlias = Mapping[str, Sequence[PastRun]]


def check_runs(checkup: Checkup) -> Iterator[Finding]:
    """Whether the last runs of a task all lost their lock, or it is skipped for hours."""
    last = last_runs(checkup.app, IN_A_ROW)
    findings = [*_losing(last), *_skipped(checkup, last)]
    yield from findings or [Finding(OK, "no task loses its lock, or is skipped, again and again")]


def check_suspended(checkup: Checkup) -> Iterator[Finding]:
    """Whether an operator keeps runs from beginning."""
    found = suspensions(checkup.app)
    for each in found:
        kept = {row.name: row.waiting for row in checkup.survey if row.suspension == each}
        waiting = sum(kept.values())
        yield Finding(
            WARNING,
            f"{suspended(each)}; because of it {count_of(each.ended, 'call')} ended without a run,"
            f" and {waiting} now wait",
            f"`celery redislock resume {each.task or each.lock}` ends it",
        )
    if not found:
        yield Finding(OK, "nothing is suspended")


def _losing(last: _Last) -> Iterator[Finding]:
    for task, runs in sorted(last.items()):
        if len(runs) == IN_A_ROW and not any(map(_is_good, runs)):
            ways = ", ".join(sorted({run.how for run in runs}))
            yield Finding(
                WARNING, f"{task}: none of its last {IN_A_ROW} runs released its lock ({ways})",
                "see the workers' logs for LOST, and whether they were killed; if Redis or the"
                " process is away for longer than lock_ttl, set a longer one",
            )  # fmt: skip


def _skipped(checkup: Checkup, last: _Last) -> Iterator[Finding]:
    patience = {task.name: task.lock_options.warn_after for task in checkup.tasks}
    for task, by_hour in turned_away(checkup.app).items():
        since = _since(last.get(task, ()))
        counts = [count for hour, count in by_hour.items() if hour >= since]
        enough = max(IN_A_ROW, patience.get(task, 0.0) / 3600)
        if task and len(counts) >= enough and not _is_paused(checkup, task):
            yield Finding(
                WARNING,
                f"{task}: {count_of(sum(counts), 'duplicate')} skipped or refused in"
                f" {len(counts)} hours, and no run released its lock meanwhile",
                f"does a run hang? `celery redislock list --task {task}`; see Operations, A task is"
                " skipped for hours",
            )


def _is_paused(checkup: Checkup, task: str) -> bool:
    return any(each.task == task and each.kept_for == "a pause" for each in checkup.survey)


def _is_good(run: PastRun) -> bool:
    return run.how not in (LOST, LAPSED)


def _since(runs: Sequence[PastRun]) -> float:
    """When the last good one of these runs ended; if none is good, when the first of them began."""
    ends = [run.ended for run in runs if _is_good(run) and run.ended is not None]
    return max(ends, default=min((run.began for run in runs), default=0.0))
