"""Describes one exchange with a lock server, and reads what replies have in common. Does no I/O."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from . import entries, notes
from .claims import Claim, Done, Offered, Place

T = TypeVar("T")

#: Used where a lock's ttl is not known. It determines how long the server may take to answer.
UNKNOWN_TTL: Final = 6.0


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Call(Generic[T]):
    """One exchange with a lock server. Safe to repeat."""

    script: str  # its name, in `scripts/`
    keys: tuple[Any, ...]  # all that the script touches, in one hash slot; the first is a text
    args: tuple[Any, ...]
    read: Callable[[Any, float], T]  # given the reply, and when the request was sent, on `clock`
    ttl: float  # the lock's, in seconds; it determines how long the server may take to answer
    takes: bool = False  # a new lock: it waits while a server that came back holds off
    recurs: bool = False  # the same keys are likely to be sent again, so their packed form is kept
    #: Makes the call to make in place of this one, from a reply that names what else the script
    #: would touch; None if the reply is the answer.
    wider: Callable[[Any], Call[T] | None] | None = None
    undo: Callable[[], Call[Any]] | None = None  # gives back what this may have taken
    #: The call may have been carried out before, and its reply got lost; or independent servers do
    #: not agree. Then "not ours" is no proof of a loss.
    in_doubt: bool = False


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Query(Generic[T]):
    """Plain commands in one round trip. Safe to repeat."""

    commands: Sequence[Sequence[Any]]
    read: Callable[[list[Any]], T]  # a key of another type has an exception as its reply
    key: str = ""  # of the lock that the commands are about, or ""
    ttl: float = UNKNOWN_TTL  # see `Call`


def offered_in(reply: Sequence[Any]) -> Offered | None:
    """The entry of the waiting room that a reply offers."""
    if not reply:
        return None
    member, entry_id, entry, gives_up, since, receipt = reply
    text = entry.decode()
    return Offered(
        place=Place(member.decode(), entry_id.decode(), receipt.decode()),
        entry=entries.parked_of(text),
        arrived=entries.arrived_at(text),
        gives_up=gives_up == b"1",
        since=since / 1000,
    )


def done_in(claim: Claim, reply: Sequence[Any]) -> Done:
    """The done note of the claim's own attempt, from a reply that opens with "done"."""
    _, note, left, *age = reply
    ago = claim.done_ttl - left / 1000 if left >= 0 else sum(age) / 1000
    return Done(notes.decode(note), ago)


def seconds_in(ms: int) -> float | None:
    return ms / 1000 if ms >= 0 else None


def nothing(replies: list[Any]) -> None:
    """Ignore the replies."""


def nothing_of(reply: Any, sent_at: float) -> None:
    """Ignore the reply."""
