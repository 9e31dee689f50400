"""The steps of a wait for a lock. Does no I/O: the caller carries out the steps."""

# No `from __future__ import annotations`: with it a `NamedTuple` takes twice as long to make.
from collections.abc import Generator
from typing import Final, NamedTuple, TypeAlias

from ..errors import LockUnavailable
from .calls import MAX_BLOCK, acquire
from .claims import Acquired, Busy, Claim, Done
from .clock import clock
from .exchange import Call

Answer: TypeAlias = Acquired | Busy | Done

#: Seconds between looks at a key that is not a lock of ours: its owner wakes nobody.
FOREIGN: Final = 0.5
#: The most seconds between looks at a lock that is suspended: nobody wakes those who wait for it.
SUSPENDED_FOR: Final = 1.0
#: Seconds between tries while a server is not reachable.
RETRY_EVERY: Final = 0.1


class Try(NamedTuple):
    """Ask for the lock."""

    call: Call[Answer]
    #: Seconds that the caller can wait for a restarted server's hold-off to end; None for all of
    #: it, a third of the ttl.
    hold_off: float | None


class Block(NamedTuple):
    """Block until a release wakes this waiter, then ask for the lock, in the same round trip. A
    waiter whose block times out asks like one that was woken: at worst it takes a lock that is kept
    for another waiter, which then waits on.
    """

    call: Call[Answer]
    wake: str  # the key of the list to block on
    seconds: float  # the longest block


class Sleep(NamedTuple):
    """Sleep for this many seconds."""

    seconds: float


Step: TypeAlias = Try | Block | Sleep


def waiting(
    claim: Claim, timeout: float | None, for_message: bool = True, again: str = ""
) -> Generator[Step, Answer | None, Answer]:
    """The steps of a wait of so many seconds, or without end: until the lock is released, or may
    have expired; with `for_message` also while it is kept for a message in the queue. `again`: see
    `acquire`. The caller sends each step's answer, or None if none came in time, and throws
    `LockUnavailable`.
    """
    give_up = None if timeout is None else clock() + timeout
    answer: Answer | None = None
    is_listed = False  # whether we are among the lock's waiters: a release wakes one of them
    while True:
        left = None if give_up is None else max(give_up - clock(), 0.0)
        goes_on = left != 0
        if answer is None or is_listed is not goes_on:
            answer = yield Try(acquire(claim, "wait" if goes_on else "last", again), left)
            assert answer is not None
            is_listed = goes_on
        # "own": another copy of this message has the lock.
        if not isinstance(answer, Busy) or answer.relation == "own" or not goes_on:
            return answer
        if answer.for_message and not for_message:
            answer = yield Try(acquire(claim, "last", again), left)
            assert answer is not None
            is_listed = False  # "last" took us off the list of waiters
            if not isinstance(answer, Busy) or answer.relation == "own" or answer.for_message:
                return answer
            continue
        if answer.suspension is not None:
            pause = min(answer.remaining + 0.001, SUSPENDED_FOR)
            yield Sleep(pause if left is None else min(pause, left))
            answer, is_listed = None, False
            continue
        pause = _pause(answer, claim.ttl)
        is_last = left is not None and pause >= left
        if left is not None:
            pause = min(pause, left)
        try:
            call = acquire(claim, "last" if is_last else "woken", again)
            answer = yield Block(call, claim.keys.wake, max(min(pause, MAX_BLOCK), 0.01))
            is_listed = not is_last
        except LockUnavailable:
            yield Sleep(min(pause, RETRY_EVERY))
            answer = None  # ask again by `Try`, which raises when its own tries are used up


def _pause(busy: Busy, ttl: float) -> float:
    """Seconds until the next look, when the lock of a holder that died may have expired."""
    pause = min(busy.remaining + 0.001, ttl / 3, MAX_BLOCK)
    return min(pause, FOREIGN) if busy.relation == "foreign" else pause
