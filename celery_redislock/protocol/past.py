"""The texts of the history, which `scripts/history.lua` writes. Does no I/O."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from .holders import Holder, read
from .keys import name_of_lock_id

#: How a run ended, as the history records it.
SUCCEEDED: Final = "succeeded"
FAILED: Final = "failed"
RETRIED: Final = "retried"
IGNORED: Final = "ignored"
REJECTED: Final = "rejected"
REPLACED: Final = "replaced"
#: The run no longer had the lock, and may have overlapped with another run.
LOST: Final = "lost"
#: An operator took the lock away.
BROKEN: Final = "broken"
#: The run's process died, and the worker released the lock; or (`TERMINATED`) the worker itself
#: ended that process, for a time limit or a revoked task.
DIED: Final = "died"
TERMINATED: Final = "terminated"
#: The lock was taken, and the body was never entered.
NOT_RUN: Final = "not run"
#: A `RedisLock` was released; it does not know how the work ended.
RELEASED: Final = "released"
#: How we show runs without a recorded end: the run still has the lock, or nobody released it.
RUNNING: Final = "running"
LAPSED: Final = "lapsed"
#: All of these.
ENDS: Final = (
    *(SUCCEEDED, FAILED, RETRIED, IGNORED, REJECTED, REPLACED, LOST, BROKEN, DIED, TERMINATED),
    *(NOT_RUN, RELEASED, RUNNING, LAPSED),
)

#: If a run has two recorded ends, the one with the lower number is right: a release that is sent
#: twice finds the lock gone the second time. All other ends have 1.
_IN_DOUBT: Final = {LOST: 2, BROKEN: 0}

#: Elements of the list per run: a value, a lock's id, and an end.
RECORDS: Final = 3

#: Patterns, compiled when first used: only commands that show the history need them. Longer numbers
#: are not ours: Python refuses to read some, and no clock can show others.
_NUMBER: Final = r"(\d{1,16})"
_END: Final = rf"{_NUMBER}\|{_NUMBER}\|([^|]*)(?:\|{_NUMBER})?"
_HOUR: Final = rf"(?<!\d)(\d{{1,9}}):{_NUMBER};"
_TURNED_AWAY: Final = rf',"turned_away":{_NUMBER}\b'


class PastRun(NamedTuple):
    """A run that had a lock."""

    lock_id: str  # see `keys`
    holder: Holder  # as the lock's value says
    fence: int  # of its acquisition
    began: float  # when it took the lock: Unix time by the lock server's clock
    took: float | None = None  # seconds until it released the lock; None while it runs, or unknown
    how: str = ""  # one of `ENDS`, or `RUNNING`; "" if no end is recorded
    turned_away: int = 0  # how many duplicates ended without a run because of it
    token: str = ""  # of its acquisition
    key: str = ""  # the lock's, once the prefix is known

    @property
    def name(self) -> str:
        """The lock's name."""
        return name_of_lock_id(self.lock_id)

    @property
    def ended(self) -> float | None:
        """When it released the lock; None while it runs, or if that is not known."""
        return None if self.took is None else self.began + self.took

    def to_dict(self) -> dict[str, Any]:
        of_holder = ("task", "task_id", "attempt", "node", "pid", "label")
        own = ("key", "name", "fence", "began", "ended", "how", "turned_away")
        told = {name: getattr(self.holder, name) for name in of_holder}
        return told | {name: getattr(self, name) for name in own}


class _End(NamedTuple):
    took: float
    how: str
    turned_away: int


def end_text(fence: int, took: float, how: str) -> str:
    """The end of a run in the history. A caller that lacks the fence sends only `how`."""
    return f"{fence}|{int(took * 1000)}|{how}"


def runs_in(records: Iterable[bytes]) -> list[PastRun]:
    """The runs in these records that are ours; a quorum's run ends by its highest fence."""
    begins: list[PastRun] = []
    ends: dict[int, _End] = {}
    texts = [each.decode(errors="replace") for each in records]
    for text, following in itertools.zip_longest(texts, texts[1:], fillvalue=""):
        if text.startswith("{"):
            begins += _begin(text, following)
        elif match := re.fullmatch(_END, text):
            fence, ms, how, count = match.groups()
            end = _End(int(ms) / 1000, how, int(count or 0))
            ends[int(fence)] = _surer(end, ends.get(int(fence)))
    runs: dict[str, PastRun] = {}
    for run in begins:
        told = run._replace(**ends[run.fence]._asdict()) if run.fence in ends else run
        known = runs.get(run.token, told)
        runs[run.token] = max(known, told, key=lambda each: (each.how != "", each.fence))
    return [*runs.values()]


def _begin(value: str, lock_id: str) -> list[PastRun]:
    record, holder = read(value.encode(), None)
    if record is None or holder is None or holder.fence is None or holder.acquired_at is None:
        return []
    return [PastRun(lock_id, holder, holder.fence, holder.acquired_at, token=record["token"])]


def _surer(one: _End, other: _End | None) -> _End:
    if other is None:
        return one
    first = min(one, other, key=lambda end: _IN_DOUBT.get(end.how, 1))
    return first._replace(turned_away=max(one.turned_away, other.turned_away))


def turned_away_by(value: bytes) -> int:
    """How many duplicates the run with this lock's value has skipped or refused."""
    count = re.search(_TURNED_AWAY, value.decode(errors="replace"))
    return int(count[1]) if count else 0


def last_success(records: Iterable[bytes]) -> float | None:
    """Unix time of the last success in these records, by the fence, the time of an acquisition."""
    ends = (re.fullmatch(_END, each.decode(errors="replace")) for each in records)
    return max(
        (int(end[1]) / 1e6 + int(end[2]) / 1e3 for end in ends if end and end[3] == SUCCEEDED),
        default=None,
    )


def per_hour(text: bytes) -> dict[int, int]:
    """How many duplicates were turned away in each whole hour, by the hour's Unix time."""
    hours = re.findall(_HOUR, text.decode(errors="replace"))
    return {int(hour) * 3600: int(count) for hour, count in hours}
