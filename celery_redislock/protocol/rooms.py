"""The calls about waiting rooms, like those about locks in `calls`. Does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from . import entries, holders, notes
from .claims import Claim, Done, Free, Full, Look, Older, Parked, Parking, to_ms
from .clock import clock
from .exchange import UNKNOWN_TTL, Call, Query, done_in, nothing, offered_in, seconds_in
from .keys import LockKeys
from .suspensions import suspension_in

T = TypeVar("T")

#: Seconds after which another worker stores the result of a replaced entry, if nobody has.
ENDED_AGAIN: Final = 5.0
#: Seconds after its first publication from which a task that no worker takes is remarkable.
UNTAKEN_AFTER: Final = 60
#: The scripts that need a waiting room.
SCRIPTS: Final = ("park", "look", "drop")
#: How many entries of a waiting room one call drops: about a millisecond of the server's time.
DROP_COUNT: Final = 50


def park(
    claim: Claim, parking: Parking, replaces: Sequence[bytes] = ()
) -> Call[Parked | Free | Full | Older | Done]:
    """Put a task into a lock's room. `replaces`: the ids of those that it replaces, if known."""
    by, grace = parking.replace or ("", None)
    most = "" if parking.limit is None else parking.limit
    give_up, arrived = parking.give_up, parking.arrived
    # As late as can be: the time from here to the server makes the task look newer than it is.
    age = 0.0 if parking.received is None else clock() - parking.received
    quiet, longest = parking.quiet or (None, None)
    of = claim.keys
    keys = (
        *(of.lock, of.room, of.entries, of.rooms, of.ended, of.deadlines),
        *(of.sent, of.waiters, claim.done_key, of.suspended, of.wake, *of.slots),
        *of.done_by_each(replaces),
    )
    args = (
        *(parking.member or claim.entry_id, parking.entry, claim.entry_id, most),
        *(_ms_or_nothing(give_up), int(parking.in_front), of.lock_id),
        *(claim.task_id, to_ms(claim.done_ttl), to_ms(ENDED_AGAIN), _ms_or_nothing(grace), by),
        *("" if arrived is None else f"{arrived * 1000:.3f}", f"{age * 1000:.3f}"),
        *(parking.receipt, _ms_or_nothing(quiet), _ms_or_nothing(longest)),
        *(entries.slot_of(claim.task), claim.opening if parking.in_doubt else "", *replaces),
    )
    wider = partial(_with_notes, partial(park, claim, parking), replaces)
    return Call("park", keys, args, partial(_park_answer, claim), claim.ttl, wider=wider)


def _ms_or_nothing(seconds: float | None) -> int | str:
    return "" if seconds is None else to_ms(seconds)


def _park_answer(claim: Claim, reply: Any, sent_at: float) -> Parked | Free | Full | Older | Done:
    if reply[0] == b"full":
        return Full()
    if reply[0] == b"done":
        return done_in(claim, reply)
    if reply[0] == b"older":
        return Older(reply[1].decode(), *(holders.parse(value, None) for value in reply[2:]))
    replaced = dict(entries_in(reply[1]))
    if reply[0] != b"parked":
        return Free(replaced)
    holder, suspension = holders.parse(reply[4] or None, None), None
    if len(reply) > 5:
        suspension = suspension_in(reply[5])
    return Parked(replaced, offered_in(reply[2]), seconds_in(reply[3]), holder, suspension)


def look(of: LockKeys, ttl: float, longest: float, passed_over: Sequence[str] = ()) -> Call[Look]:
    """Look after a waiting room, and learn which task, not of those that are `passed_over`, must be
    published now; it stays there until it takes the lock. The reply also names tasks that no worker
    has taken for `longest` seconds since they were first published.
    """
    keys = (
        *(of.lock, of.room, of.entries, of.rooms, of.ended, of.deadlines),
        *(of.sent, of.waiters, of.suspended, *of.slots),
    )
    args = (of.lock_id, to_ms(ENDED_AGAIN), to_ms(longest), *passed_over)
    return Call("look", keys, args, _look_answer, ttl)


def _look_answer(reply: Any, sent_at: float) -> Look:
    due, offered, too_long, flat = reply
    ended = {entry_id: entries.ended_of(text) for entry_id, text in pairs_in(flat)}
    members = [member.decode(errors="replace") for member in too_long]
    return Look(seconds_in(due), offered_in(offered), members, ended)


def looks_no_more(of: LockKeys, lock_id: str) -> Query[None]:
    """Have nobody look after the lock's room under this id, which has another number of slots."""
    return Query([("ZREM", of.rooms, lock_id)], nothing, of.lock)


