"""One exchange with a lock server, as a value; and parts that replies have in common. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from . import entries
from .claims import Offered

T = TypeVar("T")

#: The ttl if a lock's own is not known: it says how long the server may take to answer.
UNKNOWN_TTL: Final = 6.0


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Call(Generic[T]):
    """One exchange with a lock server. Safe to repeat.

    Attributes:
        script: the name of the script, in `scripts/`.
        keys: all keys that it touches. The first one is the lock's, or in the lock's hash slot.
        args: its arguments.
        read: makes the answer from the reply, and from when the request was sent, on `clock`.
        ttl: seconds that the lock lives. It says how long the server may take to answer.
        takes: it takes a new lock, which must wait if the server has just come back.
        recurs: the keys are likely to be sent again.
    """

    script: str
    keys: tuple[str, ...]
    args: tuple[Any, ...]
    read: Callable[[Any, float], T]
    ttl: float
    takes: bool = False
    recurs: bool = False


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Query(Generic[T]):
    """Plain commands in one round trip. Safe to repeat.

    Attributes:
        commands: the commands.
        read: makes the answer from the replies. A key of another type has an exception as its
            reply.
        key: the lock that they are about, or "".
        ttl: see `Call`.
    """

    commands: Sequence[Sequence[Any]]
    read: Callable[[list[Any]], T]
    key: str = ""
    ttl: float = UNKNOWN_TTL


def offered_in(reply: Sequence[Any]) -> Offered | None:
    """The entry of the waiting room that a reply offers."""
    if not reply:
        return None
    kind, entry_id, entry, token, offers = reply
    text = entry.decode()
    return Offered(
        entry_id=entry_id.decode(),
        entry=entries.parked_of(text),
        token=token.decode(),
        arrived=entries.arrived_at(text),
        publish=kind != b"reserved",
        again=offers > 0,
    )


def seconds_in(ms: int) -> float | None:
    return ms / 1000 if ms >= 0 else None


def is_true(reply: Any, sent_at: float) -> bool:
    return bool(reply)


def nothing(replies: list[Any]) -> None:
    """Nothing is told."""


def nothing_of(reply: Any, sent_at: float) -> None:
    """Nothing is told."""
