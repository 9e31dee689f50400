"""The calls about a lock: for each script, what is sent and how the reply is read. No I/O."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from . import entries, holders, lost, notes
from .claims import (
    NOT_OURS,
    Acquired,
    Busy,
    Claim,
    Done,
    Extended,
    Extension,
    Place,
    Reservation,
    Reserved,
    Settled,
    to_ms,
)
from .exchange import (
    UNKNOWN_TTL,
    Call,
    Query,
    done_in,
    nothing,
    nothing_of,
    offered_in,
    seconds_in,
)
from .holders import Holder
from .keys import MAX_LIMIT, LockKeys, head_of, runs_key, slots_above
from .suspensions import Suspension, in_force, longest_of, suspension_in, told

#: Seconds for which a freed lock is kept for a waiter.
RESERVE: Final = 0.1
#: The longest that one BLPOP on a wake list blocks, in seconds.
MAX_BLOCK: Final = 5.0
#: Seconds after which a waiter that has not asked again counts as dead.
WAITER_TTL: Final = MAX_BLOCK + 2.0


T = TypeVar("T")

#: The relation of a suspended task to a lock that it could have otherwise: see `acquire.lua`.
SUSPENDED: Final = "suspended"
#: The places of the fence counter in `acquire`'s keys and of `how` in its arguments; in those of
#: `extend`, of the counter above which a missing lock is not taken again, and one above all.
_COUNTER_KEY, _HOW = 1, 6
_LAST_COUNTER, _HIGHEST = 5, 2**53


#: See `Release.stray`.
EXTENSION: Final = 1
REQUEST: Final = 2


class Release(NamedTuple):
    """How a delivery gives back what it holds."""

    note: str = ""  # the done note to leave, see `notes`; "" if the task did not run to its end
    always: bool = False  # leave the note also if no copy of the message was seen
    min_hold: float = 0.0  # the lock stays taken until this many seconds after the acquisition
    #: What of this claim may still be on its way to the server, and must not take the lock when it
    #: comes: `EXTENSION`, `REQUEST` for the lock, their sum, or 0. A request outside tasks is not
    #: refused: a coroutine that is cancelled leaves nothing behind.
    stray: int = 0
    leaves: Place | None = None  # the place in the waiting room that is given up
    publishes: bool = True  # the caller publishes the task of the waiting room that is next
    run_end: str = ""  # how the run ended, see `past.end_text`; "" if there was no run
    pause: float = 0.0  # others must not have the lock for this many seconds from now
    #: The value by which the lock is left to a message of the task, and the seconds for which it
    #: is; only the value's opening if the holder died.
    heir: tuple[str, float] | None = None
    #: The claim's process died: a lock that was left to its attempt is given back too.
    died: bool = False


# -- taking a lock ----------------------------------------------------------------------------


def acquire(
    claim: Claim, how: str = "try", again: str = "", note: str = ""
) -> Call[Acquired | Busy | Done]:
    """Take the lock, or learn why not. Asking again with the same claim is safe.

    `how` is "try", which asks once; "wait", which joins the waiters, and does not take a lock that
    is kept for a woken one; "woken", which asks after a block; or "last", which asks and stops
    waiting. With `again`, of the done notes of this attempt only that of the message with this
    identity keeps it from running, see `notes.NO_MESSAGE`. `note` is the done note to leave, see
    `notes`, if the lock is busy and that ends the task without a run.
    """
    of = claim.keys
    if_busy = ":" if claim.turned_away and how == "try" and not again else ""
    if note:
        if_busy = f"{to_ms(claim.done_ttl)}:{notes.encode(note, claim.sent)}"
    args: tuple[Any, ...]
    args = (claim.value, to_ms(claim.ttl), of.lock_id, claim.entry_id, if_busy, claim.history)
    if how != "try" or again or claim.kept or claim.parent:
        kept = claim.kept and holders.opening_of(claim.kept)
        args += (how, again, to_ms(WAITER_TTL), kept, claim.parent)
    keys = (
        *(of.lock, of.fence, of.waiters, claim.done_key, of.room, of.entries),
        *(of.rooms, of.deadlines, of.sent, of.ended),
        *(claim.runs_key, of.history, of.turned, of.suspended, *of.slots),
    )
    read, undo = partial(_acquire_answer, claim), partial(settle, claim)
    return Call("acquire", keys, args, read, claim.ttl, True, not claim.task_id, undo=undo)


def _acquire_answer(claim: Claim, reply: Any, sent_at: float) -> Acquired | Busy | Done:
    if isinstance(reply, int):
        return Acquired(holders.acquired(claim.value, reply), reply, sent_at)
    kind, value = reply[0], reply[1]
    if kind == b"acquired":
        return Acquired(value.decode(), int(reply[2]), sent_at)
    if kind == b"done":
        return done_in(claim, reply)
    left, relation, at = reply[2], reply[3].decode(), reply[4] / 1000
    remaining = left / 1000 if left >= 0 else math.inf
    if relation == SUSPENDED:
        suspension = suspension_in(value)
        return Busy(None, remaining, relation, at, sent_at, None, True, suspension=suspension)
    holder = holders.parse(value, remaining) if value or relation == "foreign" else None
    for_message = holder is not None and (holder.queued or holder.held_for_retry)
    offered = offered_in(reply[5:]) if len(reply) > 5 else None
    return Busy(holder, remaining, relation, at, sent_at, offered, for_message)


def reserve(claim: Claim, seconds: float) -> Call[Reserved | Busy]:
    """Keep the lock for a message that is about to be sent, or learn who has the lock."""
    of = claim.keys
    keys = (
        *(of.lock, of.room, of.entries, of.rooms, of.deadlines),
        *(of.sent, of.waiters, of.ended, of.suspended, *of.slots),
    )
    args = (claim.value, to_ms(seconds), of.lock_id)
    read, undo = partial(_reserve_answer, claim.task), partial(settle, claim)
    return Call("reserve", keys, args, read, claim.ttl, takes=True, undo=undo)


def _reserve_answer(task: str, reply: Any, sent_at: float) -> Reserved | Busy:
    if reply[0] == b"reserved":
        return Reserved()
    if reply[0] == b"waits":
        task_id = entries.task_id_of(reply[1].decode(errors="replace"))
        waiter = Holder(task=task, task_id=task_id, queued=True)
        return Busy(waiter, 0.0, "other", offered=offered_in(reply[3:]))
    remaining = reply[2] / 1000 if reply[2] >= 0 else math.inf
    holder = holders.parse(reply[1], remaining) if reply[1] else None
    kept = _reservation(reply[1]) if holder is not None and holder.queued else None
    return Busy(holder, remaining, "other", offered=offered_in(reply[3:]), reservation=kept)


def _reservation(value: bytes) -> Reservation | None:
    """The message that a lock is kept for; None if that is not known."""
    record = holders.decode(value) or {}
    token, task_id, since = (record.get(name) for name in ("token", "task_id", "acquired_at"))
    if not token or not task_id or not since:
        return None
    return Reservation(token, task_id, since)


def without_waiters(call: Call[T]) -> Call[T]:
    """The same call by a waiter that no server wakes; what does not wait stays as it is."""
    first, rest = call.args[:_HOW], call.args[_HOW + 1 :]
    if call.script != "acquire" or not rest:
        return call
    says_more = rest[0] or any(rest[2:])  # see `acquire`
    return dataclasses.replace(call, args=(*first, "try", *rest) if says_more else first)


def raise_fence(acquisition: Call[Any], fence: int) -> Call[bool]:
    """Raise the fence counter of an acquisition's bucket: later fences are higher than this one."""
    counter = acquisition.keys[_COUNTER_KEY]
    return Call("raise", (counter,), (fence,), lambda reply, _: bool(reply), acquisition.ttl)


