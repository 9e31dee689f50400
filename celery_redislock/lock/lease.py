"""A lease: one acquisition of a lock."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ..errors import LockLost, LockUnavailable
from ..protocol import holders, past
from ..protocol.claims import Acquired, Busy, Claim, Done, Settled
from ..protocol.clock import clock
from ..protocol.holders import Holder
from ..protocol.log import get_logger
from ..servers.store import Store
from .greenlets import teller_here
from .heartbeat import heartbeat
from .right import Right
from .upkeep import Upkeep

logger = get_logger()


class Heir(NamedTuple):
    """How a lock is left to another message: what makes the new value from the old one, and for how
    many seconds it is kept.
    """

    value: Callable[[str], str]
    seconds: float


class Lease:
    """One delivery's acquisition of a lock, from the claim to the release. What `self.lock` is in a
    task.

    Attributes:
        key: the lock's whole key in Redis.
        token: the proof of ownership.
        ttl: seconds that the lock outlives a dead holder.
        right: the right to the lock, once it is acquired.
        upkeep: what extends it.
        heir: the task's next message, to which the lock is left instead of being released.
        unheard: the release to repeat, with its `note` and `always`, if the server did not answer
            it; else None.
    """

    heir: Heir | None = None
    unheard: Callable[..., Settled] | None = None
    _asked = False

    def __init__(
        self,
        store: Store,
        claim: Claim,
        *,
        max_hold: float | None = None,
        beats: bool = True,
        listens: bool = False,
        on_lost: Callable[[Right], None] | None = None,
        on_extended: Callable[[Right, float, bool], None] | None = None,
    ) -> None:
        self.store = store
        self.claim = claim
        self.key = claim.keys.lock
        self.token = claim.token
        self.ttl = claim.ttl
        self.right = right = Right(claim, on_lost)
        self.upkeep = Upkeep(
            store, claim, right, max_hold=max_hold, listens=listens, on_extended=on_extended
        )
        self._beats = beats

    def __repr__(self) -> str:
        return f"<Lease of {self.key} fence={self.fence} lost={self.right.lost}>"

    # -- for the body ---------------------------------------------------------------------

    @property
    def fence(self) -> int:
        """An int that rises with every acquisition of the key. Pass it to the resource, which must
        refuse a lower one than it has seen: that gives correctness, the lock alone does not
        (Kleppmann, "How to do distributed locking", 2016). 0 while not acquired.
        """
        return self.right.fence

    @property
    def label(self) -> str | None:
        """The lock's name for people, by `lock_label`; or None."""
        return self.right.holder.label

    @property
    def lost(self) -> bool:
        """True once ownership can no longer be confirmed, or a newer run waits for this one to end.
        Then it stays True.

        Past the deadline it asks the server once more, which may take a twelfth of the ttl.
        """
        right = self.right
        if right.lost or right.replaced_by is not None:
            return True
        if not right.fence:
            return False
        if not right.given_back and clock() >= right.deadline:
            if self.inherited:
                return True  # a forked child must not extend the lock
            self.upkeep.confirm()
        return right.lost

    def ensure(self) -> None:
        """Go on only as the lock's holder.

        Raises:
            LockLost: the lock was lost.
        """
        if self.lost:
            raise LockLost(self.key, holders.parse(self.right.stored.encode(), None))

    @property
    def inherited(self) -> bool:
        """Whether this process is a fork of the one that holds the lock."""
        return self.right.pid != os.getpid()

    @property
    def acquired_at(self) -> float:
        """When it was acquired, on `clock`."""
        return self.right.acquired_at

    @property
    def replaced_by(self) -> Holder | None:
        """The task for which this run must end, or None."""
        return self.right.replaced_by

    @property
    def given_back(self) -> bool:
        """Whether the server has nothing of ours, as far as we know."""
        return self.right.given_back or not self._asked

    @property
    def is_held(self) -> bool:
        """Whether this process believes that it holds the lock. Does not ask the server."""
        right = self.right
        if self.given_back or self.inherited or right.lost:
            return False
        return right.fence > 0 and clock() < right.deadline

    # -- taking and giving back -----------------------------------------------------------

    def take(
        self, how: str = "try", hold_off: float | None = None, again: bool = False, note: str = ""
    ) -> Acquired | Busy | Done:
        """One try to take the lock. See `Locks.acquire`.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        self._asked = True
        reply = self.store.locks.acquire(self.claim, how, hold_off, again, note)
        if isinstance(reply, Acquired):
            self._taken(reply, reply.sent_at)
        else:
            self._asked = False
        return reply

    def take_when_woken(self, seconds: float, how: str = "woken") -> Acquired | Busy | Done | None:
        """Sleep until the lock is handed on, at most this many seconds, then try to take it. See
        `Locks.acquire_when_woken`.

        Returns:
            None if the answer came so late that the right has ended: ask again.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        self._asked = True
        reply = self.store.locks.acquire_when_woken(self.claim, seconds, how)
        if not isinstance(reply, Acquired):
            self._asked = False
            return reply
        # The right counts from before the sleep: nobody knows when the sleep ended.
        now = clock()
        if now >= reply.sent_at + self.ttl:
            return None
        self._taken(reply, now)
        return reply

    def _taken(self, reply: Acquired, at: float) -> None:
        self.right.begin(reply, at)
        self.upkeep.begin(reply)
        if self._beats:
            self.right.teller = teller_here()
            heartbeat.add(self.upkeep)

    def release(self, note: str = "", always: bool = False, min_hold: float = 0.0) -> bool:
        """Give the lock back, without publishing the next task. See `settle`.

        Returns:
            Whether the lock was still ours.
        """
        settled = self.settle(note, always, min_hold, publishes=False, how=past.RELEASED)
        return settled is not None and settled.ours

    def settle(
        self,
        note: str = "",
        always: bool = False,
        min_hold: float = 0.0,
        take_out: str = "",
        publishes: bool = True,
        how: str = past.NOT_RUN,
    ) -> Settled | None:
        """Give the lock back. Safe to call twice, late, or by a loser. See `Locks.settle`. `how` is
        how the run ended, for the history.

        Returns:
            The server's reply; None if it was not asked, or did not answer.
        """
        if not self._may_give_back():
            return None
        settle = partial(
            self.store.locks.settle,
            self.claim,
            min_hold=min_hold,
            take_out=take_out,
            publishes=publishes,
            run_end=self._end(how),
            stray=self.upkeep.unanswered,
        )
        try:
            # If it was never confirmed, the server may have taken it, and the reply got lost.
            reply = settle(note=note, always=always, once=not self.fence)
        except LockUnavailable as exc:
            self.right.given_back = True
            self.right.say_not_released(exc)
            self.unheard = settle
            return None
        self.right.given_back = True
        return reply._replace(ours=False) if self.right.lost else reply

    def leave_to(self, heir: Heir, how: str = past.NOT_RUN) -> bool:
        """Leave the lock to a message of this task. `how` is how the run ended, for the history.

        Returns:
            Whether the lock was still ours.
        """
        if not self._may_give_back():
            return False
        try:
            value, end = heir.value(self.right.stored), self._end(how)
            ours = self.store.locks.leave(self.claim, value, heir.seconds, end)
        except LockUnavailable as exc:
            logger.warning(
                "redislock: could not keep %s for the retry; it expires within %g s: %s",
                self.key, self.ttl, exc.reason,
            )  # fmt: skip
            ours = False
        self.right.given_back = True
        return ours

    def abandon(self) -> None:
        """Stop extending the lock. Another process knows its token, and releases it."""
        if self._may_give_back():
            self.right.given_back = True

    def _end(self, how: str) -> str:
        """The end of the run, for the history."""
        right = self.right
        if not self.claim.history:
            return ""
        if not right.fence:
            return past.NOT_RUN
        how = past.LOST if right.lost else how
        return past.end_text(right.fence, clock() - right.acquired_at, how)

    def _may_give_back(self) -> bool:
        if self.given_back or self.inherited:
            return False
        # Stop the heartbeat first: an extension sent after the release could revive the key.
        if heartbeat.discard(self.upkeep):
            self.upkeep.unanswered = True
        return True
