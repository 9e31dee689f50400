"""The locks of a server: taking, keeping and giving back.

What must get through, such as `acquire` and `settle`, is tried again, within bounds that come from
the lock's ttl. The rest is tried once, and the caller decides.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from ..errors import LockUnavailable
from ..protocol import holders, notes, past, wire
from ..protocol.claims import (
    NOT_OURS,
    Acquired,
    Busy,
    Claim,
    Done,
    Extended,
    Extension,
    Reserved,
    Settled,
    to_ms,
)
from ..protocol.clock import clock
from ..protocol.holders import Holder
from ..protocol.keys import LockKeys, runs_of
from . import lua
from .restarts import HeldOff
from .server import Server, is_not_master


class Locks:
    """The locks of one server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def acquire(
        self,
        claim: Claim,
        how: str = "try",
        hold_off: float | None = None,
        again: bool = False,
        note: str = "",
    ) -> Acquired | Busy | Done:
        """Take the lock or learn why not.

        Args:
            claim: the claim. Asking again with the same one is safe.
            how: "try" once, "wait", "woken" after a wait, or "last" before giving up a wait. "wait"
                does not take a lock that is kept for a waiter that was woken.
            hold_off: seconds that the caller can wait for the holders of a restarted server;
                None for as long as that takes, a third of the ttl.
            again: run also if this attempt is known to have run before.
            note: the kind of done note to leave if the lock is busy and the task thus ends without
                a run, see `notes`; "" for none.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        keys, arguments = wire.acquire_question(claim, how, again, note)
        give_up = clock() + (claim.ttl / 3 + 1 if hold_off is None else hold_off)
        while True:
            try:
                sent_at, reply = self._server.persist(
                    self._server.once, claim.ttl, lua.ACQUIRE, keys, arguments, True
                )
                return wire.acquire_reply(reply, claim, sent_at)
            except HeldOff as exc:
                if clock() + exc.seconds > give_up:
                    raise exc.for_users(claim.keys.lock) from None
                pause = exc.seconds
            time.sleep(pause)

    def acquire_when_woken(
        self, claim: Claim, seconds: float, how: str = "woken"
    ) -> Acquired | Busy | Done:
        """Block until the lock is handed on, at most this many seconds and `wire.MAX_BLOCK`; then
        take it or learn why not. See `acquire`.

        The acquire request is pipelined behind the block, so a waiter that is woken has the lock
        without another round trip. A waiter whose block times out asks like one that was woken: at
        worst it takes a lock that is kept for another waiter, which then waits on.

        Raises:
            LockUnavailable: the server did not answer in time, or has just come back.
        """
        keys, arguments = wire.acquire_question(claim, how)
        try:
            with self._server.connection(claim.keys.lock, claim.ttl, "wait") as connection:
                self._server.watch.admit(claim.ttl)
                sent_at = clock()
                longest = max(min(seconds, wire.MAX_BLOCK), 0.01)
                slept, reply = self._server.call_when_woken(
                    connection, claim.keys.wake, longest, claim.ttl, lua.ACQUIRE, keys, arguments
                )
                answer = wire.acquire_reply(reply, claim, sent_at)
                if isinstance(slept, ResponseError) and isinstance(answer, Busy):
                    raise slept  # without a sleep, the caller must not ask again at once
                # Another thread may have noticed a new server meanwhile.
                self._server.watch.admit(claim.ttl)
        except HeldOff as exc:
            raise exc.for_users(claim.keys.lock) from None
        return answer

    def reserve(self, claim: Claim, seconds: float) -> Reserved | Busy:
        """Keep the lock for a message that is about to be sent, or learn who has it.

        Raises:
            LockUnavailable: the server did not answer in time, or has just come back, and it is
                not known yet who holds its locks.
        """
        names = claim.keys
        keys = (
            *(names.lock, names.room, names.entries, names.rooms, names.deadlines),
            *(names.aside, names.waiters, names.ended, *names.slots),
        )
        arguments = (claim.value, to_ms(seconds), names.mark)
        try:
            _, reply = self._server.persist(
                self._server.once, claim.ttl, lua.RESERVE, keys, arguments, True
            )
        except HeldOff as exc:
            raise exc.for_users(claim.keys.lock) from None
        return wire.reserve_reply(reply)

    def keep_reserved(self, claim: Claim, seconds: float) -> bool:
        """Let a reservation last for this many seconds. False if it is gone.

        Raises:
            LockUnavailable: the server did not answer.
        """
        kept = dataclasses.replace(claim, ttl=seconds)
        extension = Extension(kept, claim.opening, 0, retake=False)
        (reply,) = self.extend([extension], claim.ttl, "main")
        if isinstance(reply, LockUnavailable):
            raise reply
        return reply.outcome != NOT_OURS

    def extend(
        self,
        extensions: Sequence[Extension],
        ttl: float | None = None,
        purpose: str = "heartbeat",
    ) -> list[Extended | LockUnavailable]:
        """Extend several locks in one round trip.

        Args:
            extensions: the locks.
            ttl: the ttl, in seconds, that says how long the server may take to answer; None for
                the shortest of these locks.
            purpose: whose connections to use.

        Returns:
            For each: `Extended`, or `LockUnavailable`.

        Raises:
            LockUnavailable: the server could not be asked at all.
        """
        calls = [wire.extend_question(each) for each in extensions]
        ttl = min(e.claim.ttl for e in extensions) if ttl is None else ttl
        with self._server.connection(extensions[0].claim.keys.lock, ttl, purpose) as connection:
            replies = self._server.call_all(connection, lua.EXTEND, calls)
            if any(is_not_master(reply) for reply in replies):
                connection.disconnect()
        return [
            LockUnavailable(e.claim.keys.lock, None, str(reply))
            if isinstance(reply, Exception)
            else wire.extend_reply(reply)
            for e, reply in zip(extensions, replies, strict=True)
        ]

    def settle(
        self,
        claim: Claim,
        note: str = "",
        always: bool = False,
        once: bool = False,
        min_hold: float = 0.0,
        stray: bool = False,
        take_out: str = "",
        aside: bool = False,
        publishes: bool = True,
        run_end: str = "",
        purpose: str = "main",
    ) -> Settled:
        """Give back what the claim has, if it is still its own. Safe to call again.

        Args:
            claim: the claim, by its token: to the lock, or to what is kept for a message.
            note: the kind of done note to leave, see `notes`; "" for none: the attempt did not run
                to its end.
            always: leave the note also if no copy of the message was seen.
            once: try only once.
            min_hold: seconds since the acquisition for which the lock is kept on, for nobody.
            stray: an extension of this claim may still be on its way to the server.
            take_out: the id of the entry that leaves the waiting room, or "".
            aside: that entry is set aside, not dropped.
            publishes: the caller publishes the message of the task that then has the turn.
            run_end: how the run ended, see `past.end_text`; "" if there was none.
            purpose: whose connections to use.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        of = claim.keys
        names = (
            *(of.lock, of.waiters, of.wake, claim.done_key, of.fence, of.room),
            *(of.rooms, of.entries, of.deadlines, of.aside, of.ended, claim.runs_key, *of.slots),
        )
        keys = wire.keys_of(claim, names)
        arguments: tuple[Any, ...] = (
            *(claim.opening, notes.encode(note, claim.sent), int(always)),
            *(to_ms(claim.done_ttl), to_ms(wire.RESERVE), of.mark, int(publishes)),
            run_end,
        )
        if stray or min_hold or take_out or (run_end and not past.is_whole(run_end)):
            arguments += (int(stray), to_ms(min_hold) if min_hold else 0, take_out, int(aside))
        if once:
            _, reply = self._server.once(claim.ttl, lua.SETTLE, keys, arguments, purpose=purpose)
        else:
            reply = self._server.script(claim.ttl, lua.SETTLE, keys, arguments, purpose)
        if isinstance(reply, int):
            return Settled(reply > 0)
        ours, due, *offered = reply
        return Settled(ours > 0, wire.seconds(due), wire.offered(offered))

    def leave(
        self, claim: Claim, value: str, ttl: float, run_end: str = "", note: bool = True
    ) -> bool:
        """Replace our value with another one, for at most this many seconds. The attempt ends, as
        `run_end` says, see `past.end_text`, and if wanted a done note for copies of the message.
        False if the value was not ours, or a newer run is to have the lock.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        keys = (claim.keys.lock, claim.done_key, claim.runs_key, *claim.keys.slots)
        arguments = (claim.opening, value, to_ms(ttl), to_ms(claim.done_ttl * note), run_end)
        return bool(self._server.script(claim.ttl, lua.HOLD, keys, arguments))

    def break_lock(
        self, keys: LockKeys, ttl: float, token: str | None = None, by: str | None = None
    ) -> Holder | None:
        """Take the lock away from whoever holds it. None if there was none, or none of ours.

        Args:
            keys: the lock's keys.
            ttl: seconds, which say how long the server may take to answer.
            token: break the lock only if it is held under this one; None for any.
            by: who breaks it, for the holder; None for this process's user and host.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        names = (
            *(keys.lock, keys.broken, keys.waiters, keys.wake, keys.room, keys.rooms),
            *(runs_of(keys.history, ""), *keys.slots),
        )
        arguments = (
            *(keys.mark, "" if token is None else holders.opening_of(token)),
            holders.breaker_text(holders.user_here() if by is None else by),
        )
        values = self._server.script(ttl, lua.BREAK, names, arguments)
        broken = (holders.parse(value, None) for value in values)
        return next((holder for holder in broken if holder is not None), None)

    def holder(self, keys: LockKeys, ttl: float) -> Holder | None:
        """Who holds the lock.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        slots = (keys.lock, *keys.slots)
        commands = [(what, slot) for slot in slots for what in ("GET", "PTTL")]
        replies = self._server.persist(
            lambda ttl: self._server.ask(commands, keys.lock, ttl, wrong_type=True), ttl
        )
        found = map(wire.holder_of, replies[::2], replies[1::2])
        return next((holder for holder in found if holder is not None), None)
