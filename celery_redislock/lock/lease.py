"""A lease: one acquisition of a lock, from the claim to the release."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from ..errors import LockUnavailable
from ..protocol import past
from ..protocol.calls import Release, acquire, hold, settle
from ..protocol.claims import Acquired, Busy, Done, Extended, Settled
from ..protocol.clock import clock
from ..protocol.exchange import Call
from ..protocol.log import get_logger
from ..protocol.waiting import Answer, Block, Step, Try, waiting
from .heartbeat import heartbeat
from .held import GONE, Held, extension_of, say_not_released, why_gone

logger = get_logger()


class Heir(NamedTuple):
    """How a lock is left to another message: a function that makes the new value from the old one,
    and the seconds for which the lock is kept.
    """

    value: Callable[[str], str]
    seconds: float


class Lease(Held):
    """One delivery's acquisition of a lock. In a task it is `self.lock`.

    Attributes:
        key: the lock's whole key in Redis.
        ttl: seconds that the lock outlives a dead holder.
        fence: an int that rises with every acquisition of the key. Pass it to the resource, which
            must refuse a lower one than it has seen. That gives correctness; the lock alone does
            not (Kleppmann, "How to do distributed locking", 2016). 0 while not acquired.
        heir: the task's next message, to which the lock is left instead of being released.
        asked: we have asked for the lock, so the server may have given it to us.
        in_doubt: the server may have carried out a request for the lock whose reply got lost.
        unheard: the release to repeat, if the server did not answer it; else None.
        tried_to_release: the server may have given the lock back already.
    """

    heir: Heir | None = None
    unheard: Release | None = None
    asked = in_doubt = tried_to_release = False

    def __repr__(self) -> str:
        return f"<Lease of {self.key} fence={self.fence} lost={self.is_lost}>"

    @property
    def token(self) -> str:
        """The proof of ownership."""
        return self.claim.token

    @property
    def label(self) -> str | None:
        """The lock's name for people, by `lock_label`; or None."""
        return self.holder.label

    @property
    def given_back(self) -> bool:
        """Whether, as far as we know, the server does not keep the lock for us."""
        return self.is_over or not self.asked

    def report(self) -> dict[str, Any]:
        """What this process knows of the lock, as plain data. Does not ask the server."""
        now, holder = clock(), self.holder
        return {
            "key": self.key,
            "task": holder.task,
            "task_id": holder.task_id,
            "attempt": holder.attempt,
            "label": holder.label,
            "pid": self.pid,
            "fence": self.fence,
            "held": not self.is_lost and now < self.deadline,
            "held_for": round(now - self.acquired_at, 3),
            "confirmed_ago": round(now - (self.deadline - self.ttl), 3),
            "ttl": self.ttl,
        }

    # -- acquiring ------------------------------------------------------------------------

    def acquire(
        self, hold_off: float | None = None, again: bool = False, note: str = ""
    ) -> Acquired | Busy | Done:
        """Try once to take the lock. See `calls.acquire` and `Server.run`.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        self.asked = True
        call = acquire(self.claim, "try", again, note)
        try:
            answer = self.server.run(call, hold_off=hold_off)
        finally:
            self.in_doubt = call.in_doubt
        if isinstance(answer, Acquired):
            self.begin(answer, answer.sent_at)
        else:
            self.asked = False
        return answer

    def wait(
        self,
        timeout: float | None,
        on_busy: Callable[[Busy], None] | None = None,
        for_message: bool = True,
    ) -> Acquired | Busy | Done:
        """Wait until the lock is taken.

        Args:
            timeout: seconds; None waits for ever.
            on_busy: called with each answer that somebody else has the lock, except the answer
                that is returned.
            for_message: wait also while the lock is kept for a message in the queue.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        steps = waiting(self.claim, timeout, for_message)
        answer: Answer | None = None
        try:
            step = next(steps)
            while True:
                try:
                    answer = self._do(step)
                except LockUnavailable as exc:
                    step = steps.throw(exc)
                    continue
                step = steps.send(answer)
                if on_busy is not None and isinstance(answer, Busy):
                    on_busy(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _do(self, step: Step) -> Answer | None:
        """Take one step of a wait."""
        self.asked = self.in_doubt = True
        if isinstance(step, Try):
            return self._heard(step, self.server.run(step.call, hold_off=step.hold_off))
        if isinstance(step, Block):
            return self._heard(step, self.server.block(*step))
        time.sleep(step.seconds)
        return None

    def _heard(self, step: Try | Block, answer: Answer) -> Answer | None:
        """Take the answer to a step of a wait. Returns None if it came too late to rely on."""
        self.in_doubt = False
        if not isinstance(answer, Acquired):
            self.asked = False
            return answer
        at = answer.sent_at if isinstance(step, Try) else clock()
        # The right counts from before a block: nobody knows when the block ended.
        if at >= answer.sent_at + self.ttl:
            return None
        self.begin(answer, at)
        return answer

    # -- giving the lock back -------------------------------------------------------------

    def release(self, release: Release = Release(), how: str = past.NOT_RUN) -> Settled | None:  # noqa: B008
        """Release the lock. Safe to call twice, late, or after a loss. See `calls.settle`.

        Args:
            release: how to release it. The lease sets `run_end` and `stray`.
            how: how the run ended, for the history.

        Returns:
            The server's reply; None if the server was not asked, or did not answer.
        """
        # Then the server has no lock of ours, as far as we know; or this is a fork of the holder.
        if self.is_over or not self.asked or self.pid != os.getpid():
            return None
        release = self._to_release(release, how)
        call = settle(self.claim, release)
        call.in_doubt, self.tried_to_release = self.tried_to_release, True
        try:
            # Without a fence we know of no acquisition, but only the reply may have got lost.
            settled = self.server.run(call, once=not self.fence)
        except LockUnavailable as exc:
            self.is_over = True
            say_not_released(self, exc)
            self.unheard = release
            return None
        if not settled.ours:
            self._learn_why_gone(call)
        self.is_over = True
        return settled._replace(ours=False) if self.is_lost else settled

    def _to_release(self, release: Release, how: str, wait: bool = True) -> Release:
        """How to release the lock, which is no longer extended. See `release`."""
        # Stop the heartbeat first: an extension sent after the release could revive the key.
        self.unanswered += heartbeat.discard(self, wait)
        self.is_released = True
        return release._replace(run_end=self._end(how), stray=self.unanswered > 0)

    def leave_at_end(self, heir: Heir) -> None:
        """Note that the lock is left to this message when the run ends."""
        self.heir = heir

    def leave_to(self, heir: Heir, how: str = past.NOT_RUN) -> bool:
        """Leave the lock to a message of this task now. `how` tells the history how the run ended.

        Returns:
            Whether the lock was still ours.
        """
        if self.given_back or self.inherited:
            return False
        self.unanswered += heartbeat.discard(self)
        try:
            value, end = heir.value(self.stored), self._end(how)
            call = hold(self.claim, value, heir.seconds, end)
            call.in_doubt, self.tried_to_release = self.tried_to_release, True
            ours = self.server.run(call)
            if not ours:
                self._learn_why_gone(call)
        except LockUnavailable as exc:
            logger.warning(
                "redislock: could not keep %s for the retry; it expires within %g s: %s",
                self.key, self.ttl, exc.reason,
            )  # fmt: skip
            ours = False
        self.is_over = True
        return ours

    def _learn_why_gone(self, call: Call[Any]) -> None:
        """Report the loss that this call found out, if it proves one that the run does not know."""
        question, reply = self._question_why_gone(call), None
        if question is None:
            return
        try:
            with contextlib.suppress(LockUnavailable):
                reply = self.server.run(question, once=True)
        finally:
            self._lose_at_release(reply)

    def _question_why_gone(self, call: Call[Any]) -> Call[Extended] | None:
        """What to ask if this call, which gives the lock back, did not find it. None if the run
        knows, or must end for another one; or if we never had the lock, or nothing is proved.
        """
        if not self.fence or self.is_lost or self.replaced_by is not None or call.in_doubt:
            return None
        return extension_of(self, retake=False)[0]

    def _lose_at_release(self, reply: Extended | None) -> None:
        """Report a loss that only the release found out. `reply` answers the question why."""
        self._lose(GONE if reply is None else why_gone(reply), at_release=True)

    def abandon(self) -> None:
        """Stop extending the lock. Another process knows its token, and releases it."""
        if not (self.given_back or self.inherited):
            heartbeat.discard(self)
            self.is_over = True

    def _end(self, how: str) -> str:
        """The end of the run, for the history."""
        if not self.claim.history:
            return ""
        if not self.fence:
            return past.NOT_RUN
        how = past.LOST if self.is_lost else how
        return past.end_text(self.fence, clock() - self.acquired_at, how)
