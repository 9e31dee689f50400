"""The rows of the page: one for each slot of a lock, and for each run without its lock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ..inspection.locks import Found
from .look import Seen

Row = dict[str, Any]

#: Seconds by which the end of a lease may differ between two looks that saw the same lease.
SLACK: Final = 0.3
#: Fields that change with each look. Points in time are sent instead.
RELATIVE: Final = ("held_for", "lives_for", "due_in")


def rows_of(
    seen: Seen, usual_of: Callable[[Found], float | None], before: Mapping[str, Row]
) -> dict[str, Row]:
    """The rows by key; `usual_of` tells how long runs usually take, `before` are the last rows."""
    return {
        each.key: _row(each, seen, usual_of(each), before.get(each.key, {})) for each in seen.found
    }


def _row(slot: Found, seen: Seen, usual: float | None, before: Row) -> Row:
    row: Row = {k: v for k, v in slot.to_dict().items() if v is not None and k not in RELATIVE}
    more = {
        "holder": slot.mark,
        "next": seen.next.get(slot.name),
        "usual": usual,
        "due_at": slot.due_at,
    }
    row.update({name: value for name, value in more.items() if value})
    # What expires after a break is the note who did it: that is no lease.
    if slot.expires_at is not None and slot.is_lock:
        ends, was = round(slot.expires_at, 3), before.get("expires_at")
        row["expires_at"] = ends if was is None or abs(was - ends) > SLACK else was
    return row
