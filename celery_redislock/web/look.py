"""One look at the lock server, for all viewers: its locks, the next tasks, and its clock; and the
rows of the page, one for each slot of a lock, and for each run without its lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ..inspection.about import server_time
from ..inspection.history import PastRun, history, turned_away
from ..inspection.locks import Found, lock, snapshot, suspensions
from ..inspection.rooms import Waiting, waiting

#: How many rows name waiting tasks: those of the locks with the most of them.
NAMED_ROOMS: Final = 20
#: How many waiting tasks such a row names.
NAMED_WAITERS: Final = 3
#: Seconds for which skips are counted together.
HOUR: Final = 3600


#: Seconds by which the end of a lease may differ between two looks that saw the same lease.
SLACK: Final = 0.3
#: Fields that change with each look. Points in time are sent instead.
RELATIVE: Final = ("held_for", "lives_for", "due_in")

Row = dict[str, Any]


class Seen(NamedTuple):
    now: float  # Unix time by the lock server's clock
    found: list[Found]
    #: For some locks, by name, the first tasks that wait, "since" a Unix time if that is known.
    next: dict[str, list[dict[str, Any]]]
    suspended: list[dict[str, Any]]  # what operators keep from running; what ends first is first


def look(app: Any) -> Seen:
    found, now = snapshot(app), server_time(app)
    count = {each.name: each.waiting for each in found if each.waiting}
    most = sorted(count, key=lambda name: (-count[name], name))[:NAMED_ROOMS]
    rooms = waiting(app, most, NAMED_WAITERS)
    first = {room.name: [_next(each, room.now) for each in room.waiting] for room in rooms}
    suspended = [{**each.to_dict(), "target": each.target} for each in suspensions(app)]
    return Seen(now, found, first, suspended)


def _next(each: Waiting, now: float) -> dict[str, Any]:
    fields = _plain(each)
    age = fields.pop("age", None)
    return fields if age is None else {**fields, "since": round(now - age, 1)}


def look_back(app: Any, now: float) -> tuple[list[PastRun], dict[str, float]]:
    """The runs that have ended; and what was skipped or refused in this hour and the last."""
    since = now // HOUR * HOUR - HOUR
    hours = [each for by_hour in turned_away(app).values() for each in by_hour.items()]
    count = sum(count for hour, count in hours if hour >= since)
    return history(app), {"count": count, "since": since}


def look_at(app: Any, name: str) -> dict[str, Any]:
    """All about the lock with that name, as `show --json` has it, with each holder's mark."""
    (room,) = waiting(app, [name])
    return {
        "locks": [{**each.to_dict(), "holder": each.mark} for each in lock(app, name)],
        "room": [_plain(each) for each in room.waiting],
    }


def _plain(task: Waiting) -> dict[str, Any]:
    """A waiting task as plain data, without unknown fields."""
    return {k: v for k, v in task.to_dict().items() if v is not None}


# -- the rows of the page ----------------------------------------------------------------------


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
    # After a break only the note expires that says who did it: no expiry is shown.
    if slot.expires_at is not None and slot.is_lock:
        ends, was = round(slot.expires_at, 3), before.get("expires_at")
        row["expires_at"] = ends if was is None or abs(was - ends) > SLACK else was
    return row
