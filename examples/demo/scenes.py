"""What the demo plays: which locks there are, and how long each job takes. No code."""

from __future__ import annotations

from typing import Final

#: The job of beat, which is fired more often than it can run.
REPORT: Final = "report"
REPORT_EVERY: Final = 1.0
REPORT_TAKES: Final = 3.0

#: One sync an account at a time; ten callers ask at once.
SYNC: Final = "sync"
ACCOUNTS: Final = (1, 2, 3)
CALLERS: Final = 10
SYNC_TAKES: Final = 1.0
SYNC_DEFERRED_FOR: Final = 0.4

#: The job whose process is killed after a while, with the same job waiting for its turn.
IMPORT: Final = "import"
IMPORT_TAKES: Final = 4.0
KILLED_AFTER: Final = 2.0

#: Seconds for which a dead holder's lock would remain if only its ttl freed it.
LOCK_TTL: Final = 30
#: Seconds within which the next run must start after the kill. Usually it takes a twentieth.
RECOVERY: Final = 2.0

#: With --web: seconds for which jobs go on after the play, and seconds between imports and syncs.
GOES_ON_FOR: Final = 300.0
NEXT_AFTER: Final = 5.0

NODES: Final = ("one", "two")
#: Room for all that can run or wait at once: a report, three syncs, a duplicate or two.
CONCURRENCY: Final = 3


def row_of(task: str, account: int | None = None) -> str:
    """The row of the timeline that a task belongs to. Each lock has one."""
    return task if account is None else f"account {account}"


SYNC_ROWS: Final = tuple(row_of(SYNC, account) for account in ACCOUNTS)
#: Top to bottom.
ROWS: Final = (REPORT, *SYNC_ROWS, IMPORT)
