"""What operators have suspended, and what has come of that."""

from __future__ import annotations

from collections.abc import Iterator

from ...inspection.suspensions import suspensions
from ..table import count_of, suspended
from .checkup import Checkup
from .finding import OK, WARNING, Finding


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
