"""Who was in which waiting room, and when, as far as a history tells. Pure.

Each stay is known by bounds: a task was put in, or taken out, between what was asked for and what
was answered. Where a process died, or was not answered, in between, it may have happened or not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from tests.proofs.history import Event

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
        how: "took" the lock, "replaced", "out" (it gave up, was revoked, or has ended), or "" if it
            was not seen to leave.
        left: the event that says so.
        left_by: it had left by then.
        unsure_from: from then on it may have left without a word.
        successor: the entry that replaced it.
    """

    parked: Event
    how: str = ""
    left: Event | None = None
    left_by: float = NEVER
    unsure_from: float = NEVER
    successor: str = ""

    @property
    def entry(self) -> str:
        return str(self.parked.entry)

    def leaves(self, how: str, event: Event) -> None:
        self.how, self.left, self.left_by = how, event, event.at


def stays(events: Iterable[Event]) -> list[Stay]:
    """All the stays, in the order in which they were written."""
    found: list[Stay] = []
    inside: dict[tuple[str, str], Stay] = {}
    #: Who left before it was written that it had come.
    early: dict[tuple[str, str], tuple[str, Event]] = {}

    def leave(where: tuple[str, str], how: str, event: Event) -> None:
        stay = inside.pop(where, None)
        if stay is None:
            early[where] = how, event
        else:
            stay.leaves(how, event)
            stay.successor = event.entry if how == "replaced" else ""

    for event in events:
        where = event.get("key", ""), event.get("entry", "")
        if event.kind in ("parked", "not parked"):
            for entry in event.replaced:
                leave((event.key, entry), "replaced", event)
            # Who replaced one that was next, or the holder, is told to ask, and is in the room too.
            told_to_ask = event.said == "ask" and (event.replaced or event.in_front)
            if where not in inside and (event.kind == "parked" or told_to_ask):
                inside[where] = stay = Stay(event)
                if told_to_ask and not event.replaced:
                    stay.unsure_from = event.at
                found.append(stay)
                how, gone = early.pop(where, ("", event))
                if how and gone.at > event.asked:
                    leave(where, how, gone)
        elif event.kind in ("took", "out"):
            leave(where, event.kind, event)
    asks = _left_open(events, "asks", ("took", "refused"), lambda event: event.token)
    _doubt(found, asks)
    _doubt_parking(found, unsaid(events))
    _doubt_elsewhere(found, events)
    return found


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
            if (
                stay.entry != event.entry
                and event.newest
                and event.newest == stay.parked.newest
                and stay.parked.asked < event.get("answered", NEVER)
            ):
                stay.unsure_from = min(stay.unsure_from, max(event.at, stay.parked.at))


def _doubt_elsewhere(found: list[Stay], events: Iterable[Event]) -> None:
    """Who ran without this lock, failed before it asked, or took another one, may have left the
    room from when a worker got its message on.
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
