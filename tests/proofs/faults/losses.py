"""Which messages the broker's transport lost itself, by what it held. Pure.

A message is the transport's loss if no worker ever got it, it was never seen among the
unacknowledged ones, and it left its queue just as a worker was killed, or while one that was killed
later stood still. What a worker got, and what the broker still has, is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.proofs.history import Event

#: Seconds within which a message that nobody saw in its queue has been taken from it.
UNSEEN = 0.5


class Taken(NamedTuple):
    """A message that somebody took from its queue, between two times, and that no worker got."""

    since: float
    until: float


def taken_by_nobody(trail: Iterable[Event]) -> Iterator[Taken]:
    """Of all the messages of one task, those that left their queue and came to no worker.

    Args:
        trail: what is written of the task, by time. A message that was delivered again keeps its
            tag; one that was published again has a new one.
    """
    published: list[float] = []
    received: set[str] = set()
    places: dict[str, Event] = {}
    noted: set[str] = set()
    for number, event in enumerate(trail):
        if event.kind in ("sent", "published"):
            published.append(event.at)
        elif event.kind == "received":
            if event.get("tag") or not event.redelivered:
                received.add(event.get("tag") or f"#{number}")
        elif event.kind == "place":
            places[event.tag] = event
            if event.where == "unacked":
                noted.add(event.tag)
    for tag, place in places.items():
        if place.where == "nowhere" and tag not in received | noted:
            yield Taken(place.since, place.at)
    unseen = len(published) - len(received | places.keys())
    for at in published[len(published) - unseen :] if unseen > 0 else ():
        yield Taken(at, at + UNSEEN)


def still_in(trail: Iterable[Event]) -> str:
    """Where the broker still has a message of this task, or ""."""
    last = {event.tag: event.where for event in trail if event.kind == "place"}
    return next((where for where in last.values() if where != "nowhere"), "")
