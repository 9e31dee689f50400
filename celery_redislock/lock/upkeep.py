"""Keeps an acquired lock alive: its extensions, and what follows from the replies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from ..errors import LockUnavailable
from ..protocol.claims import NOT_OURS, RETAKEN, Acquired, Claim, Extended, Extension
from ..protocol.clock import clock
from ..protocol.log import get_logger
from ..servers.store import Store
from .heartbeat import RETRY_EVERY, heartbeat
from .right import Right

logger = get_logger()

#: The part of the ttl between two extensions: a little less than a third, so that a holder notices
#: that the server came back empty before anybody else may take a lock there.
BEAT_EVERY: Final = 0.3
#: The most seconds between two extensions of a run that may be replaced, so that it hears of that.
LISTEN_EVERY: Final = 1.0
#: Why a lock was lost, if the server says no more than that. An operator's mark expires.
GONE: Final = "it expired or was broken, or another run may have acquired it"
#: Why it was lost, if there is that mark.
BROKEN: Final = "an operator broke it"


def beat_every(ttl: float, listens: bool) -> float:
    """Seconds between two extensions."""
    return min(ttl * BEAT_EVERY, LISTEN_EVERY) if listens else ttl * BEAT_EVERY


class Upkeep:
    """Extends an acquired lock, by the heartbeat or at once.

    The heartbeat has a weak reference to it, so that a lock that its owner dropped expires. Nothing
    that outlives the lease may have a strong one.

    Attributes:
        store: where the lock is.
        claim: the lock and the token.
        right: the right that it renews.
        ttl: seconds that the lock outlives its holder.
        next_beat: when it is to be extended next, on `clock`.
        counter: the bucket's counter when the lock was last known to be ours.
        unanswered: an extension may reach the server at any time.
    """

    # Defaults on the class, as in `Right`.
    next_beat = 0.0
    counter = 0
    unanswered = False
    _troubled = False

    def __init__(
        self,
        store: Store,
        claim: Claim,
        right: Right,
        *,
        max_hold: float | None,
        listens: bool,
        on_extended: Callable[[Right, float, bool], None] | None,
    ) -> None:
        self.store = store
        self.claim = claim
        self.right = right
        self.ttl = claim.ttl
        self._beat_every = beat_every(claim.ttl, listens)
        self._max_hold = max_hold
        self._on_extended = on_extended

    def begin(self, acquired: Acquired) -> None:
        """The lock was acquired."""
        self.counter = acquired.fence
        self.next_beat = acquired.sent_at + self._beat_every

    # -- for the heartbeat ----------------------------------------------------------------

    def extension(self, now: float) -> Extension | None:
        """The extension to send now; None if the lock is no longer extended.

        While the right lasts, a lock that vanished is taken again.
        """
        if self._was_held_too_long(now):
            self._let_expire()
            return None
        return self._extension(now)

    def answered(self, reply: Extended | LockUnavailable, sent_at: float, discarded: bool) -> None:
        """Take the reply to an extension. See `Extendable`."""
        if discarded:
            # Released while we asked: the release stopped waiting for this reply.
            if isinstance(reply, Extended) and reply.outcome == RETAKEN:
                self._undo_retake()
        elif isinstance(reply, LockUnavailable):
            self._failed(reply)
        elif reply.outcome == NOT_OURS:
            heartbeat.discard(self)
            self.right.lose(_why_gone(reply))
        else:
            self._extended(reply, sent_at)

    def _extension(self, now: float) -> Extension:
        right = self.right
        retake = now < right.deadline
        return Extension(self.claim, right.stored, right.fence, retake, self.counter)

    def _was_held_too_long(self, now: float) -> bool:
        return self._max_hold is not None and now >= self.right.acquired_at + self._max_hold

    def _let_expire(self) -> None:
        """It was held for `max_hold`: it is lost when the right ends."""
        right = self.right
        if clock() >= right.deadline:
            heartbeat.discard(self)
            self._lose_for_max_hold()
            return
        if self.next_beat != right.deadline:
            right.warn(
                "redislock: %s was held for longer than %g s and is no longer extended",
                right.key, self._max_hold,
            )  # fmt: skip
        self.next_beat = right.deadline

    def _lose_for_max_hold(self) -> None:
        self.right.lose(f"held for longer than {self._max_hold:g} s")

    def _extended(self, reply: Extended, sent_at: float) -> None:
        right = self.right
        self.counter = reply.counter
        # A waiter that was woken acquired the lock later than its right counts from.
        due = max(right.deadline - self.ttl + self._beat_every, right.acquired_at)
        late = max(sent_at - due, 0.0)
        retaken = reply.outcome == RETAKEN
        if retaken:
            right.warn(
                "redislock: %s vanished from the server and was acquired again; no other run held"
                " it in between", right.key, extra=right.fields("recovered", reason="retaken"),
            )  # fmt: skip
        elif self._troubled:
            answers = "redislock: the server answers again; %s is still held by this run"
            right.teller.tell(partial(logger.info, answers, right.key))
        self._troubled = False
        right.renew(sent_at)
        self.next_beat = sent_at + self._beat_every
        if reply.replaced_by is not None:
            right.be_replaced(reply.replaced_by)
        if self._on_extended is not None:
            right.teller.tell(partial(self._on_extended, right, late, retaken))

    def _failed(self, error: LockUnavailable) -> None:
        right = self.right
        again_at = clock() + RETRY_EVERY
        if clock() >= right.deadline:
            heartbeat.discard(self)
            right.lose(error.reason)
            return
        if not self._troubled:
            right.warn(
                "redislock: could not extend %s, will try again: %s", right.key, error.reason
            )
        self._troubled = True
        # The last try is when the right ends, not after it.
        self.next_beat = min(again_at, right.deadline)

    def _undo_retake(self) -> None:
        """Release the lock: it had vanished, so that it could not be released or left to the next
        attempt, and then an extension took it again.
        """
        try:
            self.store.locks.settle(self.claim, publishes=False, purpose="heartbeat")
        except LockUnavailable as exc:
            self.right.teller.tell(partial(self.right.say_not_released, exc))

    # -- at once --------------------------------------------------------------------------

    def confirm(self) -> None:
        """Ask once more, past the deadline: a success proves that nobody else had the lock."""
        if self._was_held_too_long(clock()):
            self._lose_for_max_hold()
        else:
            self.extend_now()

    def extend_now(self, retake: bool = True) -> bool:
        """Extend the lock. False if it is no longer ours; then it is lost.

        Args:
            retake: take the lock again if it has vanished, while the right lasts.

        Raises:
            LockUnavailable: the server did not answer, and the right has not yet ended.
        """
        right, sent_at = self.right, clock()
        try:
            extension = self._extension(sent_at)
            extension = extension._replace(retake=retake and extension.retake)
            (reply,) = self.store.locks.extend([extension], purpose="main")
            if isinstance(reply, LockUnavailable):
                raise reply
        except LockUnavailable as exc:
            self.unanswered = True
            if clock() < right.deadline:
                raise
            right.lose(exc.reason)
            return False
        if reply.outcome == NOT_OURS:
            right.lose(_why_gone(reply))
            return False
        self._extended(reply, sent_at)
        return True


def _why_gone(reply: Extended) -> str:
    if reply.broken_by is None:
        return GONE
    return f"{BROKEN}: {reply.broken_by}" if reply.broken_by else BROKEN
