"""Who was in which waiting room, and when, as far as a history tells. Pure.

Each stay is known by bounds: a task was put in, or taken out, between what was asked for and what
was answered. Where a process died, or was not answered, in between, it may have happened or not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from .history import Event

NEVER = float("inf")


@dataclass
class Stay:
    """One task's time in a room.

    Attributes:
        parked: the event that says so; asked for at `parked.asked`, and true at `parked.at`.
        asked_from: it may have been put in from then on, unless it is at `parked.asked`.
        place: the stay whose place in the row this one took over, or itself.
        how: "took" the lock, "replaced", "out" (it gave up, was revoked, or could not be read), or
            "" if it was not seen to leave.
        left: the event that says so.
        left_from, left_by: it left between these.
        unsure_from: from then on it may have left without a word.
        successor: the entry that replaced it.
    """

    parked: Event
    place: Stay | None = None
    asked_from: float = NEVER
    how: str = ""
    left: Event | None = None
    left_from: float = NEVER
    left_by: float = NEVER
    unsure_from: float = NEVER
    successor: str = ""

    @property
    def entry(self) -> str:
        return str(self.parked.entry)

    @property
    def began(self) -> Event:
        """The event that gave it its place."""
        return self.place.began if self.place is not None else self.parked

    @property
    def began_from(self) -> float:
        """From then on it may have had its place."""
        if self.place is not None:
            return self.place.began_from
        return min(self.asked_from, float(self.parked.asked))

    @property
    def surely_until(self) -> float:
        return min(self.left_from, self.unsure_from)

    @property
    def is_fresh(self) -> bool:
        """Whether this has not run before: it is no retry, and no copy of a run that died."""
        return self.entry.endswith(":0.0") and not self.parked.get("began")

    def leaves(self, how: str, event: Event, since: float) -> None:
        self.how, self.left, self.left_from, self.left_by = how, event, since, event.at


def stays(events: Iterable[Event]) -> list[Stay]:
    """All the stays, in the order in which they were written."""
    found: list[Stay] = []
    inside: dict[tuple[str, str], Stay] = {}
    #: Who left before it was written that it had come.
    early: dict[tuple[str, str], tuple[str, Event]] = {}

    def leave(where: tuple[str, str], how: str, event: Event) -> Stay | None:
        stay = inside.pop(where, None)
        if stay is None:
            early[where] = how, event
        else:
            stay.leaves(how, event, event.at if how == "out" else event.asked)
            stay.successor = event.entry if how == "replaced" else ""
        return stay

    for event in events:
        if event.kind in ("parked", "not parked"):
            where = (event.key, event.entry)
            left = [leave((event.key, entry), "replaced", event) for entry in event.replaced]
            # Who replaced the one whose turn it was is told to ask, and is in the room too.
            first = event.said == "ask" and event.newest and event.began
            if (event.kind == "parked" or event.replaced or first) and where not in inside:
                # Of several the first: one that had begun is put ahead of those that came since.
                places = [stay for stay in left if stay is not None]
                place = min(places, key=lambda stay: stay.began.at, default=None)
                inside[where] = Stay(event, place)
                found.append(inside[where])
                how, gone = early.pop(where, ("", event))
                if how and gone.at > event.asked:
                    earlier = leave(where, how, gone)
                    for stay in found:
                        if stay.parked is gone:
                            stay.place = stay.place or earlier
        elif event.kind in ("took", "out"):
            leave((event.key, event.entry), event.kind, event)
    _doubt(found, unanswered(events))
    _doubt_parking(found, unsaid(events))
    return found


def unanswered(events: Iterable[Event]) -> list[Event]:
    """The questions for a lock that were not answered: each may have been granted."""
    return _left_open(events, "asks", ("took", "refused"), lambda event: event.token)


def unsaid(events: Iterable[Event]) -> list[Event]:
    """The tries to enter a room of which nobody said what came of them."""
    return _left_open(events, "parks", ("parked", "not parked"), lambda event: event.entry)


def _left_open(
    events: Iterable[Event], begins: str, ends: Collection[str], name: Callable[[Event], str]
) -> list[Event]:
    """What a process began under some name, and began again or never ended."""
    open_: dict[tuple[str, int], Event] = {}
    lost = []
    for event in events:
        if event.kind == begins:
            where = name(event), event.pid
            if where in open_:
                lost.append(open_[where])
            open_[where] = event
        elif event.kind in ends:
            open_.pop((name(event), event.pid), None)
    return lost + list(open_.values())


def _doubt_parking(found: list[Stay], tries: list[Event]) -> None:
    for event in tries:
        for stay in found:
            if stay.parked.key != event.key or event.at > stay.left_by:
                continue
            if stay.entry == event.entry:
                stay.asked_from = min(stay.asked_from, event.at)
            elif event.newest and event.newest == stay.parked.newest:
                stay.unsure_from = min(stay.unsure_from, max(event.at, stay.parked.at))


def _doubt(found: list[Stay], asks: list[Event]) -> None:
    by_entry = defaultdict(list)
    for event in asks:
        by_entry[event.key, event.entry].append(event.at)
    for stay in found:
        later = [at for at in by_entry[stay.parked.key, stay.entry] if at > stay.parked.asked]
        stay.unsure_from = min(later, default=NEVER)


def out_of_turn(stays_: list[Stay]) -> Iterator[tuple[Stay, Stay]]:
    """Those who took the lock while somebody who was put in before was still in the room."""
    for second in stays_:
        ahead = second.parked.in_front or (second.parked.newest and second.parked.get("began"))
        if second.how != "took" or ahead:
            continue
        for first in stays_:
            if first.began.at < second.began_from and second.left_by < first.surely_until:
                yield first, second


def overtaken(
    stays_: list[Stay], took: list[Event], handed: Iterable[Event] = ()
) -> Iterator[tuple[Stay, Event]]:
    """Those who were in the room all the while that a newcomer asked for the lock and took it.

    Who is handed the lock is no newcomer, even if whoever parked it did not live to say so.
    """
    came_in = defaultdict(list)
    for stay in stays_:
        came_in[stay.entry].append(stay.parked.asked)
    for event in handed:
        came_in[event.entry].append(event.at)
    for event in took:
        if any(asked < event.at for asked in came_in[event.entry]):
            continue
        for stay in stays_:
            if stay.parked.at < event.asked and event.at < stay.surely_until:
                yield stay, event


def side_by_side(stays_: list[Stay]) -> Iterator[tuple[Stay, Stay]]:
    """Those of the same kind, of which one should have replaced the other."""
    for number, second in enumerate(stays_):
        for first in stays_[:number]:
            same = first.parked.newest and first.parked.newest == second.parked.newest
            since = max(first.parked.at, second.parked.at)
            until = min(first.surely_until, second.surely_until)
            if same and first.is_fresh and second.is_fresh and since < until:
                yield first, second
