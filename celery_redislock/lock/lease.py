"""A lease: one acquisition of a lock by a thread, kept alive from the claim to the release."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Generator
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ..errors import LockUnavailable
from ..protocol import notes, past
from ..protocol.calls import REQUEST, Release, acquire, settle
from ..protocol.checks import SECONDS, checked
from ..protocol.claims import Acquired, Busy, Claim, Done, Extended, Extension, Settled
from ..protocol.clock import clock
from ..protocol.log import fields, logger
from ..protocol.waiting import Block, Sleep, Step, Try, waiting
from ..servers.server import Server
from .greenlets import AT_ONCE, PATCHERS, teller_here
from .heartbeat import heartbeat
from .right import LOST, TAKEN_AGAIN, Ask, News, Right

T = TypeVar("T")


class Heir(NamedTuple):
    """How a lock is left to another message: what makes the new value, and for how many seconds."""

    value: Callable[[str], str]
    seconds: float


class Lease(Right):
    """One acquisition of a lock. In a task it is `self.lock`.

    The heartbeat refers to this object weakly, so that a lock that its owner dropped expires.

    Attributes:
        key: the lock's whole key in Redis.
        ttl: seconds that the lock outlives a dead holder.
        fence: an int that rises with every acquisition of the key. Pass it to the resource, which
            must refuse a lower one than it has seen. That gives correctness; the lock alone does
            not (Kleppmann, "How to do distributed locking", 2016). 0 while not acquired.
    """

    heir: Heir | None = None  # the task's next message, to which the lock is left when the run ends
    #: Seconds for which the lock is to stay taken after the run, if its body asked for that.
    pause_for: float | None = None
    unheard: Release | None = None  # the server did not answer it: to be repeated
    is_orphaned = loss_is_told = False  # told: logged, and `on_lost` was called
    teller = AT_ONCE  # what logs for this lock, where threads are patched

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
        super().__init__(claim, max_hold, listens)
        self.server = server
        self.pid = os.getpid()
        self.beats = beats
        self._on_lost = on_lost
        self._on_extended = on_extended

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
    def inherited(self) -> bool:
        """Whether this process is a fork of the one that holds the lock."""
        return self.pid != os.getpid()

    @property
    def given_back(self) -> bool:
        """Whether, as far as we know, the server does not keep the lock for us."""
        return self.is_over or not self.asked

    @property
    def is_held(self) -> bool:
        """Whether this process believes that it holds the lock. Does not ask the server."""
        if self.is_over or self.is_orphaned or self.inherited or self.is_lost:
            return False
        return self.fence > 0 and clock() < self.deadline

    @property
    def lost(self) -> bool:
        """True once ownership can no longer be confirmed, or a newer run waits for this one to end.
        Then it stays True.

        After the deadline this asks the server once more, which may take a twelfth of the ttl
        for each server that is asked.
        """
        if self.is_lost or self.replaced_by is not None:
            return True
        if self.is_in_doubt:
            if self.inherited or self.is_orphaned:
                return True  # a forked child must not extend the lock, nor another thread
            if self.may_extend(clock()):
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

    def describe(self, text: str) -> None:
        """Say what the run is at, such as "page 3 of 40". It is the `Holder.description` that
        `list`, the page and a `LockConflict` show. The next heartbeat brings it to the server.

        Args:
            text: one line, of at most 100 characters: more is cut. "" for nothing any more.
        """
        self.description = str(text)

    def pause(self, seconds: float | timedelta) -> None:
        """Let nobody else have the lock for some time after this run, however it ends. A retry that
        the body sends gets the lock, as with `lock_across_retries="hold"`, and is followed by what
        is left of the pause.

        Args:
            seconds: from the end of the run on, 0 for none; in place of the task's `lock_pause`.

        Raises:
            ConfigError: this is no such number, and no timedelta.
        """
        self.pause_for = checked("lock.pause", "seconds", seconds, SECONDS)

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

    # -- asking the server ----------------------------------------------------------------

    def acquire(
        self, hold_off: float | None = None, again: str = "", note: str = ""
    ) -> Acquired | Busy | Done:
        """Try once to take the lock. See `calls.acquire` and `Server.run`."""
        answer: Acquired | Busy | Done
        answer = self._do(Try(acquire(self.claim, "try", again, note), hold_off))
        return answer

    def wait(
        self,
        timeout: float | None,
        on_busy: Callable[[Busy], None] | None = None,
        for_message: bool = True,
        again: str = "",
    ) -> Acquired | Busy | Done:
        """Wait for the lock, see `waiting`. `on_busy` is called with each `Busy` but the last."""
        return self._go(waiting(self.claim, timeout, for_message, again), on_busy)

    def extend_now(self, retake: bool = True) -> bool:
        """Extend the lock. Returns False if the lock is no longer ours. See `Right.extending`."""
        return self._go(self.extending(retake))

    def release(self, release: Release = Release(), how: str = past.NOT_RUN) -> Settled | None:  # noqa: B008
        """Release the lock, and tell the history how the run ended. Safe to call twice, late, or
        after a loss. None if the server was not asked, or did not answer. See `calls.settle`.
        """
        if self.is_over or not self.asked or self.pid != os.getpid():
            return None
        release = self.to_release(release, how)
        call = settle(self.claim, release)
        call.in_doubt, self.tried_to_release = self.tried_to_release, True
        try:
            # Without a fence we know of no acquisition, but only the reply may have got lost.
            settled = self.server.run(call, once=not self.fence)
        except LockUnavailable as exc:
            self.is_over = True
            self.say_not_released(exc)
            self.unheard = release
            return None
        if not settled.ours:
            self._go(self.asking_why(call))
        self.is_over = True
        if self.is_lost or self.is_undone:
            return settled._replace(ours=not self.is_lost)
        return settled

    def to_release(self, release: Release, how: str, wait: bool = True) -> Release:
        """How to release the lock, which is no longer extended. See `release`."""
        # Stop the heartbeat first: an extension sent after the release could revive the key.
        self.unanswered += heartbeat.discard(self, wait)
        self.is_released = True
        # `_replace` takes thrice as long.
        note, always, min_hold, _, leaves, publishes, _, pause, heir, died = release
        stray, end = 0 if heir else REQUEST * self.in_doubt + (self.unanswered > 0), self.end(how)
        return Release(note, always, min_hold, stray, leaves, publishes, end, pause, heir, died)

    def leave_at_end(self, heir: Heir) -> None:
        """Note that the lock is left to this message when the run ends."""
        self.heir = heir

    def leave_to(self, heir: Heir, how: str = past.NOT_RUN) -> bool:
        """Leave the lock to a message of this task now. Returns whether it was still ours."""
        if self.given_back:
            return False
        value = heir.value(self.stored), heir.seconds
        note, pause = notes.lasting(notes.ENDED), self.pause_for or 0.0
        settled = self.release(Release(note, True, pause=pause, heir=value), how)
        return settled is not None and settled.ours

    def abandon(self) -> None:
        """Stop extending the lock. Another process knows its token, and releases it."""
        if not (self.given_back or self.inherited):
            heartbeat.discard(self)
            self.is_over = True

    def orphan(self, why: str) -> None:
        """Let a lock expire that nobody can release any more, and say so. Safe in a finalizer: it
        waits for no mutex, and the heartbeat's thread logs the warning.
        """
        if self.given_back or self.is_orphaned:
            return
        heartbeat.discard(self, wait=False)
        if self.beats and self.is_held:
            text = (
                "redislock: %s was never released: %s. It is no longer extended and expires within"
                " %g s"
            )
            heartbeat.call_soon(partial(logger.warning, text, self.key, why, self.ttl))
        self.is_orphaned = True

    def _go(
        self, steps: Generator[Step | Ask, Any, T], on_busy: Callable[[Busy], None] | None = None
    ) -> T:
        """Take these steps. Returns what they return."""
        try:
            step = next(steps)
            while True:
                try:
                    answer = self._do(step)
                except BaseException as exc:
                    step = steps.throw(exc)
                    continue
                step = steps.send(answer)
                if on_busy is not None and isinstance(answer, Busy):
                    on_busy(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _do(self, step: Step | Ask) -> Any:
        if isinstance(step, Ask):
            return self.server.run(step.call, once=step.once)
        self.asked = True
        if isinstance(step, Sleep):
            return time.sleep(step.seconds)
        if isinstance(step, Block):
            was_in_doubt, self.in_doubt = self.in_doubt, True
            answer = self.server.block(*step)
            self.in_doubt = was_in_doubt or step.call.in_doubt
            return self.accept(answer, clock())
        try:
            answer = self.server.run(step.call, hold_off=step.hold_off)
        finally:
            self.in_doubt = self.in_doubt or step.call.in_doubt
        return self.accept(answer)

    # -- the heartbeat --------------------------------------------------------------------

    def keep_alive(self) -> None:
        if self.beats:
            if not sys.modules.keys().isdisjoint(PATCHERS):  # which looks up only these
                self.teller = teller_here()
            heartbeat.add(self)

    def extension(self, now: float) -> Extension | None:
        """The extension to send now; None if the lock is no longer extended."""
        return self.extension_at(now) if self.may_extend(now) else None

    def answered(self, reply: Extended | LockUnavailable, sent_at: float, discarded: bool) -> None:
        """Take the reply to an extension. See `Extendable`."""
        if discarded:
            # The lock was released while we asked: the release stopped waiting for this reply.
            if isinstance(reply, Extended) and reply.takes_again:
                self._undo()
        elif not isinstance(reply, LockUnavailable):
            self.extended(reply, sent_at)
        elif not self.is_released:
            self.not_extended(reply.reason, clock())

    def _undo(self) -> None:
        """Release a lock that an extension brought back."""
        self.is_undone = True  # first: the release that goes on may find nothing for that
        try:
            self.server.run(settle(self.claim, Release(publishes=False)), purpose="heartbeat")
        except LockUnavailable as exc:
            self.teller.tell(partial(self.say_not_released, exc))

    # -- reports, in a thread that may log ------------------------------------------------

    def tell(self, news: News) -> None:
        """Log this, and tell whoever wants to hear it."""
        if news.kind is LOST:
            heartbeat.discard(self, wait=False)
        self.teller.tell(partial(self._report, news))

    def _report(self, news: News) -> None:
        kind, why, by, late, ends = news
        if kind.text:
            own, more = self.holder, {"holder": by} if by is not None else {"reason": why}
            extra = kind.outcome and fields(
                kind.outcome, self.key, task=own.task, task_id=own.task_id, attempt=own.attempt,
                label=own.label, fence=self.fence, **more,
            )  # fmt: skip
            known = {"key": self.key, "holder": own, "why": why, "by": by and by.task_id}
            words = [known[name] for name in kind.names.split()]
            logger.log(kind.level, f"redislock: {kind.text}", *words, extra=extra or None)
        try:
            if ends and self._on_lost is not None:
                self._on_lost(self)
            if late is not None and self._on_extended is not None:
                self._on_extended(self, late, kind is TAKEN_AGAIN)
        finally:
            self.loss_is_told = self.loss_is_told or kind is LOST

    def say_not_released(self, error: LockUnavailable) -> None:
        """Log that the server did not answer when the lock was given back."""
        # If the lock was never confirmed, the caller reports that it could not be taken.
        logger.log(
            logging.WARNING if self.fence else logging.DEBUG,
            "redislock: could not release %s; it expires within %g s: %s",
            self.key, self.ttl, error.reason,
        )  # fmt: skip
