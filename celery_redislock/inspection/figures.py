"""Figures of each task: how many locks are in which state, how many tasks wait, and how long."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ..app.settings import app_locks
from ..protocol.canonical import task_in
from ..protocol.holders import one_line
from .history import last_successes
from .locks import Found, walk
from .rooms import Room
from .states import RUNNING

#: Counts what has no task, such as foreign values and entries that cannot be read.
NO_TASK: Final = "unknown"


@dataclasses.dataclass(slots=True)
class Figures:
    #: How many are in each `states.State`; and how many runs go on without their lock.
    locks: Counter[str] = dataclasses.field(default_factory=Counter)
    oldest_holder: float = 0.0  # seconds for which the oldest run has held its lock
    waiting: int = 0  # in waiting rooms
    #: Seconds since the earliest arrival in all rooms, but for those that wait for quiet.
    oldest_waiter: float = 0.0
    untaken: int = 0  # see `rooms.Room`
    last_success: float | None = None  # Unix time at which it ended; None if not known
    warn_after: float | None = None  # seconds; None if not known

    def count(self, each: Found) -> None:
        self.locks[each.state] += 1
        if each.state in RUNNING:
            self.oldest_holder = max(self.oldest_holder, each.held_for or 0.0)

    def count_room(self, room: Room) -> None:
        self.untaken += room.untaken
        self.waiting += room.total
        if room.waiting and room.quiet_in is None:
            self.oldest_waiter = max(self.oldest_waiter, room.waiting[0].age or 0.0)


def figures(app: Any) -> dict[str, Figures]:
    """The figures of all tasks in the server, by name; a room counts for its first entry's task."""
    locks, by_task = app_locks(app), defaultdict[str, Figures](Figures)
    for each in walk(locks.server, locks.prefix):
        if isinstance(each, Room):
            by_task[_shown(each.task)].count_room(each)
        elif each.state != "broken":
            by_task[_shown(each.task)].count(each)
    for task, at in last_successes(locks.server, locks.prefix).items():
        by_task[_shown(task)].last_success = at
    return dict(by_task)


def by_task(found: Iterable[Found], rooms: Mapping[str, Room]) -> dict[str, Figures]:
    """The figures of these locks, and of what waits for them, by task, in the locks' order."""
    by_task: defaultdict[str, Figures] = defaultdict(Figures)
    left = dict(rooms)  # a lock with several slots has one room
    for each in found:
        by_task[_shown(each.task or task_in(each.name))].count(each)
        if (room := left.pop(each.name, None)) is not None and room.total:
            by_task[_shown(room.task)].count_room(room)
    return dict(by_task)


def _shown(task: str | None) -> str:
    # `one_line`: a sender may put text into the name that no scrape can encode.
    return one_line(task) if task else NO_TASK