# -- extending a lock -------------------------------------------------------------------------


def extend(extension: Extension) -> Call[Extended]:
    """Extend a lock, or take it again if it has vanished."""
    claim, of = extension.claim, extension.claim.keys
    max_hold = "" if extension.max_hold is None else to_ms(extension.max_hold)
    args: tuple[Any, ...] = (
        *(extension.stored, to_ms(claim.ttl), int(extension.retake)),
        *(extension.fence, max_hold, extension.counter),
    )
    if extension.description is not None:
        args += (holders.description_text(extension.description),)
    return Call(
        "extend", (of.lock, of.fence, of.broken, *of.slots), args, _extend_answer, claim.ttl
    )


def retaking(extension: Call[Extended]) -> Call[Extended]:
    """The same extension, which takes a missing lock again whatever the counter says."""
    before, after = extension.args[:_LAST_COUNTER], extension.args[_LAST_COUNTER + 1 :]
    return dataclasses.replace(extension, args=(*before, _HIGHEST, *after))


def keep_reserved(claim: Claim, seconds: float) -> Call[Extended]:
    """Make a reservation last for this many seconds from now."""
    kept = dataclasses.replace(claim, ttl=seconds)
    call = extend(Extension(kept, claim.opening, 0, retake=False))
    call.ttl = claim.ttl
    return call


