"""Waiting for a lock until it is taken."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeGuard

from ..errors import LockUnavailable
from ..protocol.claims import Acquired, Busy, Done
from ..protocol.clock import clock
from ..protocol.wire import MAX_BLOCK
from .heartbeat import RETRY_EVERY
from .lease import Lease

#: Seconds between looks at a key that is not a lock of ours: its owner wakes nobody.
FOREIGN: Final = 0.5


def wait_for(
    lease: Lease,
    timeout: float | None,
    on_busy: Callable[[Busy], None] | None = None,
    for_message: bool = True,
) -> Acquired | Busy | Done:
    """Wait until the lock is taken. Looks again when it is released, and when it can have expired.

    Args:
        lease: the lease that takes it.
        timeout: seconds; None waits for ever.
        on_busy: called with each reply that somebody else has the lock.
        for_message: wait also while the lock is kept for a message in the queue.

    Raises:
        LockUnavailable: the server did not answer in time.
    """
    give_up = None if timeout is None else clock() + timeout
    reply: Acquired | Busy | Done | None = None
    is_listed = False  # among the lock's waiters; a release wakes one of them
    while True:
        left = None if give_up is None else max(give_up - clock(), 0.0)
        goes_on = left != 0
        if reply is None or is_listed is not goes_on:
            reply = lease.take("wait" if goes_on else "last", left)
            is_listed = goes_on
        if isinstance(reply, Busy) and on_busy is not None:
            on_busy(reply)
        if not _is_waited_for(reply) or not goes_on:
            return reply
        if reply.for_message and not for_message:
            reply, is_listed = lease.take("last", left), False  # it no longer waits here
            if not _is_waited_for(reply) or reply.for_message:
                return reply
            if on_busy is not None:
                on_busy(reply)
            continue
        pause = _pause(reply, lease.ttl)
        is_last = left is not None and pause >= left
        if left is not None:
            pause = min(pause, left)
        try:
            reply = lease.take_when_woken(pause, "last" if is_last else "woken")
            is_listed = not is_last
        except LockUnavailable:
            time.sleep(min(pause, RETRY_EVERY))
            reply = None  # ask again: that raises, after its tries


def _is_waited_for(reply: Acquired | Busy | Done) -> TypeGuard[Busy]:
    """Whether somebody else has the lock. "own": another copy of this message has it."""
    return isinstance(reply, Busy) and reply.relation != "own"


def _pause(busy: Busy, ttl: float) -> float:
    """Seconds until the next look. A holder that dies wakes nobody, so look when its lock can have
    expired.
    """
    pause = min(busy.remaining + 0.001, ttl / 3, MAX_BLOCK)
    return min(pause, FOREIGN) if busy.relation == "foreign" else pause
