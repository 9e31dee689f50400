"""The rows of the page: one for each lock, and what changed since the last look."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ..inspection.locks import Found
from .look import Seen

Row = dict[str, Any]

#: Seconds by which the end of a lease may differ between two looks that saw the same lease.
SLACK: Final = 0.3
#: Fields that change with each look. Points in time are sent instead.
RELATIVE: Final = ("held_for", "lives_for", "due_in")


class Change(NamedTuple):
    """What differs between two looks."""

    rows: list[Row]  # that are new or changed
    leases: dict[int, float]  # their new ends by row id, for rows in which nothing else changed
    gone: list[int]  # ids of rows

    def to_dict(self) -> dict[str, Any]:
        """Only the fields that are not empty."""
        return {name: value for name, value in self._asdict().items() if value}


class Present:
    """The rows of the page. `usual_of` tells how many seconds a run that has this slot usually
    takes.
    """

    def __init__(self, usual_of: Callable[[Found], float | None]) -> None:
        self._usual_of = usual_of
        self._rows: dict[str, Row] = {}
        self._ids = itertools.count(1)

    def rows(self) -> list[Row]:
        return list(self._rows.values())

    def update(self, seen: Seen) -> Change:
        change = Change([], {}, [])
        before, self._rows = self._rows, {}
        for each in seen.found:
            old = before.pop(each.key, None)
            new = self._row(each, seen, old)
            self._rows[each.key] = new
            _compare(old, new, change)
        change.gone.extend(row["id"] for row in before.values())
        return change

    def _row(self, slot: Found, seen: Seen, old: Row | None) -> Row:
        plain = {k: v for k, v in slot.to_dict().items() if v is not None and k not in RELATIVE}
        row: Row = {**plain, "id": old["id"] if old else next(self._ids)}
        more = {
            "holder": slot.mark,
            "next": _next(slot, seen, old),
            "usual": self._usual_of(slot),
            "due_at": slot.due_at,
        }
        row.update({name: value for name, value in more.items() if value})
        # What expires after a break is the note who did it: that is no lease.
        if slot.expires_at is not None and slot.is_lock:
            row["expires_at"] = round(slot.expires_at, 3)
            row["lease"] = self._lease(slot, old if old and _same_holder(old, row) else None)
        return row

    def _lease(self, slot: Found, old: Row | None) -> float:
        """The length of the lease from its beginning or last extension, as far as we know."""
        lives = slot.lives_for or 0.0
        # One that nobody extends began with the most that was seen.
        return slot.ttl or max(lives, old["lease"] if old else 0.0)


def _next(slot: Found, seen: Seen, old: Row | None) -> list[dict[str, Any]]:
    """The first tasks that wait. A look rounds "since" to a tenth of a second: keep the first."""
    known = {each["task_id"]: each for each in (old or {}).get("next", ())}
    return [
        {**each, **{k: v for k, v in known.get(each["task_id"], {}).items() if k == "since"}}
        for each in seen.next.get(slot.name, ())
    ]


def _same_holder(old: Row, new: Row) -> bool:
    return (
        "lease" in old and old.get("holder") == new.get("holder") and old["state"] == new["state"]
    )


def _compare(old: Row | None, new: Row, change: Change) -> None:
    """Note how the row has changed. The end of a lease that moved by less than `SLACK` has not."""
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
