"""Who was in which waiting room, and when, as far as a history tells. Pure.

Each stay is known by bounds: a task was put in, or taken out, between what was asked for and what
was answered. Where a process died, or was not answered, in between, it may have happened or not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from tests.proofs.history import Event

from .witness import BESIDE_WAITERS, GOES_LAST_AFTER

NEVER = float("inf")
#: Seconds after which a command without an answer is sent again, at the soonest.
ONE_ANSWER = 0.1
#: What a task may be told that replaced another one, now or when it asked before.
_MAY_REPLACE = frozenset({"parked", "ask", "older"})


@dataclass
class Stay:
    """One task's time in a room.

    Attributes:
        parked: the event that says so; asked for at `parked.asked`, and true at `parked.at`.
        asked_from: it may have been put in from then on, unless it is at `parked.asked`.
        place: the stay whose place in the row this one took over, or itself.
        how: "took" the lock, "replaced", "out" (it gave up, was revoked, or has ended), or "" if it
            was not seen to leave.
        left: the event that says so.
        left_from, left_by: it left between these.
        unsure_from: from then on it may have left without a word.
        successor: the entry that replaced it.
        offers: what says that its message was to be published.
        late: (when its message was published, or could not be; from when on others need not wait).
        back_at: when it met a held lock again, and went back to its place.
        last_from: from then on it has no place in the order any more.
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
    offers: list[Event] = field(default_factory=list)
    late: list[tuple[float, float]] = field(default_factory=list)
    back_at: list[Event] = field(default_factory=list)
    last_from: float = NEVER

    @property
    def entry(self) -> str:
        return str(self.parked.entry)

    @property
    def first(self) -> Stay:
        """The one whose place it has: in a pending slot, the first call."""
        return self if self.place is None else self.place.first

    @property
    def in_front(self) -> bool:
        """Whether it, or one whose place it has, was put before all others."""
        return bool(self.parked.in_front) or (self.place is not None and self.place.in_front)

    @property
    def asked_at(self) -> float:
        """It may have been put in from then on."""
        return min(self.asked_from, float(self.parked.asked))

    @property
    def surely_until(self) -> float:
        return min(self.left_from, self.unsure_from)

    def add_offer(self, offer: Event) -> None:
        """Whoever was to publish its message before may not have lived to say so: the server tells
        since when it is under way.
        """
        self.offers.append(offer)
        first = offer.asked - offer.since
        # One whose time is over is published to end: nobody waits for it.
        self.late.append((first, first if offer.get("gives_up") else first + BESIDE_WAITERS))
        if offer.since > GOES_LAST_AFTER - ONE_ANSWER:
            self.last_from = min(self.last_from, offer.asked)

    def is_late(self, took: Event) -> bool:
        """Whether its message had not come in time when somebody took the lock: nobody needs to
        wait for it until it has come, and has met a held lock.
        """
        by, asked = took.at, took.get("asked", took.at)
        back = max((back.asked for back in self.back_at if back.at < asked), default=0.0)
        return self.last_from < by or any(back < at and late < by for at, late in self.late)

    def need_not_be_waited_for(self, took: Event, limit: int) -> bool:
        """Whether others may take the lock before it: its message is late, or the lock has several
        slots, of which one is kept for it. One that is debounced has its place when it is quiet.
        """
        published = any(offer.asked < took.at for offer in self.offers)
        return bool(self.parked.get("quiet")) or self.is_late(took) or (limit > 1 and published)

    def leaves(self, how: str, event: Event, since: float) -> None:
        self.how, self.left, self.left_from, self.left_by = how, event, since, event.at


