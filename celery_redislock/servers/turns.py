"""What the tasks in waiting rooms wait for while nobody holds their lock, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from redis.exceptions import ResponseError

from ..protocol.entries import PENDING, quiet_until
from ..protocol.keys import LockKeys, name_of_lock_id
from ..protocol.rooms import pairs_in
from .looking import count_in, unix_time, untaken_command
from .server import Server

#: How many tasks at the front of a waiting room are looked at to learn what they wait for.
FRONT: Final = 16


class Turn(NamedTuple):
    """What the tasks at the front of a waiting room wait for, while the lock is free.

    Attributes:
        quiet_in: seconds until the first of them has had its quiet time; None if one of them does
            not wait for that, or there is none.
        untaken: how many tasks no worker takes.
        overdue: seconds since a worker should have looked at the room; 0 if none should have.
    """

    quiet_in: float | None
    untaken: int
    overdue: float


def turns_of(server: Server, rooms: Sequence[LockKeys]) -> tuple[float, list[Turn]]:
    """The server's time in Unix seconds, and what the tasks in each of these waiting rooms wait
    for, besides the lock.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    commands = [("LRANGE", keys.room, 0, FRONT - 1) for keys in rooms]
    at, *fronts = server.replies([("TIME",), *commands], wrong_type=True)
    now = unix_time(at)
    pending = [
        (keys, members)
        for keys, members in zip(rooms, fronts, strict=True)
        if isinstance(members, list) and all(each.startswith(PENDING) for each in members)
    ]
    buckets = list(dict.fromkeys(keys.rooms for keys in rooms))
    asked: list[tuple[Any, ...]] = [
        *(untaken_command(keys.sent, now) for keys in rooms),
        *(("ZRANGEBYSCORE", each, "-inf", int(now * 1000), "WITHSCORES") for each in buckets),
        *(("HGET", keys.entries, b"#" + each) for keys, members in pending for each in members),
        *(("ZSCORE", keys.sent, each) for keys, members in pending for each in members),
    ]
    replies = iter(server.replies(asked, wrong_type=True))
    counts = [count_in(next(replies)) for _ in rooms]
    due = [each for _ in buckets for each in _pairs(next(replies))]
    names = {name_of_lock_id(lock_id): now - float(ms) / 1000 for lock_id, ms in due}
    states, sent = ([[next(replies) for _ in each] for _, each in pending] for _ in range(2))
    quiet = {
        keys.room: _quiet_in(now, *each)
        for (keys, _), *each in zip(pending, states, sent, strict=True)
    }
    return now, [
        Turn(quiet.get(keys.room), count, max(names.get(keys.name, 0.0), 0.0))
        for keys, count in zip(rooms, counts, strict=True)
    ]


def _quiet_in(now: float, states: Sequence[Any], sent: Sequence[Any]) -> float | None:
    """Seconds until the first of these pending slots is published, if all wait for quiet."""
    ends = [quiet_until(each) for each in states]
    if not ends or any(isinstance(each, bytes) for each in sent):
        return None  # one was published
    known = [each - now for each in ends if each is not None and each > now]
    return min(known) if len(known) == len(ends) else None


def _pairs(reply: Any) -> Iterator[tuple[str, str]]:
    return pairs_in(() if isinstance(reply, ResponseError) else reply)
