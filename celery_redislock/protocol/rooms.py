"""The calls about waiting rooms, like those about locks in `calls`. Does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from . import entries, holders
from .calls import RESERVE
from .claims import Claim, Full, Look, Older, Parked, Parking, Turn, to_ms
from .exchange import UNKNOWN_TTL, Call, Query, is_true, offered_in, seconds_in
from .keys import LockKeys
from .tokens import new_token

T = TypeVar("T")

#: Seconds after which another worker stores the result of a replaced entry, if nobody has.
ENDED_AGAIN: Final = 5.0
#: Seconds for which we assume that a worker will run a message it received. It confirms that again.
RECEIVED_FOR: Final = 30.0
#: The scripts that need a waiting room.
SCRIPTS: Final = ("park", "look", "received", "put_back", "drop")
#: How many entries of a waiting room one call drops: about a millisecond of the server's time.
DROP_COUNT: Final = 50


def park(
    claim: Claim, parking: Parking, replaces: Sequence[bytes] = ()
) -> Call[Parked | Turn | Full | Older]:
    """Put a task that met a held lock into the lock's waiting room.

    Args:
        claim: the task's claim.
        parking: how to park it.
        replaces: the ids of those that it replaces, as far as known. The server names the others.
    """
    by, grace = parking.replace or ("", None)
    limit, give_up, arrived = parking.limit, parking.give_up, parking.arrived
    of = claim.keys
    keys = (
        *(of.lock, of.room, of.entries, of.rooms, of.ended, of.deadlines),
        *(of.aside, of.waiters, *of.slots, *of.done_by_each(replaces)),
    )
    args = (
        *(claim.entry_id, parking.entry, parking.kind, "" if limit is None else limit),
        *("" if give_up is None else to_ms(give_up), int(parking.in_front), of.lock_id),
        *(claim.task_id, new_token(), to_ms(claim.done_ttl), to_ms(ENDED_AGAIN)),
        *("" if grace is None else to_ms(grace), by),
        *("" if arrived is None else int(arrived * 1000), int(parking.began)),
        *(int(parking.age * 1000), *replaces),
    )
    wider = partial(_with_notes, partial(park, claim, parking), replaces)
    return Call("park", keys, args, _park_answer, claim.ttl, wider=wider)


def _park_answer(reply: Any, sent_at: float) -> Parked | Turn | Full | Older:
    if reply[0] == b"full":
        return Full()
    if reply[0] == b"older":
        return Older(reply[1].decode(), *(holders.parse(value, None) for value in reply[2:]))
    replaced = dict(entries_in(reply[1]))
    if reply[0] != b"parked":
        return Turn(replaced)
    return Parked(replaced, offered_in(reply[2]), seconds_in(reply[3]))


def look(
    of: LockKeys,
    ttl: float,
    declined: str = "",
    aside_after: float | None = None,
    passed_over: Sequence[str] = (),
) -> Call[Look]:
    """Look after a waiting room, and learn which entry has the turn now, or gives up.

    The entry stays in the room until its task takes the lock, so it is not lost if the caller
    dies.

    Args:
        of: the lock's keys.
        ttl: seconds; they determine how long the server may take to answer.
        declined: the id of an entry that has the turn, but that this caller cannot publish.
        aside_after: seconds until that entry is set aside if still unpublished; None for never.
        passed_over: the ids of other entries that this caller cannot publish.
    """
    keys = (
        *(of.lock, of.room, of.entries, of.rooms, of.ended, of.deadlines),
        *(of.aside, of.waiters, of.wake, *of.slots),
    )
    patience = "" if aside_after is None else to_ms(aside_after)
    args = (
        *(of.lock_id, new_token(), declined),
        *(to_ms(ENDED_AGAIN), patience, to_ms(RESERVE), *passed_over),
    )
    return Call("look", keys, args, _look_answer, ttl)


def _look_answer(reply: Any, sent_at: float) -> Look:
    due, offered, aside, flat = reply
    ended = {entry_id: entries.ended_of(text) for entry_id, text in pairs_in(flat)}
    return Look(seconds_in(due), offered_in(offered), dict(entries_in(aside)), ended)


def note_received(of: LockKeys, entry_id: str, token: str, ttl: float) -> Call[bool]:
    """Note that a worker has the message that was sent for an entry of the room. The answer is
    False if the entry waits for no such message.

    Args:
        of: the lock's keys.
        entry_id: the entry's id.
        token: the token of the turn that the message was sent for. An entry that was parked again
            since then waits for another message.
        ttl: seconds; they determine how long the server may take to answer.
    """
    args = (entry_id, to_ms(RECEIVED_FOR), token)
    return Call("received", (of.entries,), args, is_true, ttl)


def put_back(of: LockKeys, entry_id: str, ttl: float) -> Call[bool]:
    """Put an entry that was set aside back into the room. The answer is False if there is none."""
    keys = (of.room, of.entries, of.aside, of.rooms)
    return Call("put_back", keys, (entry_id, of.lock_id), is_true, ttl)


def drop(
    of: LockKeys, ttl: float, in_favour_of: str, done_ttl: float, ids: Sequence[bytes] = ()
) -> Call[dict[str, str]]:
    """Drop up to `DROP_COUNT` entries: those that wait, then those set aside. Their tasks will not
    run. The caller must store their results; if it does not, a worker does. The answer has the
    parked messages by entry ids. It has fewer than `DROP_COUNT` if no more are left.

    Args:
        of: the lock's keys.
        ttl: seconds; they determine how long the server may take to answer.
        in_favour_of: the id of the task whose duplicates these tasks are, or "".
        done_ttl: seconds for which the tasks' messages may still be on their way.
        ids: the entries to drop. Without any, the server names them.
    """
    keys = (
        *(of.room, of.entries, of.rooms, of.ended, of.deadlines, of.aside),
        *of.done_by_each(ids),
    )
    args = (of.lock_id, in_favour_of, to_ms(done_ttl), DROP_COUNT, *ids)
    wider = partial(_with_notes, partial(drop, of, ttl, in_favour_of, done_ttl), ids)
    return Call("drop", keys, args, _dropped_answer, ttl, wider=wider)


def _with_notes(
    make: Callable[[Sequence[bytes]], Call[T]], known: Sequence[bytes], reply: Any
) -> Call[T] | None:
    if not reply or reply[0] != b"notes":
        return None
    return make([*known, *reply[1:]])


def _dropped_answer(reply: Any, sent_at: float) -> dict[str, str]:
    return dict(entries_in(reply))


def goes_on_elsewhere(claim: Claim, own: Sequence[str]) -> Query[bool]:
    """Whether a delivery's attempt is in the waiting room, or runs as another delivery.

    Args:
        claim: the claim of the delivery, which has ended.
        own: the tokens under which the lock may be kept for that delivery's message or retry.
    """
    of = claim.keys
    commands = [
        ("HEXISTS", of.entries, claim.entry_id),
        *(("GET", key) for key in (of.lock, *of.slots)),
    ]
    return Query(commands, partial(_goes_on, claim, own), of.lock, claim.ttl)


def _goes_on(claim: Claim, own: Sequence[str], replies: list[Any]) -> bool:
    waits, *values = replies
    records = [holders.decode(value) for value in values if isinstance(value, bytes)]
    attempt = (claim.task_id, claim.attempt, claim.nesting)
    return waits == 1 or any(
        (each.get("task_id"), each.get("attempt", 0), each.get("nesting", 0)) == attempt
        and each.get("token") not in (claim.token, *own)
        for each in records
        if each is not None
    )


def forget_ended(of: LockKeys, entry_id: str, ttl: float) -> Query[None]:
    """Forget a replaced entry, whose result is stored."""
    return Query([("HDEL", of.ended, entry_id)], lambda replies: None, of.lock, ttl)


def due_rooms(rooms: Sequence[str], ahead: float, now: float) -> Query[list[tuple[float, str]]]:
    """The waiting rooms that somebody must look at within `ahead` seconds. The answer, in order of
    time, has the seconds until then and the lock's id.

    Args:
        rooms: the `rooms` keys of some buckets, all in one Redis server.
        ahead: seconds.
        now: the server's time, a Unix time in seconds.
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


def take_turn(key: str, seconds: float) -> Query[bool]:
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
