"""One look at the lock server, for all viewers: its locks, the next tasks, and its clock."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from ...app.settings import AppLocks, app_locks
from ...protocol.keys import lock_keys
from ...servers.looking import Looking
from ..history import PastRun, past_runs
from ..rooms import Waiting, members_of, room_of
from ..survey import Found, all_locks, one_lock

#: How many rows name waiting tasks: those of the locks with the most of them.
NAMED_ROOMS: Final = 20
#: How many waiting tasks such a row names.
NAMED_WAITERS: Final = 3
#: How many runs of the history are read at once.
KEPT_RUNS: Final = 3000
#: How many runs of one lock are shown.
KEPT_OF_ONE: Final = 200


class Seen(NamedTuple):
    """The result of one look.

    Attributes:
        now: Unix time in seconds, by the lock server's clock.
        found: the locks.
        next: for some of the locks, by name, the first tasks that wait. Their "since" is the Unix
            time at which the wait began, where that is known.
        rooms: for the locks that were asked for, by name, the ids of all tasks that wait. A long
            room is left out.
    """

    now: float
    found: list[Found]
    next: dict[str, list[dict[str, Any]]]
    rooms: Mapping[str, frozenset[str]] = {}


def look(app: Any, asked: Sequence[str] = ()) -> Seen:
    """Look at all locks of the app.

    Args:
        app: the Celery app.
        asked: the locks whose waiting rooms are read, by name.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    locks = app_locks(app)
    found = all_locks(locks, app)
    now, _ = Looking(locks.server).stored([])
    waiting = {each.name: each.waiting for each in found if each.waiting}
    most = sorted(waiting, key=lambda name: (-waiting[name], name))[:NAMED_ROOMS]
    first = {name: _first(app, locks, name, now) for name in most}
    asked = [name for name in asked if name in waiting]
    rooms = members_of(locks.server, [lock_keys(locks.prefix, name) for name in asked])
    read = {name: ids for name, ids in zip(asked, rooms, strict=True) if ids is not None}
    return Seen(now, found, first, read)


def _first(app: Any, locks: AppLocks, name: str, now: float) -> list[dict[str, Any]]:
    keys = lock_keys(locks.prefix, name)
    first = _plain_all(room_of(locks.server, keys, app, NAMED_WAITERS).waiting)
    for each in first:
        age = each.pop("age", None)
        if age is not None:
            each["since"] = round(now - age, 1)
    return first


def look_back(app: Any, since: float) -> list[PastRun]:
    """The runs in the history that have ended since that Unix time.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    return past_runs(app_locks(app), since=since, limit=KEPT_RUNS)


def look_far_back(app: Any, name: str) -> list[PastRun]:
    """The runs of the lock with this name, as far back as they are kept; the latest first.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    return past_runs(app_locks(app), name=name, limit=KEPT_OF_ONE, running=True)


def look_at(app: Any, name: str) -> dict[str, Any]:
    """All about the lock with that name, as plain data: as `show --json`, with each holder's mark.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    locks = app_locks(app)
    room = room_of(locks.server, lock_keys(locks.prefix, name), app)
    return {
        "locks": [{**each.to_dict(), "holder": mark(each)} for each in one_lock(locks, name, app)],
        "room": _plain_all(room.waiting),
    }


def _plain_all(tasks: Sequence[Waiting]) -> list[dict[str, Any]]:
    """Waiting tasks as plain data, without unknown fields."""
    return [{k: v for k, v in each.to_dict().items() if v is not None} for each in tasks]


def mark(found: Found) -> str | None:
    """A digest of the holder's token. It tells this holder from the next one, and proves nothing to
    Redis. None if there is no holder whose lock could be broken.
    """
    if found.token is None:
        return None
    text = f"{found.key}\n{found.token}\n{found.kept_for == 'a waiter'}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
