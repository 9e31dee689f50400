"""What a history tells of debounced calls. Pure.

A *burst* is a chain of calls, each of which replaced the one before in their pending slot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from tests.proofs.history import Event

from .rooms import ONE_ANSWER, Stay


def without_a_run(
    kinds: dict[str, list[Event]], bodies_of: dict[str, list[Any]]
) -> Iterator[tuple[tuple[Event, ...], str]]:
    """Calls that were replaced, and after which no newer one ran."""
    sent = {event.id: event for event in kinds["sent"]}
    results = {event.id: event for event in kinds["result"]}
    debounced = {event.id for event in kinds["parks"] if event.get("quiet")}
    for task_id in debounced & sent.keys():
        chain = [task_id]
        while (named := _named_by(results.get(chain[-1]), debounced)) and named not in chain:
            chain.append(named)
        events = tuple(sent[each] for each in chain if each in sent)
        last = results.get(chain[-1])
        if named or _is_skipped(last):
            yield (*events, *filter(None, (last,))), "was replaced, and no newer call is named"
        starts = [body.start for body in bodies_of.get(chain[-1], ())]
        since = max(event.at for event in events)
        if starts and max(start.at for start in starts) < since:
            yield (*events, *starts), "was replaced by a call that had begun before"


def _is_skipped(result: Event | None) -> bool:
    return result is not None and result.get("error") in ("TaskSkipped", "TaskReplaced")


def _named_by(result: Event | None, known: Iterable[str]) -> str | None:
    """The call that a replaced one names, if that is one of these."""
    about = (result and result.get("about")) or ""
    if not _is_skipped(result):
        return None
    return next((each for each in known if each in about and each != result.id), None)


def too_early(
    stays: Iterable[Stay], bodies: Iterable[Any], parks: Iterable[Event]
) -> Iterator[tuple[Any, tuple[Event, ...], float]]:
    """First runs of debounced calls, from when these asked to wait, and by how many seconds the run
    came before the quiet time, or `max_wait`, was over.
    """
    asked: dict[str, Event] = {}
    for event in parks:
        if event.get("quiet"):
            asked.setdefault(event.id, event)
    firsts: dict[str, Stay] = {}
    stays = list(stays)
    for stay in stays:
        if stay.parked.get("quiet") and stay.parked.newest:
            firsts.setdefault(stay.parked.id, stay.first)
    for body in bodies:
        start = body.start
        if not start.get("quiet") or start.attempt or not start.fence:
            continue
        if start.id not in asked:
            yield body, (start,), float("inf")
            continue
        (quiet, max_wait), call = start.quiet, asked[start.id]
        times = [call.at]
        if first := firsts.get(start.id):
            # Who was in the slot before may not have lived to say so.
            ids = {entry.rpartition(":")[0] for entry in first.parked.replaced} & asked.keys()
            times += [first.asked_at, *(asked[each].at for each in ids)]
            unheard = ids - firsts.keys()
            is_late = first.parked.at - first.parked.asked > ONE_ANSWER
            if first.parked.id in asked and (is_late or first.left_by < first.parked.at):
                unheard.add(first.parked.id)  # it was asked twice: the first answer was lost
            times += [_slot_taken(stays, asked[each]) for each in unheard]
        yield body, (call, start), min(call.at + quiet, min(times) + max_wait) - start.at


def _slot_taken(stays: list[Stay], call: Event) -> float:
    """Since when the slot was taken, as far as is known, when this call came, which got no answer:
    it may have replaced the one that was there.
    """
    before = [
        stay
        for stay in stays
        if (stay.parked.key, stay.parked.newest) == (call.key, call.newest)
        and stay.parked.at < call.at < stay.left_by
    ]
    return max(before, key=lambda stay: stay.parked.at).first.asked_at if before else call.at


def late_bursts(in_room: list[Stay], bodies: list[Any]) -> Iterator[tuple[float, list[Stay]]]:
    """The bursts of a room in which no other task waits, and when the last call of each was to be
    published at the latest: at its `max_wait`, or when the lock was free after that. Calls that
    come again do not wait in the slot, and have their turn before.
    """
    slots = {stay.parked.newest for stay in in_room} - {""}
    if len(slots) != 1 or not all(stay.parked.get("quiet") for stay in in_room):
        return
    bursts, taken = defaultdict(list), [(body.start.asked, body.inside_until) for body in bodies]
    for stay in in_room:
        if stay.parked.newest:
            bursts[id(stay.first)].append(stay)
        else:
            taken.append((stay.parked.asked, stay.left_by))
    for burst in bursts.values():
        if burst[-1].how not in ("took", "out"):
            continue
        _, max_wait = burst[0].parked.quiet
        due = burst[0].parked.at + max_wait
        for since, until in sorted(taken):
            if since < due < until:
                due = until
        yield due, burst
