"""An acquired lock that is kept alive: the right to it, its extensions, and how it was lost."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ..errors import LockLost, LockUnavailable
from ..protocol import holders
from ..protocol.calls import Release, extend, settle
from ..protocol.claims import NOT_OURS, RETAKEN, Acquired, Claim, Extended, Extension
from ..protocol.clock import clock
from ..protocol.exchange import Call
from ..protocol.holders import Holder
from ..protocol.log import fields, get_logger
from ..protocol.platform import at_fork
from ..protocol.waiting import RETRY_EVERY
from ..servers.server import Server
from .greenlets import AT_ONCE, PATCHERS, native_lock, teller_here
from .heartbeat import heartbeat

logger = get_logger()

#: The part of the ttl between two extensions: a little less than a third, so that a holder notices
#: that the server came back empty before anybody else may take a lock there.
BEAT_EVERY: Final = 0.3
#: The most seconds between two extensions of a run that may be replaced: their replies tell it so.
LISTEN_EVERY: Final = 1.0
#: Why a lock was lost, if the server does not say. The note that an operator broke it may be gone.
GONE: Final = "it expired or was broken, or another run may have acquired it"
#: Why a lock was lost, if the server has such a note.
BROKEN: Final = "an operator broke it"


class _Mutex:
    """Guards what is decided once for each lock. Its holder does no I/O, and is soon finished."""

    def __init__(self) -> None:
        self._begin()
        at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self.lock = native_lock()


_mutex: Final = _Mutex()


def beat_every(ttl: float, listens: bool) -> float:
    """Seconds between two extensions."""
    return min(ttl * BEAT_EVERY, LISTEN_EVERY) if listens else ttl * BEAT_EVERY


class Held:
    """The right to a lock that was acquired, and what keeps it.

    The right ends ttl after the last successful acquire or extend was *sent*. Any thread may find
    out that the lock was lost, or that the run must end for another one. Either is reported once,
    and not after the lock was given back; a loss that only the release finds out is reported then.

    The heartbeat refers to this object weakly, so that a lock that its owner dropped expires.

    Attributes:
        server: where the lock is.
        claim: the lock and the token.
        key: the lock's whole key in Redis.
        ttl: seconds that the lock outlives a dead holder.
        fence: the fence of this acquisition; 0 while not acquired. See `Lease`.
        stored: the lock's value, as it was stored on the server.
        acquired_at: when the lock was acquired, on `clock`.
        deadline: when the right ends, on `clock`.
        next_beat: when to extend the lock next, on `clock`.
        counter: the bucket's fence counter when the lock was last known to be ours.
        unanswered: how many extensions may reach the server at any time, and retake the lock.
        is_over: the lock was given back, or we tried to give it back.
        is_released: a release is on its way, or was: what revives the lock is to be undone.
        is_lost: ownership can no longer be confirmed. It stays True.
        replaced_by: the task for which the run must end, or None.
        lost_because: why the lock was lost, for people.
        loss_is_told: the loss was logged, and `on_lost` was called.
        teller: what logs for this lock, where threads are patched.
        pid: the process that holds the lock.
    """

    # Defaults are on the class: each task that runs makes one such object, and few change them.
    fence = counter = unanswered = 0
    stored = lost_because = ""
    acquired_at = deadline = next_beat = 0.0
    is_over = is_released = is_lost = loss_is_told = False
    replaced_by: Holder | None = None
    teller = AT_ONCE
    _is_troubled = False

    def __init__(
        self,
        server: Server,
        claim: Claim,
        *,
        max_hold: float | None = None,
        beats: bool = True,
        listens: bool = False,
        on_lost: Callable[[Any], None] | None = None,
        on_extended: Callable[[Any, float, bool], None] | None = None,
    ) -> None:
        self.server = server
        self.claim = claim
        self.key = claim.keys.lock
        self.ttl = claim.ttl
        self.pid = os.getpid()
        self._max_hold = max_hold
        self._beats = beats
        self._listens = listens
        self.on_lost = on_lost
        self._on_extended = on_extended

    def begin(self, acquired: Acquired, at: float) -> None:
        """Begin to keep the lock, which was acquired at that time."""
        self.fence = self.counter = acquired.fence
        self.stored = acquired.value
        self.acquired_at = at
        self.deadline = acquired.sent_at + self.ttl
        self.next_beat = acquired.sent_at + beat_every(self.ttl, self._listens)
        if self._beats:
            if not sys.modules.keys().isdisjoint(PATCHERS):  # which looks up only these
                self.teller = teller_here()
            heartbeat.add(self)

    # -- what the holder may believe ------------------------------------------------------

    @property
    def lost(self) -> bool:
        """True once ownership can no longer be confirmed, or a newer run waits for this one to end.
        Then it stays True.

        After the deadline this asks the server once more, which may take a twelfth of the ttl
        for each server that is asked.
        """
        if self.is_lost or self.replaced_by is not None:
            return True
        if not self.fence:
            return False
        if not self.is_over and clock() >= self.deadline:
            if self.inherited:
                return True  # a forked child must not extend the lock
            if self._was_held_too_long(clock()):
                self._lose(f"held for longer than {self._max_hold:g} s")
            else:
                # A success proves that nobody else had the lock. If only this request failed, the
                # heartbeat has extended the lock meanwhile.
                with contextlib.suppress(LockUnavailable):
                    self.extend_now()
        return self.is_lost

    def ensure(self) -> None:
        """Return if this is still the lock's holder.

        Raises:
            LockLost: the lock was lost.
        """
        if self.lost:
            raise self.lost_error()

    def lost_error(self) -> LockLost:
        """The error that says that the lock was lost."""
        return LockLost(self.key, holders.parse(self.stored.encode(), None), self.lost_because)

    @property
    def inherited(self) -> bool:
        """Whether this process is a fork of the one that holds the lock."""
        return self.pid != os.getpid()

    @property
    def is_held(self) -> bool:
        """Whether this process believes that it holds the lock. Does not ask the server."""
        if self.is_over or self.inherited or self.is_lost:
            return False
        return self.fence > 0 and clock() < self.deadline

    @property
    def holder(self) -> Holder:
        """The holder, as the stored value records it."""
        return holders.parse(self.stored.encode(), None) or Holder()

    # -- for the heartbeat ----------------------------------------------------------------

    def extension(self, now: float) -> Extension | None:
        """The extension to send now; None if the lock is no longer extended.

        While the right lasts, a lock that vanished is taken again.
        """
        if self._was_held_too_long(now):
            self._let_expire()
            return None
        return Extension(self.claim, self.stored, self.fence, now < self.deadline, self.counter)

    def answered(self, reply: Extended | LockUnavailable, sent_at: float, discarded: bool) -> None:
        """Take the reply to an extension. See `Extendable`."""
        if discarded:
            # The lock was released while we asked: the release stopped waiting for this reply.
            if isinstance(reply, Extended) and revives(self, reply):
                _undo(self)
        elif isinstance(reply, LockUnavailable):
            self._failed(reply)
        elif reply.outcome == NOT_OURS:
            heartbeat.discard(self)
            self._lose(why_gone(reply))
        else:
            self._extended(reply, sent_at)

    def _was_held_too_long(self, now: float) -> bool:
        return self._max_hold is not None and now >= self.acquired_at + self._max_hold

    def _let_expire(self) -> None:
        """Stop extending a lock that was held for `max_hold`. It is lost when the right ends."""
        if clock() >= self.deadline:
            heartbeat.discard(self)
            self._lose(f"held for longer than {self._max_hold:g} s")
            return
        if self.next_beat != self.deadline:
            text = "redislock: %s was held for longer than %g s and is no longer extended"
            _warn(self, text, self.key, self._max_hold)
        self.next_beat = self.deadline

    def _extended(self, reply: Extended, sent_at: float) -> None:
        self.counter = reply.counter
        pause = beat_every(self.ttl, self._listens)
        # The right of a woken waiter counts from before the waiter acquired the lock.
        due = max(self.deadline - self.ttl + pause, self.acquired_at)
        late = max(sent_at - due, 0.0)
        retaken = reply.outcome == RETAKEN
        if retaken:
            _warn(
                self,
                "redislock: %s vanished from the server and was acquired again; no other run held"
                " it in between", self.key, extra=_fields(self, "recovered", reason="retaken"),
            )  # fmt: skip
        elif self._is_troubled:
            answers = "redislock: the server answers again; %s is still held by this run"
            self.teller.tell(partial(logger.info, answers, self.key))
        self._is_troubled = False
        self.deadline, self.next_beat = sent_at + self.ttl, sent_at + pause
        if reply.replaced_by is not None:
            self._be_replaced(reply.replaced_by)
        if self._on_extended is not None:
            self.teller.tell(partial(self._on_extended, self, late, retaken))

    def _failed(self, error: LockUnavailable) -> None:
        again_at = clock() + RETRY_EVERY
        if clock() >= self.deadline:
            heartbeat.discard(self)
            self._lose(error.reason)
            return
        if not self._is_troubled:
            _warn(
                self, "redislock: could not extend %s, will try again: %s", self.key, error.reason
            )
        self._is_troubled = True
        # The last try is when the right ends, not after it.
        self.next_beat = min(again_at, self.deadline)

    # -- at once --------------------------------------------------------------------------

    def extend_now(self, retake: bool = True) -> bool:
        """Extend the lock. Returns False if the lock is no longer ours; then it is lost.

        Args:
            retake: take the lock again if it has vanished, while the right lasts.

        Raises:
            LockUnavailable: the server did not answer, and the right has not yet ended.
        """
        call, sent_at = extension_of(self, retake)
        self.unanswered += retake  # and stays so if we are interrupted
        try:
            reply = self.server.run(call, once=True)
        except LockUnavailable as exc:
            return unheard(self, exc)
        self.unanswered -= retake
        return heard(self, reply, sent_at)

    # -- losing the lock ------------------------------------------------------------------

    def _lose(self, reason: str, at_release: bool = False) -> None:
        """Note that ownership can no longer be confirmed, and report it."""
        with _mutex.lock:
            if self.is_lost or (self.is_over and not at_release):
                return
            self.is_lost, self.lost_because = True, reason
            is_news = self.replaced_by is None
        self.teller.tell(partial(_say_lost, self, reason, is_news))

    def _be_replaced(self, by: Holder) -> None:
        """Note that the run must end, since another one waits to take its place, and report it."""
        with _mutex.lock:
            was_known, self.replaced_by = self.replaced_by is not None, by
            if was_known or self.is_lost or self.is_over:
                return
        self.lost_because = f"{by.task_id} replaces it"
        self.teller.tell(partial(_say_replaced, self, by))


def extension_of(held: Held, retake: bool) -> tuple[Call[Extended], float]:
    """The call that extends the lock now, and the time. See `Held.extend_now`."""
    sent_at = clock()
    retake = retake and sent_at < held.deadline
    extension = Extension(held.claim, held.stored, held.fence, retake, held.counter)
    return extend(extension), sent_at


def heard(held: Held, reply: Extended, sent_at: float) -> bool:
    """Take the reply to `extension_of`. Returns whether the lock is still ours."""
    if reply.outcome == NOT_OURS:
        held._lose(why_gone(reply))
        return False
    held._extended(reply, sent_at)
    return True


def unheard(held: Held, failure: LockUnavailable) -> bool:
    """Note that `extension_of` has no reply. Returns False if the lock is lost.

    Raises:
        LockUnavailable: the right has not yet ended.
    """
    if clock() < held.deadline:
        raise failure
    held._lose(failure.reason)
    return False


def revives(held: Held, reply: Extended) -> bool:
    """Whether this extension may have brought back a lock that was given back meanwhile."""
    # It had vanished; or the release overtook the extension on some of a quorum's servers.
    return reply.outcome == RETAKEN or (held.is_released and reply.outcome != NOT_OURS)


def _undo(held: Held) -> None:
    """Release a lock that an extension brought back."""
    try:
        held.server.run(settle(held.claim, Release(publishes=False)), purpose="heartbeat")
    except LockUnavailable as exc:
        held.teller.tell(partial(say_not_released, held, exc))


# -- reports, in a thread that may log ------------------------------------------------------------


def _warn(held: Held, text: str, *arguments: Any, **more: Any) -> None:
    held.teller.tell(partial(logger.warning, text, *arguments, **more))


def say_not_released(held: Held, error: LockUnavailable) -> None:
    """Log that the server did not answer when the lock was given back."""
    # If the lock was never confirmed, the caller reports that it could not be taken.
    logger.log(
        logging.WARNING if held.fence else logging.DEBUG,
        "redislock: could not release %s; it expires within %g s: %s",
        held.key, held.ttl, error.reason,
    )  # fmt: skip


def _say_lost(held: Held, reason: str, is_news: bool) -> None:
    logger.error(
        "redislock: LOST %s, held by %s: %s",
        held.key, held.holder, reason, extra=_fields(held, "lost", reason=reason),
    )  # fmt: skip
    try:
        if held.on_lost is not None and is_news:
            held.on_lost(held)
    finally:
        held.loss_is_told = True


def _say_replaced(held: Held, by: Holder) -> None:
    logger.warning(
        "redislock: %s must end: %s replaces it and waits for %s",
        held.holder, by.task_id, held.key, extra=_fields(held, "to be replaced", holder=by),
    )  # fmt: skip
    if held.on_lost is not None:
        held.on_lost(held)


def _fields(held: Held, outcome: str, **more: Any) -> dict[str, Any]:
    """The fields for machines in a log line about this lock. They name the task that holds it."""
    own = held.holder
    return fields(
        outcome, held.key, task=own.task, task_id=own.task_id, attempt=own.attempt,
        label=own.label, fence=held.fence, **more,
    )  # fmt: skip


def why_gone(reply: Extended) -> str:
    if reply.broken_by is None:
        return GONE
    return f"{BROKEN}: {reply.broken_by}" if reply.broken_by else BROKEN
