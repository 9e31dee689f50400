"""A lease: one acquisition of a lock."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from ..errors import LockLost, LockUnavailable
from . import holders
from .claims import NOT_OURS, RETAKEN, Acquired, Busy, Claim, Done, Extended, Extension, Settled
from .clock import clock
from .greenlets import AT_ONCE, native_lock, teller_here
from .heartbeat import RETRY_EVERY, heartbeat
from .holders import Holder
from .log import fields, get_logger
from .store import Store
from .wire import MAX_BLOCK

logger = get_logger()

#: The part of the ttl between two extensions: a third, less a little, so that a holder finds out
#: that the server came back empty before anybody else may take a lock there.
BEAT_EVERY: Final = 0.3
#: Why a lock is lost if the server says no more than that it is.
GONE: Final = "another holder has it or may have had it, or it lapsed"
#: Seconds between two extensions, at most, of one who may be replaced, and so is to hear of it.
LISTEN_EVERY: Final = 1.0
#: Seconds between looks at a key whose owner, not one of us, wakes nobody.
FOREIGN: Final = 0.5


def beat_every(ttl: float, listens: bool) -> float:
    """Seconds between two extensions."""
    return min(ttl * BEAT_EVERY, LISTEN_EVERY) if listens else ttl * BEAT_EVERY


class Heir(NamedTuple):
    """To whom a lock is left: what is to stand there instead of what does, and for how many
    seconds.
    """

    value: Callable[[str], str]
    seconds: float


class Lease:
    """One delivery's acquisition of a lock, from the claim to the release.

    The right to the lock ends, on this process's own clock, ttl after the last successful
    acquire or extend was *sent*. What `self.lock` is in a task.

    Attributes:
        key: the lock's whole key in Redis.
        token: what proves the ownership.
        ttl: seconds that the lock outlives a dead holder.
        fence: an int that rises with every acquisition of the key. Hand it to the resource,
            which refuses a lower one than it has seen: that, and not the lock, gives correctness
            (Kleppmann, "How to do distributed locking", 2016). 0 while not acquired.
        heir: the task's next message, to which the lock is left instead of being released.
        replaced_by: the task in whose favour the run is to end, or None.
        lost_because: why the lock was lost, for people.
        loss_is_told: whoever is to hear of the loss has.
    """

    # Defaults of the class: one of these is made for each task that runs, and few change them.
    fence = 0
    acquired_at = deadline = next_beat = 0.0
    heir: Heir | None = None
    replaced_by: Holder | None = None
    lost_because = ""
    loss_is_told = False
    _stored = ""
    _counter = 0
    _lost = _released = _asked = _troubled = False
    _teller = AT_ONCE
    _unanswered = False  # an extension may reach the server at any time

    def __init__(
        self,
        store: Store,
        claim: Claim,
        *,
        max_hold: float | None = None,
        beats: bool = True,
        listens: bool = False,
        on_lost: Callable[[Lease], None] | None = None,
        on_extended: Callable[[Lease, float, bool], None] | None = None,
    ) -> None:
        self.store = store
        self.claim = claim
        self.key = claim.keys.lock
        self.token = claim.token
        self.ttl = claim.ttl
        self._beat_every = beat_every(claim.ttl, listens)
        self._max_hold = max_hold
        self._beats = beats
        self._on_lost = on_lost
        self._on_extended = on_extended
        self._pid = os.getpid()
        self._mutex = native_lock()

    def __repr__(self) -> str:
        return f"<Lease of {self.key} fence={self.fence} lost={self._lost}>"

    # -- for the body ---------------------------------------------------------------------

    @property
    def lost(self) -> bool:
        """True once ownership can no longer be confirmed, or a newer run waits for this one to end;
        and then for good.

        Past the deadline the server is asked once more, which may take a twelfth of the ttl.
        """
        if self._lost or self.replaced_by is not None:
            return True
        if not self.fence:
            return False
        if not self._released and clock() >= self.deadline:
            if self.inherited:
                return True  # in a forked child nobody keeps track of it, or may extend it
            self._confirm()
        return self._lost

    def ensure(self) -> None:
        """Go on only as the lock's holder.

        Raises:
            LockLost: the lock was lost.
        """
        if self.lost:
            raise LockLost(self.key, holders.parse(self._stored.encode(), None))

    @property
    def inherited(self) -> bool:
        """Whether this process is a fork of the one that holds the lock."""
        return self._pid != os.getpid()

    @property
    def given_back(self) -> bool:
        """Whether there is nothing of ours on the server, as far as we know."""
        return self._released or not self._asked

    @property
    def is_held(self) -> bool:
        """Whether this process takes itself for the holder. Does not ask the server."""
        if self.given_back or self.inherited or self._lost:
            return False
        return self.fence > 0 and clock() < self.deadline

    # -- taking and giving back -----------------------------------------------------------

    def take(
        self,
        how: str = "try",
        hold_off: float | None = None,
        again: bool = False,
        noted: bool = False,
    ) -> Acquired | Busy | Done:
        """One try to take the lock. See `Locks.acquire`.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        self._asked = True
        reply = self.store.locks.acquire(self.claim, how, hold_off, again, noted)
        if isinstance(reply, Acquired):
            self._taken(reply, reply.sent_at)
        else:
            self._asked = False
        return reply

    def take_when_woken(self, seconds: float, how: str = "woken") -> Acquired | Busy | Done | None:
        """Sleep until the lock is handed on, or for so many seconds, and try to take it then. See
        `Locks.acquire_when_woken`.

        Returns:
            None if the answer was heard so late that the right has ended: ask again.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        self._asked = True
        reply = self.store.locks.acquire_when_woken(self.claim, seconds, how)
        if not isinstance(reply, Acquired):
            self._asked = False
            return reply
        # The right counts from before the sleep: there is no knowing when it ended.
        now = clock()
        if now >= reply.sent_at + self.ttl:
            return None
        self._taken(reply, now)
        return reply

    def _taken(self, reply: Acquired, at: float) -> None:
        self.fence = reply.fence
        self._stored = reply.value
        self._counter = reply.fence
        self.acquired_at = at
        self._renewed(reply.sent_at)
        if self._beats:
            self._teller = teller_here()
            heartbeat.add(self)

    def wait(
        self,
        timeout: float | None,
        on_busy: Callable[[Busy], None] | None = None,
        for_message: bool = True,
    ) -> Acquired | Busy | Done:
        """Wait until the lock is taken. Woken by the release, and when the holder's life ends.

        Args:
            timeout: seconds; None waits for ever.
            on_busy: told of each answer that somebody else has the lock.
            for_message: wait also while the lock is kept for a message in the queue.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        give_up = None if timeout is None else clock() + timeout
        reply: Acquired | Busy | Done | None = None
        is_listed = False  # among the lock's waiters, of whom a release wakes one
        while True:
            left = None if give_up is None else max(give_up - clock(), 0.0)
            goes_on = left != 0
            if reply is None or is_listed is not goes_on:
                reply = self.take("wait" if goes_on else "last", left)
                is_listed = goes_on
            # "own" is another copy of a task's message that got the lock: it is not waited for.
            if isinstance(reply, Busy) and on_busy is not None:
                on_busy(reply)
            if not isinstance(reply, Busy) or not goes_on or reply.relation == "own":
                return reply
            if reply.for_message and not for_message:
                reply, is_listed = self.take("last", left), False  # it waits here no more
                if not isinstance(reply, Busy) or reply.relation == "own" or reply.for_message:
                    return reply
                if on_busy is not None:
                    on_busy(reply)
                continue
            # A holder that dies sends no wake-up: look again when its lock can have lapsed.
            pause = min(reply.remaining + 0.001, self.ttl / 3, MAX_BLOCK)
            if reply.relation == "foreign":
                pause = min(pause, FOREIGN)
            is_last = left is not None and pause >= left
            if left is not None:
                pause = min(pause, left)
            try:
                reply = self.take_when_woken(pause, "last" if is_last else "woken")
                is_listed = not is_last
            except LockUnavailable:
                time.sleep(min(pause, RETRY_EVERY))
                reply = None  # ask: that says so, after its tries

    def release(self, note: str = "", always: bool = False, min_hold: float = 0.0) -> bool:
        """Give the lock back, as a holder that publishes no task. See `settle`.

        Returns:
            Whether the lock was still ours.
        """
        settled = self.settle(note, always, min_hold, publishes=False)
        return settled is not None and settled.ours

    def settle(
        self,
        note: str = "",
        always: bool = False,
        min_hold: float = 0.0,
        take_out: str = "",
        publishes: bool = True,
    ) -> Settled | None:
        """Give the lock back. Safe to call twice, late, or by a loser. See `Locks.settle`.

        Returns:
            What the server said; None if it was not asked, or did not answer.
        """
        if not self._may_give_back():
            return None
        try:
            # Never confirmed: the server may have taken it and its answer got lost.
            reply = self.store.locks.settle(
                self.claim,
                note,
                always,
                once=not self.fence,
                min_hold=min_hold,
                stray=self._unanswered,
                take_out=take_out,
                publishes=publishes,
            )
        except LockUnavailable as exc:
            self._released = True
            self._could_not_release(exc)
            return None
        self._released = True
        return reply._replace(ours=reply.ours and not self._lost)

    def hold(self, seconds: float) -> bool:
        """Leave the lock to the task's next attempt, which starts in this many seconds.

        Returns:
            Whether the lock was still ours.
        """
        return self.leave_to(Heir(holders.held_for_retry, seconds + self.ttl))

    def leave_to(self, heir: Heir) -> bool:
        """Leave the lock to a message of the task's own.

        Returns:
            Whether the lock was still ours.
        """
        if not self._may_give_back():
            return False
        try:
            ours = self.store.locks.leave(self.claim, heir.value(self._stored), heir.seconds)
        except LockUnavailable as exc:
            logger.warning(
                "redislock: could not keep %s for the retry, it lapses within %g s: %s",
                self.key, self.ttl, exc.reason,
            )  # fmt: skip
            ours = False
        self._released = True
        return ours

    def _could_not_release(self, error: LockUnavailable) -> None:
        # If the lock was never confirmed, whoever asked for it says that it could not be taken.
        logger.log(
            logging.WARNING if self.fence else logging.DEBUG,
            "redislock: could not release %s, it lapses within %g s: %s",
            self.key, self.ttl, error.reason,
        )  # fmt: skip

    def _may_give_back(self) -> bool:
        if self.given_back or self.inherited:
            return False
        # The heartbeat first: an extension sent after the release could revive the key.
        if heartbeat.discard(self):
            self._unanswered = True  # as far as we know: of what is discarded we are not told
        return True

    def report(self) -> dict[str, Any]:
        """What this process knows of it, as plain data, without asking the server."""
        now = clock()
        holder = self._as_holder
        return {
            "key": self.key,
            "task": holder.task,
            "task_id": holder.task_id,
            "attempt": holder.attempt,
            "pid": self._pid,
            "fence": self.fence,
            "held": not self._lost and now < self.deadline,
            "held_for": round(now - self.acquired_at, 3),
            "confirmed_ago": round(now - (self.deadline - self.ttl), 3),
            "ttl": self.ttl,
        }

    # -- for the heartbeat ----------------------------------------------------------------

    def extension(self, now: float) -> Extension:
        """What an extension that is sent now says. While the right lasts, a lock that vanished
        is taken again.
        """
        retake = now < self.deadline
        return Extension(self.claim, self._stored, self.fence, retake, self._counter)

    def may_extend(self, now: float) -> bool:
        """Whether the lock has not been held for longer than it may."""
        return self._max_hold is None or now < self.acquired_at + self._max_hold

    def stop_extending(self) -> None:
        """The lock was held for `max_hold`: let it lapse, and be lost then."""
        if clock() >= self.deadline:
            heartbeat.discard(self)
            self.mark_lost(f"held for longer than {self._max_hold:g} s")
            return
        if self.next_beat != self.deadline:
            self._warn(
                "redislock: %s was held for longer than %g s and is not extended any more",
                self.key, self._max_hold,
            )  # fmt: skip
        self.next_beat = self.deadline

    def beat_succeeded(self, sent_at: float, reply: Extended) -> None:
        self._counter = reply.counter
        # Who was woken has had it for a shorter time than the right counts from.
        due = max(self.deadline - self.ttl + self._beat_every, self.acquired_at)
        late = max(sent_at - due, 0.0)
        retaken = reply.outcome == RETAKEN
        if retaken:
            self._warn(
                "redislock: %s had vanished from the server and was taken again; nobody else"
                " had it", self.key, extra=self._fields("recovered", reason="retaken"),
            )  # fmt: skip
        elif self._troubled:
            answers = "redislock: the server answers again, %s is still ours"
            self._teller.tell(partial(logger.info, answers, self.key))
        self._troubled = False
        self._renewed(sent_at)
        if reply.replaced_by is not None:
            self._tell_replaced(reply.replaced_by)
        if self._on_extended is not None:
            self._teller.tell(partial(self._on_extended, self, late, retaken))

    def _warn(self, text: str, *arguments: Any, **more: Any) -> None:
        self._teller.tell(partial(logger.warning, text, *arguments, **more))

    @property
    def _as_holder(self) -> Holder:
        """The holder, as it stands on the server."""
        return holders.parse(self._stored.encode(), None) or Holder()

    def _fields(self, outcome: str, **more: Any) -> dict[str, Any]:
        """What its log lines say to machines: of whom the lock is, if a task holds it."""
        own = self._as_holder
        return fields(
            outcome, self.key, task=own.task, task_id=own.task_id, attempt=own.attempt,
            fence=self.fence, **more,
        )  # fmt: skip

    def beat_denied(self) -> None:
        heartbeat.discard(self)
        self.mark_lost(GONE)

    def _tell_replaced(self, by: Holder) -> None:
        with self._mutex:
            told, self.replaced_by = self.replaced_by is not None, by
            if told or self._lost or self._released:
                return
        self.lost_because = f"{by.task_id} waits to take its place"
        self._teller.tell(partial(self._say_replaced, by))

    def _say_replaced(self, by: Holder) -> None:
        logger.warning(
            "redislock: %s is to end: %s waits to take its place and %s",
            self._as_holder, by.task_id, self.key,
            extra=self._fields("to be replaced", holder=by),
        )  # fmt: skip
        if self._on_lost is not None:
            self._on_lost(self)

    def went_unanswered(self) -> None:
        self._unanswered = True

    def beat_failed(self, error: LockUnavailable, again_at: float) -> None:
        if clock() >= self.deadline:
            heartbeat.discard(self)
            self.mark_lost(error.reason)
            return
        if not self._troubled:
            self._warn("redislock: could not extend %s, trying on: %s", self.key, error.reason)
        self._troubled = True
        # The last try comes when the right ends, not after it.
        self.next_beat = min(again_at, self.deadline)

    def undo_retake(self) -> None:
        """An extension took the lock again that had vanished, and that we could not leave to the
        next attempt, or could not release: release it.
        """
        try:
            self.store.locks.settle(self.claim, publishes=False, purpose="heartbeat")
        except LockUnavailable as exc:
            self._teller.tell(partial(self._could_not_release, exc))

    def mark_lost(self, reason: str) -> None:
        """Ownership cannot be confirmed any more. Said once."""
        with self._mutex:
            if self._lost or self._released:
                return
            self._lost = True
            is_news = self.replaced_by is None
        self.lost_because = reason
        self._teller.tell(partial(self._say_lost, reason, is_news))

    def _say_lost(self, reason: str, is_news: bool) -> None:
        logger.error(
            "redislock: LOST %s, held by %s: %s",
            self.key, self._as_holder, reason,
            extra=self._fields("lost", reason=reason),
        )  # fmt: skip
        try:
            if self._on_lost is not None and is_news:
                self._on_lost(self)
        finally:
            self.loss_is_told = True

    def extend_now(self) -> bool:
        """Extend the lock. False, and lost, if it is not ours any more.

        Raises:
            LockUnavailable: the server did not answer, and the right has not yet ended.
        """
        sent_at = clock()
        try:
            (reply,) = self.store.locks.extend([self.extension(sent_at)], purpose="main")
            if isinstance(reply, LockUnavailable):
                raise reply
        except LockUnavailable as exc:
            self.went_unanswered()
            if clock() < self.deadline:
                raise
            self.mark_lost(exc.reason)
            return False
        if reply.outcome == NOT_OURS:
            self.mark_lost(GONE)
            return False
        self.beat_succeeded(sent_at, reply)
        return True

    def _confirm(self) -> None:
        """Ask once more, past the deadline: an extension proves that nobody else had it."""
        if not self.may_extend(clock()):
            self.mark_lost(f"held for longer than {self._max_hold:g} s")
        else:
            self.extend_now()

    def _renewed(self, sent_at: float) -> None:
        self.deadline = sent_at + self.ttl
        self.next_beat = sent_at + self._beat_every
