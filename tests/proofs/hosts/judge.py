"""What the clients of a round believed when, and what that comes to. Pure.

| kind | fields | |
|---|---|---|
| ready | host | it takes orders |
| asked | host, name, answer | "taken", "busy" or "unavailable" |
| held | id, host, name, fence, asked, since | it holds the lock, which it asked for at that time |
| ended | id, until, told | until when it was told that it does; when that it was lost |
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from tests.proofs.history import Event


@dataclasses.dataclass(frozen=True)
class Holding:
    """A client's belief that it holds a lock. Times are in seconds.

    Attributes:
        host: where the client is.
        name: the lock.
        fence: what it was given.
        asked: when it asked for the lock.
        since: when it was told that it has the lock.
        until: when it asked for the last time, and was told that the lock is held.
        told: when it was told that the lock is lost; None if it never was.
    """

    host: str
    name: str
    fence: int
    asked: float
    since: float
    until: float
    told: float | None


@dataclasses.dataclass(frozen=True)
class Twice:
    """Two that held one lock at a time.

    Attributes:
        name: the lock.
        seconds: for how long.
        fence_rose: the fence of who asked later is higher. Of two that asked at once either is.
    """

    name: str
    seconds: float
    fence_rose: bool


def holdings(events: Iterable[Event]) -> list[Holding]:
    """What ended, in the order in which it began."""
    begun: dict[str, Event] = {}
    found = []
    for each in events:
        if each.kind == "held":
            begun[each.id] = each
        elif each.kind == "ended":
            fields = begun.pop(each.id)
            kept = {name: fields.get(name) for name in ("host", "name", "fence", "asked", "since")}
            found.append(Holding(**kept, until=each.until, told=each.told))
    return sorted(found, key=lambda each: each.since)


def held_now(events: Iterable[Event]) -> Counter[str]:
    """How many hold each lock at the end of these events."""
    begun: dict[str, str] = {}
    for each in events:
        if each.kind == "held":
            begun[each.id] = each.name
        elif each.kind == "ended":
            begun.pop(each.id, None)
    return Counter(begun.values())


def twice(held: Sequence[Holding]) -> list[Twice]:
    """Where two held one lock at a time, two by two."""
    by_name: dict[str, list[Holding]] = defaultdict(list)
    for each in held:
        by_name[each.name].append(each)
    return [
        Twice(name, min(one.until, other.until) - other.since, _rose(one, other))
        for name, several in by_name.items()
        for one, other in itertools.combinations(several, 2)
        if other.since < one.until and other.since < other.until
    ]


def _rose(one: Holding, other: Holding) -> bool:
    if other.asked > one.since:
        return other.fence > one.fence
    return other.fence != one.fence


def ended_before(events: Iterable[Event], ended_at: float) -> list[Holding]:
    """The holdings as they were then."""
    return [
        dataclasses.replace(each, until=min(each.until, ended_at))
        for each in holdings(events)
        if each.since < ended_at
    ]


def wrong(label: str, longest: float, events: Iterable[Event], ended_at: float) -> Iterator[str]:
    """What breaks a promise: two hold a lock for too long, or a fence that did not rise."""
    for each in twice(ended_before(events, ended_at)):
        if each.seconds > longest:
            yield f"{label}: two held {each.name} for {each.seconds:.2f} s"
        if not each.fence_rose:
            yield f"{label}: the fence of {each.name} did not rise"