def stays(events: Iterable[Event]) -> list[Stay]:
    """All the stays, in the order in which they were written."""
    found: list[Stay] = []
    inside: dict[tuple[str, str], Stay] = {}
    #: The last stay of each, also if it has left.
    latest: dict[tuple[str, str], Stay] = {}
    #: Who left before it was written that it had come.
    early: dict[tuple[str, str], tuple[str, Event]] = {}
    #: The offers of those who were not, or not yet, known to be in the room.
    early_offers: dict[tuple[str, str], list[Event]] = defaultdict(list)

    def leave(where: tuple[str, str], how: str, event: Event) -> Stay | None:
        stay = inside.pop(where, None)
        if stay is None:
            early[where] = how, event
        else:
            stay.leaves(how, event, event.get("asked", event.at))
            stay.successor = event.entry if how == "replaced" else ""
        return stay

    for event in events:
        where = event.get("key", ""), event.get("entry", "")
        if event.kind in ("parked", "not parked"):
            left = [
                leave(place, "replaced", event) or _just_left(latest.get(place), event)
                for place in ((event.key, entry) for entry in event.replaced)
            ]
            # Who replaced one that was next, or the holder, is told to ask, and is in the room too.
            told_to_ask = event.said == "ask" and (event.replaced or event.in_front)
            if where in inside:
                inside[where].back_at.append(event)
            elif event.kind == "parked" or told_to_ask:
                # Of several the first: one that had begun is put ahead of those that came since.
                places = [stay for stay in left if stay is not None]
                place = min(places, key=lambda stay: stay.first.parked.at, default=None)
                inside[where] = latest[where] = stay = Stay(event, place)
                if told_to_ask and not event.replaced:
                    stay.unsure_from = event.at
                found.append(stay)
                for offer in early_offers.pop(where, []):
                    if offer.at > event.asked:
                        stay.add_offer(offer)
                how, gone = early.pop(where, ("", event))
                if how and gone.at > event.asked:
                    earlier = leave(where, how, gone)
                    for stay in found:
                        if stay.parked is gone:
                            stay.place = stay.place or earlier
        elif event.kind in ("took", "out"):
            leave(where, event.kind, event)
        elif event.kind == "offered" and where in inside:
            inside[where].add_offer(event)
        elif event.kind == "offered":
            early_offers[where].append(event)
        elif event.kind == "passed over":
            for stay in inside.values():
                names = (stay.entry, stay.parked.newest)
                if stay.parked.key == event.key and event.member in names:
                    stay.late.append((event.at, event.at))
    _doubt(found, unanswered(events))
    _doubt_parking(found, unsaid(events))
    _doubt_elsewhere(found, events)
    return found


def _just_left(stay: Stay | None, replacing: Event) -> Stay | None:
    """One that was replaced, and found that out before its successor heard that it had replaced."""
    return stay if stay is not None and stay.left_by >= replacing.asked else None


def unanswered(events: Iterable[Event]) -> list[Event]:
    """The questions for a lock that were not answered: each may have been granted."""
    return _left_open(events, "asks", ("took", "refused"), lambda event: event.token)


def unsaid(events: Iterable[Event]) -> list[Event]:
    """The tries to enter a room of which nobody said what came of them. One that was answered late
    may have been asked twice, and been in the room since the first time: whom that replaced, it
    was not told.
    """
    events, slow = list(events), []
    first: dict[tuple[str, int], Event] = {}
    replaced_at: dict[str, list[float]] = defaultdict(list)
    for event in events:
        for entry in event.get("replaced", ()) if event.kind in ("parked", "not parked") else ():
            replaced_at[entry].append(event.at)
    for event in events:
        if event.kind == "parks":
            first.setdefault((event.entry, event.pid), event)
        elif event.kind in ("parked", "not parked"):
            # It may be the answer to a later message's question, in another way.
            asked = first.pop((event.entry, event.pid), event)
            # Who was replaced before it was answered was in the room, and is answered anew.
            was_in = any(event.asked < at < event.at for at in replaced_at[event.entry])
            is_late = was_in or event.at - event.asked > ONE_ANSWER
            if event.said in _MAY_REPLACE and is_late:
                slow.append(Event("parks", event.asked, {**asked.fields, "answered": event.at}))
    return slow + _left_open(events, "parks", ("parked", "not parked"), lambda event: event.entry)


