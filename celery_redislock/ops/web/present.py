"""What the page shows of the present: a row for each lock, and what changed since the last look."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ..survey import Found
from .look import Seen, mark

Row = dict[str, Any]

#: Seconds by which the end of a lease may differ between two looks that saw the same lease.
SLACK: Final = 0.3
#: What changes from look to look, and is sent as points in time.
RELATIVE: Final = ("held_for", "lives_for")


class Change(NamedTuple):
    """What differs between two looks.

    Attributes:
        rows: the rows that are new or changed.
        leases: when the lease ends, for other rows where that changed, by their ids.
        gone: the ids of rows that are gone.
    """

    rows: list[Row]
    leases: dict[int, float]
    gone: list[int]

    def to_dict(self) -> dict[str, Any]:
        """Only the fields that are not empty."""
        return {name: value for name, value in self._asdict().items() if value}


class Present:
    """The rows.

    Args:
        ttl_of: the `lock_ttl` of the task with that name, in seconds; None if it is not known.
    """

    def __init__(self, ttl_of: Callable[[str], float | None]) -> None:
        self._ttl_of = ttl_of
        self._rows: dict[tuple[str, bool], Row] = {}
        self._ids = itertools.count(1)

    def rows(self) -> list[Row]:
        """All rows."""
        return list(self._rows.values())

    def update(self, seen: Seen) -> Change:
        """Take in what was found."""
        change = Change([], {}, [])
        before, self._rows = self._rows, {}
        for each in seen.found:
            place = (each.key, each.is_aside)
            old = before.pop(place, None)
            new = self._row(each, seen, old)
            self._rows[place] = new
            _compare(old, new, change)
        change.gone.extend(row["id"] for row in before.values())
        return change

    def _row(self, found: Found, seen: Seen, old: Row | None) -> Row:
        plain = {k: v for k, v in found.to_dict().items() if v is not None and k not in RELATIVE}
        row: Row = {**plain, "id": old["id"] if old else next(self._ids)}
        row.update(_if_any(holder=mark(found), next=_next(found, seen, old)))
        if found.expires_at is not None and not found.is_aside:
            row["expires_at"] = round(found.expires_at, 3)
            row["ttl"] = self._ttl(found, old if old and _same_holder(old, row) else None)
        return row

    def _ttl(self, found: Found, old: Row | None) -> float:
        """How long the lease is when it has just been extended, as far as we know."""
        known = (found.task and self._ttl_of(found.task)) or 0.0
        lives = found.lives_for or 0.0
        # The most that was seen: it is extended each third of it, and found a little shorter.
        return float(max(known, lives if lives > known else 0.0, old["ttl"] if old else 0.0))


def _next(found: Found, seen: Seen, old: Row | None) -> list[dict[str, Any]]:
    """The first tasks that wait. "since" is known to a tenth of a second only: the first stays."""
    said = {each["task_id"]: each for each in (old or {}).get("next", ())}
    return [
        {**each, **{k: v for k, v in said.get(each["task_id"], {}).items() if k == "since"}}
        for each in seen.next.get(found.name, ())
    ]


def _same_holder(old: Row, new: Row) -> bool:
    return "ttl" in old and old.get("holder") == new.get("holder") and old["state"] == new["state"]


def _if_any(**fields: Any) -> Row:
    return {name: value for name, value in fields.items() if value}


def _compare(old: Row | None, new: Row, change: Change) -> None:
    """Note how the row has changed. A lease whose end moves by less than `SLACK` is the same."""
    if old is None:
        change.rows.append(new)
        return
    was, ends = old.get("expires_at"), new.get("expires_at")
    if was is not None and ends is not None and abs(was - ends) < SLACK:
        new["expires_at"] = was
    if _others(old) != _others(new) or (was is None) is not (ends is None):
        change.rows.append(new)
    elif old != new:
        change.leases[new["id"]] = new["expires_at"]


def _others(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "expires_at"}
