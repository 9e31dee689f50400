"""The tasks that wait for locks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from celery.utils.saferepr import saferepr

from ..app.delivery import KEY
from ..app.entries import CorruptEntry, Entry, NotOurs
from ..app.settings import app_locks
from ..protocol.canonical import task_in
from ..protocol.entries import (
    PENDING,
    arrived_at,
    id_in,
    is_passed_over,
    parked_of,
    quiet_until,
    task_id_of,
    task_of,
)
from ..protocol.holders import cut
from ..protocol.keys import LockKeys, lock_keys, name_of_lock_id
from ..protocol.rooms import UNTAKEN_AFTER, pairs_in
from ..servers.looking import in_batches, read
from ..servers.server import Server
from .states import State, awaited_state

#: How many of a lock's waiting tasks are named.
NAMED: Final = 100
#: How many tasks at the front of a waiting room are looked at to learn what they wait for.
FRONT: Final = 16
#: How many rooms are read in one round trip: few, since their first entries hold arguments.
AT_ONCE: Final = 200


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """A task that waits in a room; label, arguments and queue only if an app could read them."""

    task: str | None  # None if the entry cannot be read
    task_id: str
    label: str | None = None
    age: float | None = None  # seconds since its arrival; None if that is not known
    args: str | None = None  # as Celery shows them: `argsrepr` where a caller set it
    kwargs: str | None = None
    #: Seconds since it was first published, if no worker has taken it yet.
    published_for: float | None = None
    #: No worker that has looked can publish it: none of them knows its task, say.
    passed_over: bool = False
    queue: str | None = None  # that its message names

    @property
    def called(self) -> str:
        """The label and the arguments."""
        given = [text for text in (self.args, self.kwargs) if text not in (None, "()", "[]", "{}")]
        return "  ".join([*([self.label] if self.label else []), *map(str, given)])

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as `show --json` prints it."""
        fields = dataclasses.asdict(self)
        del fields["queue"]
        return fields


class Room(NamedTuple):
    """The tasks that wait for a lock."""

    name: str
    now: float  # the server's time in Unix seconds
    waiting: list[Waiting]  # the first tasks in the waiting room, in order
    total: int = 0  # tasks in the room
    in_slots: int = 0  # tasks in pool slots, outside the room
    #: How many in the room no worker has taken, though they were first published a minute ago or
    #: more, or could not be published: the workers may be behind, or not know them.
    untaken: int = 0
    #: If all who are at the front wait for quiet: the seconds until the first is published.
    quiet_in: float | None = None
    #: If some are untaken: the seconds since a worker should have looked at the room, or 0.
    overdue: float = 0.0

    @property
    def waits(self) -> int:
        """How many tasks wait for the lock."""
        return self.total + self.in_slots

    @property
    def task(self) -> str | None:
        """The first task's name. If tasks wait in pool slots only: the task in the lock's name."""
        if self.total:
            return self.waiting[0].task if self.waiting else None
        return task_in(self.name)

    @property
    def state(self) -> State:
        """The state of the lock if nobody holds it."""
        return awaited_state(self.quiet_in is not None, self.untaken, self.overdue)


def waiting(app: Any, names: Iterable[str], most: int = NAMED) -> list[Room]:
    """For each of these locks the first tasks that wait; with 0 it is not known what for."""
    locks = app_locks(app)
    return [*rooms_of(locks.server, locks.prefix, names, app, most)]


def ids_of(app: Any, names: Sequence[str]) -> dict[str, frozenset[str]]:
    """The ids of all tasks in each lock's waiting room, but for rooms with more than `NAMED`."""
    locks = app_locks(app)
    rooms = [lock_keys(locks.prefix, name) for name in names]
    _, replies = read(locks.server, [("LRANGE", keys.room, 0, NAMED) for keys in rooms])
    short = {
        keys: members or []
        for keys, members in zip(rooms, replies, strict=True)
        if len(members or []) <= NAMED
    }
    # A pending slot is not called by the id of the entry in it.
    wanted = [("HGET", keys.entries, b"#" + each) for keys, of in short.items() for each in of]
    _, states = read(locks.server, wanted)
    left = iter(states)
    return {
        keys.name: frozenset(task_id_of(id_in(next(left), each)) for each in members)
        for keys, members in short.items()
    }


def rooms_of(
    server: Server, prefix: str, names: Iterable[str], app: Any = None, most: int = 1
) -> Iterator[Room]:
    """As `waiting`; with labels and arguments if an app is given that can read them."""
    for batch in in_batches((lock_keys(prefix, name) for name in names), AT_ONCE):
        yield from _rooms(server, batch, app, most)


def _fronts(
    server: Server, rooms: Sequence[LockKeys], most: int
) -> tuple[float, list[int], list[list[bytes]]]:
    """The server's time; and for each room how many tasks it has, and its first members."""
    commands = [
        command
        for keys in rooms
        for command in (("LLEN", keys.room), ("LRANGE", keys.room, 0, most - 1))
    ]
    now, replies = read(server, commands)
    return now, [each or 0 for each in replies[::2]], [each or [] for each in replies[1::2]]


