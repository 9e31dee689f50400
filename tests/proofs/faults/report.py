"""The figures of a run: a table with a line for each fault, for people and for the documents."""

from __future__ import annotations

import platform
import re
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from typing import Any

import celery
import kombu

from tests.support.servers import redis_server_binary

from .run import Result

Column = tuple[str, Callable[[Sequence[Result]], str]]


def _sum(attribute: str) -> Callable[[Sequence[Result]], str]:
    return lambda results: str(sum(getattr(r.verdict, attribute) for r in results))


def _outcomes(*starts: str) -> Callable[[Sequence[Result]], str]:
    def count(results: Sequence[Result]) -> str:
        return str(
            sum(
                number
                for result in results
                for outcome, number in result.verdict.outcomes.items()
                if outcome.startswith(starts)
            )
        )

    return count


def _all(results: Sequence[Result], attribute: str) -> list[float]:
    return [seconds for result in results for seconds in getattr(result.verdict, attribute)]


def _worst(attribute: str) -> Callable[[Sequence[Result]], str]:
    def worst(results: Sequence[Result]) -> str:
        found = _all(results, attribute)
        return f"{max(found):.2f}" if found else "-"

    return worst


def _median_and_worst(attribute: str) -> Callable[[Sequence[Result]], str]:
    def both(results: Sequence[Result]) -> str:
        found = _all(results, attribute)
        return f"{statistics.median(found):.2f} / {max(found):.2f}" if found else "-"

    return both


COLUMNS: Sequence[Column] = (
    ("cases", lambda results: str(len(results))),
    ("messages", lambda results: str(sum(sum(r.verdict.outcomes.values()) for r in results))),
    ("bodies", _sum("bodies")),
    ("ran", _outcomes("ran", "deferred", "waited", "queued")),
    ("skipped", _outcomes("skipped", "replaced")),
    ("failed", _outcomes("failed", "refused")),
    ("gone", _sum("vanished")),
    ("by transport", _sum("lost_by_transport")),
    ("by us", _sum("lost_by_us")),
    ("parked", _sum("parked")),
    ("forgot", _sum("forgotten")),
    ("again", _sum("again")),
    ("both", _sum("overlaps")),
    ("lost", lambda results: str(len(_all(results, "told")))),
    ("told s", _worst("told")),
    ("child s", _median_and_worst("freed_child")),
    ("worker s", _median_and_worst("freed_worker")),
    ("wrong", lambda results: str(sum(len(r.verdict.violations) + bool(r.error) for r in results))),
)

LEGEND = """\
* ran, skipped, failed: how the messages ended; one that was deferred or waited first counts as ran.
* parked: stays in waiting rooms; forgot: those that ended with the lock server's data.
* gone: messages that Celery lost as it may: most were acknowledged early by a worker that died.
* by transport: messages that the broker's transport lost: kombu's Redis transport takes a message
  from its queue before it notes who has it, and a connection that breaks takes messages along.
* by us: messages that nobody else can have lost. Each is also counted as wrong.
* again: attempts that ran once more after their process died or their lock was lost.
* both: pairs of bodies that had the lock at a time, where the server lost its data.
* lost: holders that lost their lock; told: seconds until they knew, at worst, without the time in
  which they stood still.
* child, worker: seconds from a kill until the lock was free, median / worst.
* wrong: broken promises.
"""


def rows(results: Iterable[Result]) -> list[list[str]]:
    """The table: a heading, a line for each fault, and the sum."""
    by_fault = defaultdict(list)
    for result in results:
        by_fault[result.case.fault].append(result)
    table = [["fault", *(name for name, _ in COLUMNS)]]
    for fault, some in by_fault.items():
        table.append([fault, *(cell(some) for _, cell in COLUMNS)])
    everything = [result for some in by_fault.values() for result in some]
    table.append(["all", *(cell(everything) for _, cell in COLUMNS)])
    return table


def text(results: Iterable[Result]) -> str:
    """The table for a terminal."""
    table = rows(results)
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
    return "\n".join([*lines, "", LEGEND])


def markdown(results: Sequence[Result], seed: int) -> str:
    """The table for a document, with what it was made with."""
    table = rows(results)
    heading, *lines = (f"| {' | '.join(row)} |" for row in table)
    rule = f"|{'---|' + '--:|' * (len(table[0]) - 1)}"
    today = datetime.now(timezone.utc).date().isoformat()
    made = f"`make faults` on {today}, seed {seed}: {versions()}."
    return "\n".join([made, "", heading, rule, *lines, "", LEGEND])


def versions() -> str:
    said = subprocess.run(
        [redis_server_binary(), "--version"], capture_output=True, text=True, check=True
    )
    redis_version = re.search(r"v=(\S+)", said.stdout)
    return (
        f"Python {platform.python_version()}, Celery {celery.__version__},"
        f" kombu {kombu.__version__}, Redis {redis_version.group(1) if redis_version else '?'}"
    )


def as_json(results: Iterable[Result]) -> list[dict[str, Any]]:
    """Everything, for a program."""
    return [
        {
            "case": result.case.id,
            "seed": result.seed,
            "seconds": round(result.seconds, 2),
            "error": result.error,
            "violations": [str(violation) for violation in result.verdict.violations],
            "outcomes": dict(result.verdict.outcomes),
            **{
                name: getattr(result.verdict, name)
                for name in (
                    *("bodies", "overlaps", "losers", "vanished", "crashed", "again", "ignorant"),
                    *("parked", "forgotten", "lost_by_transport", "lost_by_us"),
                    *("told", "freed_child", "freed_worker"),
                )
            },
        }
        for result in results
    ]