def drop(
    of: LockKeys,
    ttl: float,
    in_favour_of: str,
    done_ttl: float,
    members: Sequence[str] = (),
    noted: Sequence[bytes] = (),
) -> Call[dict[str, str]]:
    """Take up to `DROP_COUNT` tasks out of the room, by their members or else the first ones, as
    duplicates of the one whose id is `in_favour_of`, or of none: "". The caller must store their
    results; if it does not, a worker does. Their messages may still be on their way for `done_ttl`
    seconds. `noted` are their ids, as far as known. The answer has the parked messages by entry
    ids.
    """
    keys = (
        *(of.room, of.entries, of.rooms, of.ended, of.deadlines, of.sent),
        *of.done_by_each(noted),
    )
    args = (
        *(of.lock_id, in_favour_of, to_ms(done_ttl), DROP_COUNT),
        *(len(members), *members, *noted),
    )
    again = partial(drop, of, ttl, in_favour_of, done_ttl, members)
    wider = partial(_with_notes, again, noted)
    return Call("drop", keys, args, lambda reply, _: dict(entries_in(reply)), ttl, wider=wider)


def _with_notes(
    make: Callable[[Sequence[bytes]], Call[T]], known: Sequence[bytes], reply: Any
) -> Call[T] | None:
    if not reply or reply[0] != b"notes":
        return None
    return make([*known, *reply[1:]])


def goes_on_elsewhere(claim: Claim, own: Sequence[str]) -> Query[bool]:
    """Whether a delivery's attempt, which has ended, waits in the room, was replaced there, or runs
    under another token than its `own`, those of its message and retry.
    """
    of = claim.keys
    slot = entries.slot_of(claim.task)
    commands = [
        ("HEXISTS", of.entries, claim.entry_id),
        ("HGET", of.entries, f"#{slot}"),
        *(("GET", key) for key in (claim.done_key, of.lock, *of.slots)),
    ]
    return Query(commands, partial(_goes_on, claim, own), of.lock, claim.ttl)


def _goes_on(claim: Claim, own: Sequence[str], replies: list[Any]) -> bool:
    waits, pending, text, *values = replies
    is_pending = entries.id_in(pending, b"") == claim.entry_id
    note = notes.decode(text) if isinstance(text, bytes) else None
    # Who replaced it there ends it. What was replaced as it ran is ended by its message or run.
    is_replaced = note is not None and note.replaced_by is not None and note.kind == notes.ENDED
    records = [holders.decode(value) for value in values if isinstance(value, bytes)]
    attempt = (claim.task_id, claim.attempt, claim.nesting)
    return (
        waits == 1
        or is_pending
        or is_replaced
        or any(
            (each.get("task_id"), each.get("attempt", 0), each.get("nesting", 0)) == attempt
            and each.get("token") not in (claim.token, *own)
            and not each.get("cooling")
            for each in records
            if each is not None
        )
    )


def forget_ended(of: LockKeys, entry_id: str, ttl: float) -> Query[None]:
    """Forget a replaced entry, whose result is stored."""
    return Query([("HDEL", of.ended, entry_id)], nothing, of.lock, ttl)


def due_rooms(rooms: Sequence[str], ahead: float, now: float) -> Query[list[tuple[float, str]]]:
    """The rooms that are due within `ahead` seconds, by the `rooms` keys of buckets of one server,
    by whose clock it is `now`: in order of time, the seconds until then and the lock's id.
    """
    until = int((now + ahead) * 1000)
    commands = [("ZRANGEBYSCORE", key, "-inf", until, "WITHSCORES") for key in rooms]
    return Query(commands, partial(_due, now), rooms[0])


def _due(now: float, replies: list[Any]) -> list[tuple[float, str]]:
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    pairs = (pair for reply in replies for pair in zip(reply[::2], reply[1::2], strict=True))
    return sorted((max(float(due) / 1000 - now, 0), lock_id.decode()) for lock_id, due in pairs)


def server_time(key: str) -> Query[float]:
    """The time of the server that has this key, a Unix time in seconds."""
    return Query([("TIME",)], lambda replies: int(replies[0][0]) + int(replies[0][1]) / 1e6, key)


def reserve_turn(key: str, seconds: float) -> Query[bool]:
    """Reserve this key for this many seconds. The answer is whether nobody else had reserved it."""
    command = ("SET", key, "1", "NX", "PX", to_ms(seconds))
    return Query([command], lambda replies: replies[0] is not None, key, UNKNOWN_TTL)


# -- parts of replies -------------------------------------------------------------------------


def pairs_in(flat: Sequence[bytes]) -> Iterator[tuple[str, str]]:
    texts = [text.decode(errors="replace") for text in flat]
    return zip(texts[::2], texts[1::2], strict=True)


def entries_in(flat: Sequence[bytes]) -> list[tuple[str, str]]:
    """The ids and the parked messages in a flat reply from a hash of entries."""
    return [(each, entries.parked_of(text)) for each, text in pairs_in(flat)]
