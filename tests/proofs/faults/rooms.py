"""Who was in which waiting room, and when, as far as a history tells. Pure.

Each stay is known by bounds: a task was put in, or taken out, between what was asked for and what
was answered. Where a process died, or was not answered, in between, it may have happened or not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from .history import Event
from .turns import OFFERS, SHORTEST

NEVER = float("inf")
#: Seconds for which what waits in a pool slot, and does not ask again, is believed to.
WAITER_TTL = 7.0
#: Seconds after which a command without an answer is sent again, at the soonest.
ONE_ANSWER = 0.1


@dataclass
class Stay:
    """One task's time in a room.

    Attributes:
        parked: the event that says so; asked for at `parked.asked`, and true at `parked.at`.
        asked_from: it may have been put in from then on, unless it is at `parked.asked`.
        place: the stay whose place in the row this one took over, or itself.
        how: "took" the lock, "replaced", "out" (it gave up, was revoked, or could not be read),
            "aside" (set aside), or "" if it was not seen to leave.
        left: the event that says so.
        left_from, left_by: it left between these.
        unsure_from: from then on it may have left without a word.
        successor: the entry that replaced it.
        turns: what says that it had the turn.
        received: when workers received its message.
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
    turns: list[Event] = field(default_factory=list)
    received: list[float] = field(default_factory=list)

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

    def had_turn(self, by: float) -> bool:
        """Whether it had had the turn by then, or was giving up: others need not wait for it."""
        return any(turn.at < by for turn in self.turns)

    def gives_up(self, by: float) -> bool:
        """Whether it was giving up by then: the next has its turn meanwhile."""
        return any(turn.at < by and turn.gives_up for turn in self.turns)

    def turn_lapsed(self, by: float) -> bool:
        """Whether it had had a turn by then that may have lapsed. If the first that is written is
        one more, whoever gave the one before did not live to say so.
        """
        unsaid = bool(self.turns) and self.turns[0].again
        return unsaid or any(turn.asked + SHORTEST < by for turn in self.turns)

    def is_away(self, by: float) -> bool:
        """Whether others need not wait for it by then: its turn lapsed while a worker had its
        message, or it gives up.
        """
        had = [turn.asked for turn in self.turns if turn.asked + SHORTEST < by]
        return self.gives_up(by) or any(min(had, default=by) < at < by for at in self.received)

    def need_not_be_waited_for(self, by: float, limit: int) -> bool:
        """Whether others may take the lock before it: it is away, or has one of several slots."""
        return self.is_away(by) or (limit > 1 and self.had_turn(by))

    def leaves(self, how: str, event: Event, since: float) -> None:
        self.how, self.left, self.left_from, self.left_by = how, event, since, event.at


def stays(events: Iterable[Event]) -> list[Stay]:
    """All the stays, in the order in which they were written."""
    found: list[Stay] = []
    inside: dict[tuple[str, str], Stay] = {}
    #: Who left before it was written that it had come.
    early: dict[tuple[str, str], tuple[str, Event]] = {}
    #: The turns of those who were not, or not yet, known to be in the room.
    early_turns: dict[tuple[str, str], list[Event]] = defaultdict(list)

    def leave(where: tuple[str, str], how: str, event: Event) -> Stay | None:
        stay = inside.pop(where, None)
        if stay is None:
            early[where] = how, event
        else:
            stay.leaves(how, event, event.get("asked", event.at))
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
                inside[where] = stay = Stay(event, place)
                found.append(stay)
                given = early_turns.pop(where, [])
                stay.turns += [turn for turn in given if turn.at > event.asked]
                how, gone = early.pop(where, ("", event))
                if how and gone.at > event.asked:
                    earlier = leave(where, how, gone)
                    for stay in found:
                        if stay.parked is gone:
                            stay.place = stay.place or earlier
        elif event.kind in ("took", "out", "aside"):
            leave((event.key, event.entry), "aside" if event.get("aside") else event.kind, event)
        elif event.kind == "turn":
            if (event.key, event.entry) not in inside:
                early_turns[event.key, event.entry].append(event)
            for stay in reversed(found):
                if (stay.parked.key, stay.entry) == (event.key, event.entry):
                    stay.turns.append(event)
                    break
        elif event.kind == "received":
            for stay in found:
                if stay.parked.id == event.id:
                    stay.received.append(event.at)
    _doubt_turns(found)
    _doubt(found, unanswered(events))
    _doubt_parking(found, unsaid(events))
    _doubt_elsewhere(found, events)
    return found


