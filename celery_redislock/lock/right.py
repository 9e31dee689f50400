"""The right to a lock: how long it is ours, on this process's own clock, and how it was lost."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from ..errors import LockUnavailable
from ..protocol import holders
from ..protocol.claims import Acquired, Claim
from ..protocol.clock import clock
from ..protocol.holders import Holder
from ..protocol.log import fields, get_logger
from .greenlets import AT_ONCE, native_lock

logger = get_logger()


class Right:
    """The right to a lock that was acquired.

    It ends ttl after the last successful acquire or extend was *sent*. Any thread may find out that
    it was lost, or that the run must end for another one. That is reported once, and not after the
    lock was given back.

    Attributes:
        key: the lock's whole key in Redis.
        ttl: seconds.
        fence: the acquisition's fence, 0 while not acquired.
        stored: the lock's value, as it was stored on the server.
        acquired_at: when, on `clock`.
        deadline: when the right ends, on `clock`.
        given_back: it was given back, or that was tried.
        lost: ownership can no longer be confirmed. Never False again.
        replaced_by: the task for which the run must end, or None.
        lost_because: why it was lost, for people.
        loss_is_told: the loss was logged, and `on_lost` was called.
        teller: what reports it, where threads are patched.
        pid: the process that has it.
    """

    # Defaults on the class: one of these is made for each task that runs, and few change them.
    fence = 0
    stored = ""
    acquired_at = deadline = 0.0
    given_back = lost = loss_is_told = False
    replaced_by: Holder | None = None
    lost_because = ""
    teller = AT_ONCE

    def __init__(self, claim: Claim, on_lost: Callable[[Right], None] | None) -> None:
        self.key = claim.keys.lock
        self.ttl = claim.ttl
        self.pid = os.getpid()
        self._on_lost = on_lost
        self._mutex = native_lock()

    def begin(self, acquired: Acquired, at: float) -> None:
        """The lock was acquired, at that time."""
        self.fence = acquired.fence
        self.stored = acquired.value
        self.acquired_at = at
        self.renew(acquired.sent_at)

    def renew(self, sent_at: float) -> None:
        """What was sent at that time was confirmed: the lock is ours."""
        self.deadline = sent_at + self.ttl

    @property
    def holder(self) -> Holder:
        """The holder in the stored value."""
        return holders.parse(self.stored.encode(), None) or Holder()

    def report(self) -> dict[str, Any]:
        """What this process knows of the lock, as plain data. Does not ask the server."""
        now = clock()
        holder = self.holder
        return {
            "key": self.key,
            "task": holder.task,
            "task_id": holder.task_id,
            "attempt": holder.attempt,
            "label": holder.label,
            "pid": self.pid,
            "fence": self.fence,
            "held": not self.lost and now < self.deadline,
            "held_for": round(now - self.acquired_at, 3),
            "confirmed_ago": round(now - (self.deadline - self.ttl), 3),
            "ttl": self.ttl,
        }

    # -- its end --------------------------------------------------------------------------

    def lose(self, reason: str) -> None:
        """Ownership can no longer be confirmed."""
        with self._mutex:
            if self.lost or self.given_back:
                return
            self.lost = True
            is_news = self.replaced_by is None
        self.lost_because = reason
        self.teller.tell(partial(self._say_lost, reason, is_news))

    def be_replaced(self, by: Holder) -> None:
        """The run must end: another one waits to take its place."""
        with self._mutex:
            told, self.replaced_by = self.replaced_by is not None, by
            if told or self.lost or self.given_back:
                return
        self.lost_because = f"{by.task_id} replaces it"
        self.teller.tell(partial(self._say_replaced, by))

    # -- reporting it ---------------------------------------------------------------------

    def warn(self, text: str, *arguments: Any, **more: Any) -> None:
        """Log a warning, in a thread that may log."""
        self.teller.tell(partial(logger.warning, text, *arguments, **more))

    def fields(self, outcome: str, **more: Any) -> dict[str, Any]:
        """The fields of its log lines for machines: the task that holds the lock, if one does."""
        own = self.holder
        return fields(
            outcome, self.key, task=own.task, task_id=own.task_id, attempt=own.attempt,
            label=own.label, fence=self.fence, **more,
        )  # fmt: skip

    def say_not_released(self, error: LockUnavailable) -> None:
        """Log that the server did not answer when the lock was given back."""
        # If it was never confirmed, the caller reports that it could not be taken.
        logger.log(
            logging.WARNING if self.fence else logging.DEBUG,
            "redislock: could not release %s; it expires within %g s: %s",
            self.key, self.ttl, error.reason,
        )  # fmt: skip

    def _say_lost(self, reason: str, is_news: bool) -> None:
        logger.error(
            "redislock: LOST %s, held by %s: %s",
            self.key, self.holder, reason,
            extra=self.fields("lost", reason=reason),
        )  # fmt: skip
        try:
            if self._on_lost is not None and is_news:
                self._on_lost(self)
        finally:
            self.loss_is_told = True

    def _say_replaced(self, by: Holder) -> None:
        logger.warning(
            "redislock: %s must end: %s replaces it and waits for %s",
            self.holder, by.task_id, self.key,
            extra=self.fields("to be replaced", holder=by),
        )  # fmt: skip
        if self._on_lost is not None:
            self._on_lost(self)