def _rooms(server: Server, rooms: Sequence[LockKeys], app: Any, most: int) -> Iterator[Room]:
    now, totals, fronts = _fronts(server, rooms, max(most, FRONT) if most else 1)
    # Only if all at the front are pending slots may they wait for quiet.
    looked_at = [
        front if all(each.startswith(PENDING) for each in front) else front[:most]
        for front in fronts
    ]
    asked = [
        command
        for keys, front, members in zip(rooms, fronts, looked_at, strict=True)
        for command in (
            # Those that are dead by now are still there.
            ("ZCOUNT", keys.waiters, f"({int(now * 1000)}", "+inf"),
            ("ZCOUNT", keys.sent, "-inf", int((now - UNTAKEN_AFTER) * 1000)),
            *(("HGET", keys.entries, each) for each in front[:most]),
            *(("HGET", keys.entries, b"#" + each) for each in members),
            *(("ZSCORE", keys.sent, each) for each in members),
        )
    ]
    left = iter(read(server, asked)[1])
    found = []
    for keys, total, front, members in zip(rooms, totals, fronts, looked_at, strict=True):
        in_slots, count = next(left) or 0, next(left) or 0
        room = Room(keys.name, now, [], total, in_slots)
        if front:
            entries = [next(left) or b"" for _ in front[:most]]
            states = [next(left) for _ in members]
            sent = [None if (at := next(left)) is None else float(at) / 1000 for _ in members]
            tasks = zip(front, entries, states, sent, strict=False)
            room = room._replace(
                waiting=[_task(*each, now, app) for each in tasks],
                untaken=count,
                quiet_in=_quiet_in(now, states, sent) if len(members) == len(front) else None,
            )
        found.append(room)
    untaken = (keys for keys, room in zip(rooms, found, strict=True) if room.untaken)
    overdue = _overdue(server, now, untaken)
    return (room._replace(overdue=overdue.get(room.name, 0.0)) for room in found)


def _task(
    member: bytes, entry: bytes, state: Any, sent: float | None, now: float, app: Any
) -> Waiting:
    text, is_passed = entry.decode(errors="replace"), is_passed_over(state)
    arrived = arrived_at(text)
    return dataclasses.replace(
        named(member.decode(errors="replace"), parked_of(text), app),
        age=max(now - arrived, 0.0) if arrived else None,
        published_for=None if sent is None or is_passed else max(now - sent, 0.0),
        passed_over=is_passed,
    )


def _quiet_in(now: float, states: Sequence[Any], sent: Sequence[float | None]) -> float | None:
    """Seconds until the first of these pending slots is published, if all wait for quiet."""
    ends = [quiet_until(each) for each in states]
    if not ends or any(each is not None for each in sent):
        return None  # one was published
    known = [each - now for each in ends if each is not None and each > now]
    return min(known) if len(known) == len(ends) else None


def _overdue(server: Server, now: float, rooms: Iterable[LockKeys]) -> dict[str, float]:
    """By the locks' names: how long ago a worker should have looked at these rooms."""
    buckets = dict.fromkeys(keys.rooms for keys in rooms)
    if not buckets:
        return {}
    due = [("ZRANGEBYSCORE", each, "-inf", int(now * 1000), "WITHSCORES") for each in buckets]
    _, replies = read(server, due)
    return {
        name_of_lock_id(lock_id): max(now - float(ms) / 1000, 0.0)
        for reply in replies
        for lock_id, ms in pairs_in(reply or ())
    }


def named(entry_id: str, entry: str, app: Any = None) -> Waiting:
    """The task of an entry, with label and arguments if an app is given that can read them."""
    texts: dict[str, Any] = {}
    try:
        parsed = Entry.load(entry)
    except (CorruptEntry, NotOurs):
        task, task_id = task_of(entry), task_id_of(entry_id)
    else:
        task, task_id = parsed.task, parsed.task_id  # a pending slot is not called by its task's id
        texts = {} if app is None else _shown(parsed, app)
    # Cut: anybody may have written very long texts.
    texts = {name: text and cut(text) for name, text in texts.items()}
    return Waiting(task=task and cut(task), task_id=cut(task_id), **texts)


def _shown(entry: Entry, app: Any) -> dict[str, Any]:
    """The entry's label, arguments and queue; empty if this app cannot read them."""
    try:
        args, kwargs, options = entry.content(app)
    except (NotOurs, CorruptEntry):
        return {}
    ours = header.get(KEY) if isinstance(header := options.get("headers"), dict) else None
    return {
        "label": _text((ours if isinstance(ours, dict) else {}).get("label")),
        "args": _text(options.get("argsrepr")) or saferepr(args),
        "kwargs": _text(options.get("kwargsrepr")) or saferepr(kwargs),
        "queue": _text(options.get("queue")),
    }


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