def _doubt_turns(found: list[Stay]) -> None:
    """Who was offered the turn for the last time may be set aside without a word to us."""
    for stay in found:
        offered = [turn.at for turn in stay.turns if turn.publish]
        if len(offered) >= OFFERS:
            stay.unsure_from = min(stay.unsure_from, offered[OFFERS - 1])


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


def out_of_turn(stays_: list[Stay], limit: int = 1) -> Iterator[tuple[Stay, Stay]]:
    """Those who took the lock while somebody who was put in before was still in the room.

    Of several who may hold it at once each has its turn, and takes it when its message comes.
    """
    for second in stays_:
        ahead = second.parked.in_front or (second.parked.newest and second.parked.get("began"))
        if second.how != "took" or ahead:
            continue
        for first in stays_:
            beside = first.need_not_be_waited_for(second.left_by, limit)
            before = first.began.at < second.began_from
            if before and second.left_by < first.surely_until and not beside:
                yield first, second


def overtaken(
    stays_: list[Stay],
    took: list[Event],
    turns: Iterable[Event] = (),
    waiting: Iterable[Event] = (),
    limit: int = 1,
) -> Iterator[tuple[Stay, Event]]:
    """Those who were in the room all the while that a newcomer asked for the lock and took it.

    Who has the turn is no newcomer, even if whoever parked it did not live to say so. If a turn has
    lapsed, what waits in a pool slot may go first, and so may a newcomer that finds the lock kept
    for that. All may go before one whose turn lapsed in a busy worker, or that gives up.

    Args:
        stays_: in the lock's room.
        took: what took the lock.
        turns: who got the turn.
        waiting: the questions of what waits in a pool slot.
        limit: how many may hold the lock at once.
    """
    asks = [event.at for event in waiting]
    came_in = defaultdict(list)
    for stay in stays_:
        came_in[stay.entry].append(stay.parked.asked)
    for event in turns:
        came_in[event.entry].append(event.at)
    for event in took:
        if any(asked < event.at for asked in came_in[event.entry]):
            continue
        in_room = [stay for stay in stays_ if stay.parked.at < event.at < stay.left_by]
        waits = any(event.at - WAITER_TTL < at < event.at for at in asks)
        lapsed = any(stay.turn_lapsed(event.at) or stay.is_away(event.at) for stay in in_room)
        if waits and lapsed:
            continue
        for stay in in_room:
            passed = stay.parked.at < event.asked and event.at < stay.surely_until
            if passed and not stay.need_not_be_waited_for(event.at, limit):
                yield stay, event


def side_by_side(stays_: list[Stay]) -> Iterator[tuple[Stay, Stay]]:
    """Those of the same kind, of which one should have replaced the other."""
    for number, second in enumerate(stays_):
        for first in stays_[:number]:
            same = first.parked.newest and first.parked.newest == second.parked.newest
            since = max(first.parked.at, second.parked.at)
            until = min(first.surely_until, second.surely_until)
            both = same and first.is_fresh and second.is_fresh and since < until
            if both and not _may_be_a_second_answer(max(first.parked, second.parked, key=_when)):
                yield first, second


def _may_be_a_second_answer(parked: Event) -> bool:
    """Whether it took so long that it may have been asked twice: whom the first, unheard, time
    replaced is not in the answer to the second.
    """
    return bool(parked.at - parked.asked > ONE_ANSWER)


def _when(event: Event) -> float:
    return event.at
