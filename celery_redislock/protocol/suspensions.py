"""Suspensions: by one, an operator keeps new runs from a lock, or from all locks of a task.

It is in the list of its bucket, or, if it is of a task, of each bucket, and nowhere else, as
`scripts/suspended.lua` says. Does no I/O.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Final

from .holders import cut, label_text, loaded, one_line, types_of

LONGEST_REASON: Final = 200


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Suspension:
    """A suspension: until it ends, no new run of a task, or under a lock, begins.

    Attributes:
        task: the task that is suspended; None if a lock is.
        lock: the name of the lock that is suspended; None if a task is.
        label: the lock's name for people, or the call that was named; or None.
        by: who suspended it.
        why: the reason; "" if none was given.
        since: when this began, as Unix time by the lock server's clock.
        ends_at: when it ends, likewise.
        ended: how many calls ended without a run because of it, as far as that is counted.
    """

    task: str | None = None
    lock: str | None = None
    label: str | None = None
    by: str = ""
    why: str = ""
    since: float = 0.0
    ends_at: float = 0.0
    ended: int = 0

    @property
    def target(self) -> str:
        """What is suspended, in words: "task shop.sync" or "lock customer:5"."""
        return f"task {self.task}" if self.lock is None else f"lock {self.lock}"

    def keeps(self, task: str, name: str) -> bool:
        """Whether it keeps this task, "" for a `RedisLock`, from the lock with this name."""
        return name == self.lock if self.task is None else task == self.task

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain data, for `from_dict`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Suspension | None:
        """Build a suspension from plain data; None if the data is not ours."""
        fields = {name: data[name] for name in _TYPES if name in data}
        if not all(isinstance(value, _TYPES[name]) for name, value in fields.items()):
            return None
        found = cls(**fields)
        is_of_one = (found.task is None) is not (found.lock is None)
        return found if is_of_one and 0 <= found.since <= found.ends_at < math.inf else None

    def __str__(self) -> str:
        """What, by whom, until when and why, in one line."""
        label = "" if self.label is None else f" ({self.label})"
        ends = datetime.fromtimestamp(self.ends_at, timezone.utc).isoformat(timespec="seconds")
        why = f": {self.why}" if self.why else ""
        return one_line(f"{self.target}{label}, by {self.by} until {ends}{why}")


_TYPES: Final = types_of(Suspension)


def told(what: Suspension) -> str:
    """What people are told of a suspension, as the script stores it. The server sets its times."""
    fields = {
        "task": what.task,
        "lock": what.lock,
        "label": None if what.label is None else label_text(what.label),
        "by": one_line(what.by),
        "why": cut(one_line(what.why), LONGEST_REASON),
    }
    return json.dumps({name: text for name, text in fields.items() if text is not None})


def suspension_in(text: bytes) -> Suspension | None:
    """A suspension as a script tells it; None if the text is none."""
    return _of(loaded(text))


def _of(record: Any) -> Suspension | None:
    if not isinstance(record, dict) or not isinstance(record.get("until"), int | float):
        return None
    return Suspension.from_dict({**record, "ends_at": record["until"] / 1000})


def in_force(texts: Iterable[bytes | None], now: float) -> list[Suspension]:
    """What is suspended by these lists, without what has ended; what ends first comes first."""
    found: dict[str, Suspension] = {}
    for text in texts:
        records = loaded(text or b"{}")
        for each in map(_of, records.values() if isinstance(records, dict) else ()):
            if each is not None and each.ends_at > now:
                before = found.get(each.target)  # each bucket counts for itself
                ended = each.ended + (0 if before is None else before.ended)
                found[each.target] = dataclasses.replace(each, ended=ended)
    return sorted(found.values(), key=lambda each: each.ends_at)


def longest_of(found: Sequence[Suspension], task: str, name: str) -> Suspension | None:
    """What of this keeps the task from the lock for longest; None if nothing does."""
    return next((each for each in reversed(found) if each.keeps(task, name)), None)
