"""Figures of the holders and waiting tasks of each task. Reads the server, changes nothing."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from typing import Final

from ..app.settings import AppLocks
from ..protocol.holders import one_line
from ..protocol.keys import is_slot, key_parts, lock_keys, lock_pattern
from ..servers.history import History
from ..servers.looking import Looking
from ..servers.turns import turns_of
from .rooms import heads_of
from .states import RUNNING, state_of_turn
from .survey import BATCH, awaited_in, read_lost, read_slots

#: Counts what has no task: foreign values, locks that are being handed over, and entries that
#: cannot be read.
NO_TASK: Final = "unknown"
#: How many rooms are read in one round trip: few, since their first entries hold arguments.
ROOMS: Final = 50


@dataclasses.dataclass(slots=True)
class Figures:
    """The figures of one task.

    Attributes:
        locks: how many locks are in each state; and how many runs go on without their lock. See
            `states.State`.
        oldest_holder: seconds for which the oldest run has held its lock.
        waiting: how many tasks wait in waiting rooms.
        oldest_waiter: seconds since the earliest arrival among the first tasks of all rooms, but
            for those that wait for quiet.
        untaken: how many waiting tasks no worker takes.
        last_success: Unix time at which its last successful run ended; None if not known.
        warn_after: its `lock_warn_after` in seconds; None if not known.
    """

    locks: Counter[str] = dataclasses.field(default_factory=Counter)
    oldest_holder: float = 0.0
    waiting: int = 0
    oldest_waiter: float = 0.0
    untaken: int = 0
    last_success: float | None = None
    warn_after: float | None = None


def backlog(locks: AppLocks) -> dict[str, Figures]:
    """The figures of all tasks that have something in the server, by the task's name.

    A waiting room counts for the task of its first entry: reading all of a long one would take the
    server too long.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    count = _Count(locks)
    for page in Looking(locks.server).scan(lock_pattern(locks.prefix)):
        count.note(page)
    count.finish()
    for task, at in History(locks.server).last_successes(locks.prefix).items():
        count.of(task).last_success = at
    return dict(count.figures)


class _Count:
    """Counts while the scan goes on, so that a million locks are not all kept in memory."""

    def __init__(self, locks: AppLocks) -> None:
        self._server, self._prefix = locks.server, locks.prefix
        self.figures: defaultdict[str, Figures] = defaultdict(Figures)
        #: The keys yet to be read, with the names of their locks, by kind.
        self._noted: dict[str, list[tuple[bytes, str]]] = {
            kind: [] for kind in ("lock", "room", "waiters", "lost")
        }
        #: Hashes of the keys that were noted: a scan may give a key twice.
        self._seen: set[int] = set()
        #: Hashes of the names of the locks that are taken.
        self._taken: set[int] = set()
        #: The first task that waits for each lock, by the lock's name.
        self._awaited: dict[str, str | None] = {}

    def note(self, page: list[bytes]) -> None:
        """Note these keys, and read what is stored there when there are enough of them."""
        for key in page:
            kind, name = key_parts(self._prefix, key) or ("", "")
            noted = self._noted.get("lock" if is_slot(kind) else kind)
            if noted is not None and hash(key) not in self._seen:
                self._seen.add(hash(key))
                noted.append((key, name))
        self._read()

    def finish(self) -> None:
        """After the last page: read the rest, and see which locks nobody holds."""
        self._read(all_of_them=True)
        free = [name for name in self._awaited if hash(name) not in self._taken]
        # Read these again: a run may have taken the lock during the scan.
        self._noted["lock"] = [(lock_keys(self._prefix, name).lock.encode(), name) for name in free]
        self._read(all_of_them=True)
        free = [name for name in free if hash(name) not in self._taken]
        for first in range(0, len(free), ROOMS):
            some = free[first : first + ROOMS]
            _, turns = turns_of(self._server, [lock_keys(self._prefix, each) for each in some])
            for name, turn in zip(some, turns, strict=True):
                self.of(self._awaited[name]).locks[state_of_turn(turn)] += 1

    def _read(self, all_of_them: bool = False) -> None:
        reads = {
            "lock": self._read_slots,
            "room": self._read_rooms,
            "waiters": self._read_waiters,
            "lost": self._read_lost,
        }
        for kind, read in reads.items():
            noted, size = self._noted[kind], BATCH if kind == "lock" else ROOMS
            while len(noted) >= size or (noted and all_of_them):
                read(noted[:size])
                del noted[:size]

    def _read_slots(self, slots: list[tuple[bytes, str]]) -> None:
        for slot in read_slots(self._server, slots).values():
            self._taken.add(hash(slot.name))
            figures = self.of(slot.task)
            figures.locks[slot.state] += 1
            if slot.state in RUNNING:
                figures.oldest_holder = max(figures.oldest_holder, slot.held_for or 0.0)

    def _read_rooms(self, rooms: list[tuple[bytes, str]]) -> None:
        keys = [lock_keys(self._prefix, name) for _, name in rooms]
        heads = heads_of(self._server, keys)
        _, turns = turns_of(self._server, keys)
        for (_, name), (count, first), turn in zip(rooms, heads, turns, strict=True):
            if not count:
                continue
            figures = self.of(first.task)
            figures.untaken += turn.untaken
            figures.waiting += count
            if turn.quiet_in is None:
                figures.oldest_waiter = max(figures.oldest_waiter, first.age or 0.0)
            self._awaited[name] = first.task

    def _read_waiters(self, waiters: list[tuple[bytes, str]]) -> None:
        counts = Looking(self._server).lengths([], [key for key, _ in waiters])
        for (_, name), count in zip(waiters, counts, strict=True):
            if count:
                self._awaited.setdefault(name, awaited_in(name, 0))

    def _read_lost(self, lost: list[tuple[bytes, str]]) -> None:
        for each in read_lost(self._server, [(name, key) for key, name in lost]):
            self.of(each.task).locks[each.state] += 1

    def of(self, task: str | None) -> Figures:
        """The figures of this task."""
        # `one_line`: a sender may put text into the name that no scrape can encode.
        return self.figures[one_line(task) if task else NO_TASK]