def _extend_answer(reply: Any, sent_at: float) -> Extended:
    outcome, counter, *more = reply
    if not more:
        return Extended(int(outcome), int(counter))
    if outcome == NOT_OURS:
        return Extended(NOT_OURS, int(counter), broken_by=holders.breaker_of(more[0]))
    value, left = more
    by = holders.successor_of(value) or Holder()
    return Extended(int(outcome), int(counter), by, left / 1000)


# -- giving a lock back -----------------------------------------------------------------------


def settle(claim: Claim, release: Release = Release()) -> Call[Settled]:  # noqa: B008
    """Release what a claim's token proves a right to: lock, reservation, place. Safe to repeat."""
    of = claim.keys
    keys = (
        *(of.lock, of.waiters, of.wake, claim.done_key, of.fence, of.room, of.rooms),
        *(of.entries, of.deadlines, of.sent, of.ended, claim.runs_key, of.suspended, *of.slots),
    )
    note, always, min_hold, stray, leaves, publishes, run_end, pause, heir, died = release
    args: tuple[Any, ...] = (
        *(claim.opening, note and notes.encode(note, claim.sent), int(always)),
        *(to_ms(claim.done_ttl), to_ms(RESERVE), of.lock_id, int(publishes), run_end),
    )
    if stray or min_hold or leaves or pause or heir or died:
        value, seconds = heir or ("", 0)
        stray = stray if claim.task_id else stray & EXTENSION
        args += (
            *(stray, to_ms(min_hold) if min_hold else 0, *(leaves or ("", "", ""))),
            *(to_ms(pause) if pause else 0, value, to_ms(seconds), claim.entry_id if died else ""),
        )
    return Call("settle", keys, args, _settle_answer, claim.ttl, recurs=not claim.task_id)


def _settle_answer(reply: Any, sent_at: float) -> Settled:
    if isinstance(reply, int):
        return Settled(reply > 0)
    ours, due, *offered = reply
    return Settled(ours > 0, seconds_in(due), offered_in(offered))


def break_lock(
    of: LockKeys,
    ttl: float,
    token: str | None = None,
    by: str | None = None,
    task: str | None = None,
) -> Call[Holder | None]:
    """Take the lock away from its holder, or only from one with this `token`. The answer is that
    holder; None if nobody held the lock, or the value is not ours. `by` says who breaks it, by
    default this process's user and host. The history of `task`, which should have it, records the
    break.
    """
    keys = (
        *(of.lock, of.broken, of.waiters, of.wake, of.room, of.rooms),
        *(runs_key(of.history, task or ""), *of.slots),
    )
    opening = "" if token is None else holders.opening_of(token)
    breaker = holders.breaker_text(holders.user_here() if by is None else by)
    return Call("break", keys, (of.lock_id, opening, breaker), _broken_answer, ttl)


def _broken_answer(reply: Any, sent_at: float) -> Holder | None:
    broken = (holders.parse(value, None) for value in reply)
    return next((holder for holder in broken if holder is not None), None)


# -- done notes, and the count of duplicates --------------------------------------------------


def mark_done(claim: Claim, kind: str = notes.EXPECTS_RESULT) -> Call[Done | None]:
    """Leave the done note of an attempt that ends without the lock; "replaced" stays. The answer is
    the note that a run or another copy of the message has left, if one surely has.
    """
    return _note(claim, notes.encode(kind, claim.sent), claim.done_ttl, partial(_noted, claim))


def _noted(claim: Claim, reply: Any, sent_at: float) -> Done | None:
    return done_in(claim, reply) if reply and claim.sent else None


def note_replaced(claim: Claim, attempt: int, by: str, seconds: float) -> Call[None]:
    """Tell a later attempt of this task, whose message takes so many seconds to arrive, not to run.
    `by` names the task that replaces this one, as `holders.successor_text`.
    """
    later = dataclasses.replace(claim, attempt=attempt)
    return _note(later, notes.encode_replaced(by), seconds + claim.done_ttl, nothing_of)


def _note(claim: Claim, note: str, seconds: float, read: Callable[[Any, float], T]) -> Call[T]:
    keys = (claim.keys.lock, claim.done_key)
    return Call("note", keys, (note, to_ms(seconds)), read, claim.ttl)


def forget(keys: Sequence[str], most: float) -> list[Call[None]]:
    """Delete these done notes: the broker will not deliver a copy of their messages. Lasting notes
    and notes of replaced tasks stay, see `notes`; so does a note that expires in more than `most`
    seconds: it was left later. Makes one call for each bucket.
    """
    buckets: dict[str, list[str]] = {}
    for key in keys:
        buckets.setdefault(head_of(key), []).append(key)
    args = (to_ms(most),)
    return [Call("forget", tuple(each), args, nothing_of, UNKNOWN_TTL) for each in buckets.values()]


