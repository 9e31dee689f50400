"""The right to a lock: what a claim was given, until when its holder may rely on it, how it ends.

Does no I/O: whoever asks the server says what was asked when, and what the answer was. See `lease`.
"""

# No `from __future__ import annotations`: with it a `NamedTuple` takes twice as long to make.
import contextlib
import logging
from collections.abc import Generator
from typing import Any, Final, NamedTuple

from ..errors import LockLost, LockUnavailable
from ..protocol import holders, past
from ..protocol.calls import extend
from ..protocol.claims import NOT_OURS, RETAKEN, Acquired, Claim, Extended, Extension
from ..protocol.clock import clock
from ..protocol.exchange import Call
from ..protocol.holders import Holder
from ..protocol.waiting import RETRY_EVERY, Answer

#: The part of the ttl between two extensions: a little less than a third, so that a holder notices
#: that the server came back empty before anybody else may take a lock there.
BEAT_EVERY: Final = 0.3
#: The most seconds between two extensions of a run that may be replaced: their replies tell it so.
LISTEN_EVERY: Final = 1.0
#: Why a lock was lost, if the server does not say. The note that an operator broke it may be gone.
GONE: Final = "it expired or was broken, or another run may have acquired it"
#: Why a lock was lost, if the server has such a note.
BROKEN: Final = "an operator broke it"


class Ask(NamedTuple):
    """Make this call; once: do not try again."""

    call: Call[Any]
    once: bool


class Kind(NamedTuple):
    """What a right may find out, and how it is logged."""

    level: int
    text: str  # of the line; "" for none
    names: str  # what goes into the line: the key, the holder, the reason `why`, or `by`
    outcome: str = ""  # for machines


LOST: Final = Kind(logging.ERROR, "LOST %s, held by %s: %s", "key holder why", "lost")
REPLACED: Final = Kind(
    logging.WARNING,
    "%s must end: %s replaces it and waits for %s",
    "holder by key",
    "to be replaced",
)
TOO_LONG: Final = Kind(
    logging.WARNING, "%s was held for longer than %s and is no longer extended", "key why"
)
#: The server did not answer an extension: said once until it answers again, which comes next.
SILENT: Final = Kind(logging.WARNING, "could not extend %s, will try again: %s", "key why")
ANSWERED: Final = Kind(
    logging.INFO, "the server answers again; %s is still held by this run", "key"
)
KEPT: Final = Kind(logging.NOTSET, "", "")
TAKEN_AGAIN: Final = Kind(
    logging.WARNING,
    "%s vanished from the server and was acquired again; no other run held it in between",
    "key",
    "recovered",
)


class News(NamedTuple):
    """What a right found out."""

    kind: Kind
    why: str = ""  # the lock was lost, or could not be extended
    by: Holder | None = None  # the run that waits for this one to end
    late: float | None = None  # seconds by which an extension was late; None if it was none
    ends: bool = False  # the run is to hear that it must end, which it hears once


def beat_every(ttl: float, listens: bool) -> float:
    """Seconds between two extensions."""
    return min(ttl * BEAT_EVERY, LISTEN_EVERY) if listens else ttl * BEAT_EVERY


