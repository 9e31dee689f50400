"""Reads the tasks that wait for locks in Redis. Changes nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from ..app.entries import CorruptEntry, Entry, NotOurs
from ..protocol.entries import arrived_at, parked_of, task_id_of, task_of
from ..protocol.holders import cut
from ..protocol.keys import LockKeys
from ..servers.looking import Looking
from ..servers.server import Server

#: How many of a lock's waiting tasks are named.
NAMED: Final = 100


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """A task that waits in a room.

    Attributes:
        task: the task's name; None if the entry cannot be read.
        task_id: its id.
        label: the lock's name for people, if an app was given that knows it.
        age: seconds since its arrival; None if that is not known.
        args, kwargs: its arguments as Celery shows them: `argsrepr` and `kwargsrepr` where a caller
            set these. None if no app was given that can read the arguments.
        published_for: seconds since it was first published, if no worker has taken it yet.
        passed_over: no worker that has looked can publish it: none of them knows its task, say.
    """

    task: str | None
    task_id: str
    label: str | None = None
    age: float | None = None
    args: str | None = None
    kwargs: str | None = None
    published_for: float | None = None
    passed_over: bool = False

    @property
    def called(self) -> str:
        """The label and the arguments."""
        given = [text for text in (self.args, self.kwargs) if text not in (None, "()", "[]", "{}")]
        return "  ".join([*([self.label] if self.label else []), *map(str, given)])

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class Room(NamedTuple):
    """The tasks that wait for a lock.

    Attributes:
        waiting: the first tasks in the waiting room, in order.
        total: how many tasks are in the room.
        untaken: how many of them no worker takes.
    """

    waiting: list[Waiting]
    total: int
    untaken: int


def room_of(server: Server, keys: LockKeys, app: Any = None, most: int = NAMED) -> Room:
    """The first `most` tasks that wait for the lock, with labels and arguments if an app is given.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    room = Looking(server).room(keys, most)
    waiting = [
        dataclasses.replace(
            _aged(*each, room.now, app),
            published_for=None if sent is None else max(room.now - sent, 0.0),
            passed_over=is_passed,
        )
        for each, sent, is_passed in zip(room.entries, room.sent, room.passed_over, strict=True)
    ]
    return Room(waiting, room.total, room.untaken)


def heads_of(
    server: Server, rooms: Sequence[LockKeys], app: Any = None
) -> list[tuple[int, Waiting]]:
    """For each of these waiting rooms, how many tasks wait, and the first of them. As `room_of`.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    now, heads = Looking(server).heads(rooms)
    return [(count, _aged(entry_id, entry, now, app)) for count, entry_id, entry in heads]


def members_of(server: Server, rooms: Sequence[LockKeys]) -> list[frozenset[str] | None]:
    """For each of these waiting rooms, the ids of all tasks in it; None if they are more than
    `NAMED`.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    return [
        None if ids is None else frozenset(map(task_id_of, ids))
        for ids in Looking(server).members(rooms, NAMED)
    ]


def _aged(entry_id: str, entry: str, now: float, app: Any) -> Waiting:
    """The task of an entry as Redis has it, with its age."""
    arrived = arrived_at(entry)
    age = max(now - arrived, 0.0) if arrived else None
    return dataclasses.replace(named(entry_id, parked_of(entry), app), age=age)


def named(entry_id: str, entry: str, app: Any = None) -> Waiting:
    """The task of an entry, with label and arguments if an app is given that can read them."""
    texts: dict[str, Any] = {}
    try:
        parsed = Entry.load(entry)
    except (CorruptEntry, NotOurs):
        task, task_id = task_of(entry), task_id_of(entry_id)
    else:
        task, task_id = parsed.task, parsed.task_id  # a pending slot is not called by its task's id
        if app is not None:
            args, kwargs = parsed.arguments(app) or (None, None)
            texts = {"label": parsed.label(app), "args": args, "kwargs": kwargs}
    # Cut: anybody may have written very long texts.
    texts = {name: text and cut(text) for name, text in texts.items()}
    return Waiting(task=task and cut(task), task_id=cut(task_id), **texts)
