"""How the scripts are called and their replies are read, once for each. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from redis.exceptions import ResponseError

from ..servers.lua import RecurringKeys
from . import entries as parked
from . import holders, notes
from .claims import (
    NOT_OURS,
    Acquired,
    Busy,
    Claim,
    Done,
    Extended,
    Extension,
    Offered,
    Reservation,
    Reserved,
    to_ms,
)
from .holders import Holder

#: Seconds for which a freed lock is kept for a waiter.
RESERVE: Final = 0.1
#: The longest single block on a wake list, in seconds.
MAX_BLOCK: Final = 5.0
#: Seconds after which a waiter that has not asked again counts as dead.
WAITER_TTL: Final = MAX_BLOCK + 2.0


def acquire_question(
    claim: Claim, how: str = "try", again: bool = False, note: str = ""
) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """The keys and arguments of `acquire.lua`."""
    keys = claim.keys
    if_busy = ":" if claim.turned_away and how == "try" and not again else ""
    if note:
        if_busy = f"{to_ms(claim.done_ttl)}:{notes.encode(note, claim.sent)}"
    arguments: tuple[Any, ...] = (
        *(claim.value, claim.ttl_ms, keys.mark, claim.entry_id, if_busy, claim.history),
    )
    if how != "try" or again or claim.kept or claim.parked or claim.parent:
        kept = holders.opening_of(claim.kept) if claim.kept else ""
        arguments += (how, int(again), to_ms(WAITER_TTL), kept, claim.parent)
    names = (
        *(keys.lock, keys.fence, keys.waiters, claim.done_key, keys.room, keys.entries),
        *(keys.rooms, keys.deadlines, keys.aside, keys.ended, claim.runs_key, *keys.slots),
    )
    return keys_of(claim, names), arguments


def keys_of(claim: Claim, names: tuple[str, ...]) -> tuple[str, ...]:
    """Keys in the form that is packed fastest: those of a `RedisLock` are the same each time."""
    return names if claim.task_id else RecurringKeys(names)


def acquire_reply(reply: list[Any] | int, claim: Claim, sent_at: float) -> Acquired | Busy | Done:
    if isinstance(reply, int):
        return Acquired(holders.acquired(claim.value, reply), reply, sent_at)
    kind, value = reply[0], reply[1]
    if kind == b"acquired":
        return Acquired(value.decode(), int(reply[2]), sent_at)
    if kind == b"done":
        age = claim.done_ttl - reply[2] / 1000 if reply[2] >= 0 else 0.0
        return Done(notes.decode(value), age)
    left, relation, at = reply[2], reply[3].decode(), reply[4] / 1000
    remaining = left / 1000 if left >= 0 else math.inf
    holder = holders.parse(value, remaining) if value or relation == "foreign" else None
    is_kept = holder is not None and (holder.queued or holder.held_for_retry)
    for_message = is_kept and not holders.is_turn(value)
    return Busy(holder, remaining, relation, at, sent_at, offered(reply[5:]), for_message)


def extend_question(extension: Extension) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """The keys and arguments of `extend.lua`."""
    claim, keys = extension.claim, extension.claim.keys
    max_hold = "" if extension.max_hold is None else to_ms(extension.max_hold)
    arguments = (
        *(extension.stored, claim.ttl_ms, int(extension.retake)),
        *(extension.fence, max_hold, extension.counter),
    )
    return (keys.lock, keys.fence, keys.broken, *keys.slots), arguments


def extend_reply(reply: list[Any]) -> Extended:
    outcome, counter, *more = reply
    if not more:
        return Extended(int(outcome), int(counter))
    if outcome == NOT_OURS:
        return Extended(NOT_OURS, int(counter), broken_by=holders.breaker_of(more[0]))
    value, left = more
    by = holders.successor_of(value) or Holder()
    return Extended(int(outcome), int(counter), by, left / 1000)


def reserve_reply(reply: list[Any]) -> Reserved | Busy:
    kind = reply[0]
    if kind == b"reserved":
        return Reserved()
    remaining = reply[2] / 1000 if reply[2] >= 0 else math.inf
    holder = holders.parse(reply[1], remaining)
    of = _reservation(reply[1]) if holder is not None and holder.queued else None
    return Busy(holder, remaining, "other", offered=offered(reply[3:]), reservation=of)


def _reservation(value: bytes) -> Reservation | None:
    """For which message a lock is kept; None for a turn, which lasts for seconds."""
    record = holders.decode(value) or {}
    token, task_id, since = (record.get(name) for name in ("token", "task_id", "acquired_at"))
    if not token or not task_id or not since or holders.is_turn(value):
        return None
    return Reservation(token, task_id, since)


def offered(reply: Sequence[Any]) -> Offered | None:
    if not reply:
        return None
    kind, entry_id, entry, token, offers = reply
    text = entry.decode()
    return Offered(
        entry_id=entry_id.decode(),
        entry=parked.parked_of(text),
        token=token.decode(),
        arrived=parked.arrived_at(text),
        publish=kind != b"reserved",
        again=offers > 0,
    )


def holder_of(value: Any, left: int) -> Holder | None:
    """The holder of a key, from its `GET` and `PTTL`."""
    if isinstance(value, ResponseError):
        value = b""  # held, by something of another type
    return holders.parse(value, left / 1000 if left >= 0 else None)


def pairs(flat: Sequence[bytes]) -> Iterator[tuple[str, str]]:
    texts = [text.decode(errors="replace") for text in flat]
    return zip(texts[::2], texts[1::2], strict=True)


def entries_of(flat: Sequence[bytes]) -> list[tuple[str, str]]:
    """The ids of a hash of entries, and what was parked."""
    return [(each, parked.parked_of(text)) for each, text in pairs(flat)]


def seconds(ms: int) -> float | None:
    return ms / 1000 if ms >= 0 else None
