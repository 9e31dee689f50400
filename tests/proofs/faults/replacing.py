"""Who ended whom by `Replace`, as far as a history tells. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tests.proofs.history import Event

#: Of two that came within so many seconds either may be the newer one.
AT_ONCE = 0.05


class Replacement(NamedTuple):
    """A run was told to end for a newer one.

    Attributes:
        older, newer: the ids of their tasks.
        at: when the lock server knew it, at the latest.
        event: the one that says so.
    """

    older: str
    newer: str
    at: float
    event: Event


def replacements(events: Iterable[Event], by_key: dict[str, list[Any]]) -> list[Replacement]:
    """All of them, by time.

    Args:
        events: of the history.
        by_key: the bodies that had a lock. One that was inside all the while that a newer one
            asked for its end, and had its lock then, is the one that was told to end.
    """
    found = []
    for event in events:
        is_parked = event.kind == "parked" and event.get("replaces")
        for body in by_key.get(event.key, ()) if is_parked else ():
            inside = body.start.at < event.asked and event.at < body.inside_until
            if inside and event.at < body.right_until and body.start.id != event.id:
                found.append(Replacement(body.start.id, event.id, event.at, event))
    return found


def ran_after_all(
    replaced: Iterable[Replacement], bodies_of: dict[str, list[Any]]
) -> Iterator[tuple[Replacement, Any]]:
    """Runs that took the lock after their task had been replaced."""
    for one in replaced:
        for body in bodies_of.get(one.older, ()):
            if body.start.asked > one.at:
                yield one, body
                break


def ended_by_the_older(
    replaced: list[Replacement], conflicts: Iterable[Event]
) -> Iterator[tuple[Replacement, Event]]:
    """Newer ones that the older one, which they had replaced, ended in turn."""
    told_back = {(back.older, back.newer): back for back in replaced}
    for one in replaced:
        back = told_back.get((one.newer, one.older))
        if back is not None and back.at > one.at:
            yield one, back.event
    ended = {(event.id, event.holder): event for event in conflicts if event.outcome == "replaced"}
    for one in replaced:
        event = ended.get((one.newer, one.older))
        if event is not None and event.at > one.at:
            yield one, event


def older_after_newer(
    trails: dict[str, list[Event]], bodies: list[Any]
) -> Iterator[tuple[Any, Any]]:
    """Pairs of runs of one task and key, of which the older one began after the newer one had.

    Args:
        trails: what is written of each task's id. The newer of two came later, to a worker as well
            as to the lock server.
        bodies: of one lock.
    """
    came = {body.start.id: _first_came(trails[body.start.id]) for body in bodies}
    for newer in bodies:
        for older in bodies:
            same = older.start.task == newer.start.task and older.start.id != newer.start.id
            if same and newer.start.at < older.start.at:
                pairs = zip(came[older.start.id], came[newer.start.id], strict=True)
                if all(a + AT_ONCE < b for a, b in pairs):
                    yield older, newer


def _first_came(trail: list[Event]) -> tuple[float, float]:
    """When a worker first had it, and when it first asked the lock server and had an answer: by a
    question that it did not hear the server does not know who came.
    """
    answered = {event.token for event in trail if event.kind in ("took", "refused")}
    received = [event.at for event in trail if event.kind == "received"]
    asked = [event.at for event in trail if event.kind == "asks" and event.token in answered]
    return min(received, default=float("nan")), min(asked, default=float("nan"))