class Right:
    """The right to a lock, which a claim may get.

    It begins when the lock is acquired, and ends ttl after the last successful acquire or extend
    was *sent*; or when the lock is given back, or known to be lost. Any thread may find out that
    the lock was lost, or that the run must end for another one. Either is told once, and not after
    the lock was given back; a loss that only the release finds out is told then.

    Attributes:
        fence: of this acquisition; 0 while not acquired. See `Lease`.
        counter: the bucket's fence counter when the lock was last known to be ours.
        stored: the lock's value, as it was stored on the server.
        asked: we have asked for the lock, so the server may have given it to us, or may yet.
        in_doubt: a request for the lock had no reply: it may reach the server at any time.
        unanswered: how many extensions may reach the server at any time, and retake the lock.
        is_over: the lock was given back, or we tried to give it back.
        is_released: a release is on its way, or was: it alone finds out whether the lock was lost.
        is_undone: an extension took the lock again, and that was, or is being, undone.
        tried_to_release: the server may have given the lock back already.
        is_lost: ownership can no longer be confirmed. It stays True.
    """

    # Defaults are on the class: each task that runs makes one such object, and few change them.
    fence = counter = unanswered = 0
    stored = lost_because = ""
    acquired_at = deadline = next_beat = 0.0  # on `clock`
    asked = in_doubt = is_over = is_released = is_undone = tried_to_release = is_lost = False
    replaced_by: Holder | None = None  # the task for which the run must end
    description: str | None = None  # what the holder says of itself, which each extension brings
    _is_troubled = False

    def __init__(self, claim: Claim, max_hold: float | None = None, listens: bool = False) -> None:
        self.claim = claim
        self.key = claim.keys.lock
        self.ttl = claim.ttl
        self._max_hold = max_hold
        self._listens = listens

    def tell(self, news: News) -> None:
        """What the right found out. Whoever keeps it says what becomes of that."""

    # -- the beginning --------------------------------------------------------------------

    def accept(self, answer: Answer, at: float | None = None) -> Answer | None:
        """Accept the answer to a request for the lock, which came at that time, or about when it
        was sent. None if that is too late: the right counts from before a block, whose end is not
        known.
        """
        if not isinstance(answer, Acquired):
            self.asked = self.in_doubt
            return answer
        sent_at = answer.sent_at
        if at is not None and at >= sent_at + self.ttl:
            return None
        self.fence = self.counter = answer.fence
        self.stored = answer.value
        self.acquired_at = sent_at if at is None else at
        self.deadline = sent_at + self.ttl
        self.next_beat = sent_at + beat_every(self.ttl, self._listens)
        self.keep_alive()
        return answer

    def keep_alive(self) -> None:
        """The right has begun. Whoever keeps it does so from now on."""

    # -- what the holder may believe ------------------------------------------------------

    @property
    def is_in_doubt(self) -> bool:
        """Whether ownership cannot be confirmed without asking the server."""
        return self.is_lost or (not self.is_over and self.fence > 0 and clock() >= self.deadline)

    @property
    def holder(self) -> Holder:
        """The holder, as the stored value records it."""
        return holders.parse(self.stored.encode(), None) or Holder()

    def lost_error(self) -> LockLost:
        return LockLost(self.key, holders.parse(self.stored.encode(), None), self.lost_because)

    # -- extensions -----------------------------------------------------------------------

    def may_extend(self, now: float) -> bool:
        """Whether the lock is still extended. After `max_hold` it is not, and then lost."""
        if self._max_hold is None or now < self.acquired_at + self._max_hold:
            return True
        if now >= self.deadline:
            self.lose(f"held for longer than {self._max_hold:g} s")
        elif self.next_beat != self.deadline:
            self.tell(News(TOO_LONG, f"{self._max_hold:g} s"))
        self.next_beat = self.deadline
        return False

    def extension_at(self, now: float, retake: bool = True) -> Extension:
        """The extension to send now. While the right lasts, a lock that vanished is taken again."""
        retake = retake and now < self.deadline
        described = self.description
        return Extension(
            self.claim, self.stored, self.fence, retake, self.counter, description=described
        )

    def extending(self, retake: bool = True) -> Generator[Ask, Extended, bool]:
        """The call that extends the lock at once, or with `retake` takes a vanished one again.
        Returns whether it is still ours. Raises `LockUnavailable` while the right lasts.
        """
        sent_at = clock()
        self.unanswered += retake  # and stays so if we are interrupted
        try:
            reply = yield Ask(extend(self.extension_at(sent_at, retake)), once=True)
        except LockUnavailable as exc:
            if clock() < self.deadline:
                raise
            self.lose(exc.reason)
            return False
        self.unanswered -= retake
        return self.extended(reply, sent_at)

    def extended(self, reply: Extended, sent_at: float) -> bool:
        """Take the reply to an extension. Returns whether the lock is still ours."""
        if reply.outcome == NOT_OURS:
            self.lose(_why_gone(reply))
            return False
        self.counter = reply.counter
        # The right of a woken waiter counts from before the waiter acquired the lock.
        pause = beat_every(self.ttl, self._listens)
        due = max(self.deadline - self.ttl + pause, self.acquired_at)
        self.deadline, self.next_beat = sent_at + self.ttl, sent_at + pause
        kind = ANSWERED if self._is_troubled else KEPT
        if is_retaken := reply.outcome == RETAKEN:
            kind = TAKEN_AGAIN
        self._is_troubled = False
        self.tell(News(kind, "retaken" if is_retaken else "", late=max(sent_at - due, 0.0)))
        if reply.replaced_by is not None:
            self.be_replaced(reply.replaced_by)
        return True

    def not_extended(self, why: str, now: float) -> None:
        """No reply to an extension came. The last try is when the right ends, not after it."""
        if now >= self.deadline:
            self.lose(why)
            return
        if not self._is_troubled:
            self.tell(News(SILENT, why))
        self._is_troubled = True
        self.next_beat = min(now + RETRY_EVERY, self.deadline)

    # -- the end --------------------------------------------------------------------------

    def asking_why(self, call: Call[Any]) -> Generator[Ask, Extended, None]:
        """The question why a call that gives the lock back did not find it, if that proves a loss
        that the run does not know of. The loss is told with the answer.
        """
        is_known = self.is_lost or self.replaced_by is not None
        if not self.fence or is_known or call.in_doubt or self.is_undone:
            return
        reply = None
        try:
            with contextlib.suppress(LockUnavailable):
                reply = yield Ask(extend(self.extension_at(clock(), retake=False)), once=True)
        finally:
            self.lose(_why_gone(reply), at_release=True)

    def end(self, how: str) -> str:
        """The end of the run, for the history."""
        if not self.claim.history:
            return ""
        if not self.fence:
            return past.NOT_RUN
        how = past.LOST if self.is_lost else how
        return past.end_text(self.fence, clock() - self.acquired_at, how)

    def lose(self, why: str, at_release: bool = False) -> None:
        """Ownership can no longer be confirmed."""
        # What a release freed is not ours either.
        if self.is_lost or ((self.is_over or self.is_released) and not at_release):
            return
        self.is_lost, self.lost_because = True, why
        if self._is_first("loses"):
            self.tell(News(LOST, why, ends=self._is_first("ends")))

    def be_replaced(self, by: Holder) -> None:
        """The run must end, since another one waits to take its place."""
        is_known, self.replaced_by = self.replaced_by is not None, by
        if is_known or self.is_lost or self.is_over:
            return
        self.lost_because = f"{by.task_id} replaces it"
        if self._is_first("ends"):
            self.tell(News(REPLACED, by=by, ends=True))

    def _is_first(self, what: str) -> bool:
        """Whether nobody has asked this before. Of two threads at a time one is the first."""
        me = object()
        return self.__dict__.setdefault(f"first who {what}", me) is me


def _why_gone(reply: Extended | None) -> str:
    """Why the lock is gone, by the reply to an extension that did not find it, if there is one."""
    if reply is None or reply.broken_by is None:
        return GONE
    return f"{BROKEN}: {reply.broken_by}" if reply.broken_by else BROKEN