def turn_away(claim: Claim, fence: int | None, suspended: bool = False) -> Call[None]:
    """Count a duplicate that ended without a run, and was not counted when it asked; `fence` is
    that of the run that had the lock, if known, and `suspended` says that a suspension ended it.
    """
    of = claim.keys
    keys = (of.lock, claim.runs_key, of.turned, of.suspended, *of.slots)
    args = (fence or "", of.lock_id, int(suspended))
    return Call("turn_away", keys, args, nothing_of, claim.ttl)


def mark_lost(of: LockKeys, fence: int, value: str, why: str, now: float) -> Query[None]:
    """Tell operators that the run with this fence and this stored value goes on without its lock,
    for `lost.MARK_LIVES` seconds. `now` is Unix time by the server's clock.
    """
    commands = [
        ("HSET", of.lost, fence, lost.mark_text(value, why, now)),
        ("PEXPIRE", of.lost, to_ms(lost.MARK_LIVES)),
    ]
    return Query(commands, nothing, of.lock)


def unmark_lost(of: LockKeys, fence: int) -> Query[None]:
    """Tell operators that the run with this fence has ended."""
    return Query([("HDEL", of.lost, fence)], nothing, of.lock)


# -- what operators suspend -------------------------------------------------------------------


def suspend(
    lists: Sequence[str], rooms: Sequence[str], what: Suspension, seconds: float
) -> Call[Suspension | None]:
    """Suspend a task or a lock, or with 0 seconds end that, in some buckets: these are the keys of
    their lists of suspensions and of their rooms, all of which one script may name. The answer is
    the suspension that was ended, or None.
    """
    keys, args = (*lists, *rooms), (what.target, to_ms(seconds) if seconds else 0, told(what))
    return Call("suspend", keys, args, lambda reply, _: suspension_in(reply), UNKNOWN_TTL)


def kept_off(of: LockKeys, ttl: float, task: str) -> Query[Suspension | None]:
    """What keeps this task from the lock for longest."""
    commands = [("TIME",), ("GET", of.suspended)]
    return Query(commands, partial(_kept_off, task, of.name), of.lock, ttl)


def _kept_off(task: str, name: str, replies: list[Any]) -> Suspension | None:
    (seconds, micros), text = replies
    found = in_force([text], int(seconds) + int(micros) / 1e6)
    return longest_of(found, task, name)


# -- who holds a lock -------------------------------------------------------------------------


def slots_reached(of: LockKeys, ttl: float, is_meant: Callable[[bytes], bool]) -> Query[int]:
    """How many slots the lock must have for all whose values are meant, as an earlier `lock_limit`
    may have been higher; 0 if none above these keys' slots is meant.
    """
    above = slots_above(of)
    last = partial(_last_meant, MAX_LIMIT - len(above), is_meant)
    commands = [("MGET", *above)] if above else []
    return Query(commands, last, of.lock, ttl)


def _last_meant(below: int, is_meant: Callable[[bytes], bool], replies: list[Any]) -> int:
    numbered = enumerate(itertools.chain.from_iterable(replies), below + 1)
    return max((n for n, each in numbered if isinstance(each, bytes) and is_meant(each)), default=0)


def holder_of(of: LockKeys, ttl: float) -> Query[Holder | None]:
    commands = [(what, slot) for slot in (of.lock, *of.slots) for what in ("GET", "PTTL")]
    return Query(commands, _first_holder, of.lock, ttl)


def in_the_way(of: LockKeys, ttl: float) -> Query[tuple[Holder | None, Suspension | None]]:
    """Who holds the lock, or, if nobody does, what keeps a `RedisLock` from it."""
    holder, suspension = holder_of(of, ttl), kept_off(of, ttl, "")
    commands = [*suspension.commands, *holder.commands]
    return Query(commands, partial(_in_the_way, holder, suspension), of.lock, ttl)


def _in_the_way(
    holder: Query[Holder | None], suspension: Query[Suspension | None], replies: list[Any]
) -> tuple[Holder | None, Suspension | None]:
    count = len(suspension.commands)
    found = holder.read(replies[count:])
    return found, suspension.read(replies[:count]) if found is None else None


def _first_holder(replies: list[Any]) -> Holder | None:
    in_slots = map(_holder_in, replies[::2], replies[1::2])
    return next((holder for holder in in_slots if holder is not None), None)


def _holder_in(value: Any, left: int) -> Holder | None:
    if isinstance(value, Exception):
        value = b""  # a key of another type: the lock is held
    return holders.parse(value, left / 1000 if left >= 0 else None)