def _left_open(
    events: Iterable[Event], begins: str, ends: Collection[str], name: Callable[[Event], str]
) -> list[Event]:
    """What a process began under some name, and began again or never ended."""
    open_: dict[tuple[str, int], Event] = {}
    lost = []
    for event in events:
        if event.kind == begins and not event.get("again"):
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
            elif (
                event.newest
                and event.newest == stay.parked.newest
                and stay.parked.asked < event.get("answered", NEVER)
            ):
                stay.unsure_from = min(stay.unsure_from, max(event.at, stay.parked.at))


def _doubt_elsewhere(found: list[Stay], events: Iterable[Event]) -> None:
    """Who ran without this lock, failed before it asked, or took another one, since a new release
    defines its task so, may have left the room from when a worker got its message on.
    """
    parked_at: dict[str, float] = {}
    for stay in found:
        parked_at.setdefault(stay.parked.id, stay.parked.at)
    received: dict[str, float] = {}
    elsewhere: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for event in events:
        task_id = event.get("id")
        if task_id not in parked_at:
            continue
        if event.kind == "received":
            received[task_id] = event.at
        elif event.kind in ("start", "failed", "asks"):
            key = event.key if event.kind == "asks" or event.get("fence") else ""
            elsewhere[task_id].append((received.get(task_id, event.at), key))
    for stay in found:
        times = [
            at
            for at, key in elsewhere[stay.parked.id]
            if key != stay.parked.key and at > stay.parked.asked
        ]
        stay.unsure_from = min([stay.unsure_from, *times])


def _doubt(found: list[Stay], asks: list[Event]) -> None:
    by_entry = defaultdict(list)
    for event in asks:
        by_entry[event.key, event.entry].append(event.at)
    for stay in found:
        later = [at for at in by_entry[stay.parked.key, stay.entry] if at > stay.parked.asked]
        stay.unsure_from = min([stay.unsure_from, *later])


def passed_by(stays_: list[Stay], took: Event, since: float, limit: int = 1) -> Iterator[Stay]:
    """Those who had their places before this time, and still when somebody took the lock, and whose
    messages that one had to wait for.

    Args:
        stays_: in the lock's room.
        took: somebody took the lock.
        since: from then on that one may have had a place.
        limit: how many may hold the lock at once.
    """
    for stay in stays_:
        before = stay.first.parked.at < since and stay.parked.at < took.at < stay.surely_until
        if before and not stay.need_not_be_waited_for(took, limit):
            yield stay


def newcomers(
    stays_: list[Stay], took: Iterable[Event], offered: Iterable[Event]
) -> Iterator[Event]:
    """Those that took the lock and did not wait in its room. Whose message was published is none,
    even if whoever parked it did not live to say so. Nor is one that found a message late: then the
    lock is kept for nobody until the next one is published.
    """
    came_in = defaultdict(list)
    for stay in stays_:
        came_in[stay.entry].append(stay.parked.asked)
    for event in offered:
        came_in[event.entry].append(event.at)
    for event in took:
        was_in = any(asked < event.at for asked in came_in[event.entry])
        in_room = (stay for stay in stays_ if stay.parked.at < event.at < stay.left_by)
        if not was_in and not any(stay.is_late(event) for stay in in_room):
            yield event


def came_as_new(stays_: list[Stay], stay: Stay) -> bool:
    """Whether one that was published since its time was over took a lock that was kept for nobody,
    as a newcomer may: a message was late.
    """
    if not any(offer.get("gives_up") for offer in stay.offers):
        return False
    others = (each for each in stays_ if each.parked.at < stay.left_by < each.left_by)
    return any(other.is_late(stay.left) for other in others if stay.left is not None)


def side_by_side(stays_: list[Stay]) -> Iterator[tuple[Stay, Stay]]:
    """Those in the same pending slot, of which one should have replaced the other."""
    for number, second in enumerate(stays_):
        for first in stays_[:number]:
            same = first.parked.newest and first.parked.newest == second.parked.newest
            since = max(first.parked.at, second.parked.at)
            until = min(first.surely_until, second.surely_until)
            if same and since < until:
                yield first, second
