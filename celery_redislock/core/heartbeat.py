"""The heartbeat: one native daemon thread a process, which keeps every held lock alive.

It is native also where threads are patched: a greenlet starves while another one computes. There a
greenlet tells what it found out, see `greenlets`.
All locks of a server that are due go out in one round trip. In a prefork worker the main process
has one too, for the locks that its children hold.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from ..errors import LockUnavailable
from .claims import NOT_OURS, RETAKEN, Claim, Extended, Extension
from .clock import clock
from .forks import between_forks
from .greenlets import AT_ONCE, native_lock, start_native, teller_here
from .log import get_logger
from .store import Store

logger = get_logger()

#: Seconds between tries while a server is not reachable.
RETRY_EVERY: Final = 0.1
#: Locks that are due within this part of their interval go along with those that are due now.
EARLY: Final = 0.25
#: Seconds between looks at whether an extension is still under way.
IN_FLIGHT: Final = 0.001
#: The longest sleep, in seconds, so that a thread without locks costs nothing to speak of.
IDLE: Final = 60.0


class Extendable(Protocol):
    """What the heartbeat keeps alive.

    Attributes:
        token: the claim's token.
        ttl: seconds that the lock outlives its holder.
        next_beat: when it is to be extended next, on `clock`.
        store: where it is.
    """

    token: str
    ttl: float
    next_beat: float

    @property
    def store(self) -> Store: ...

    @property
    def claim(self) -> Claim:
        """Which lock, and by which right. May raise what a task's `lock_key` raises."""

    def report(self) -> dict[str, Any] | None:
        """What is known of it, for people; None if nothing is to be said."""

    def may_extend(self, now: float) -> bool:
        """Whether it may be extended now."""

    def stop_extending(self) -> None:
        """It may not."""

    def extension(self, now: float) -> Extension:
        """What an extension that is sent now says."""

    def beat_succeeded(self, sent_at: float, reply: Extended) -> None:
        """It was extended, or had vanished and was taken again. Another may wait for its end."""

    def beat_denied(self) -> None:
        """The server has another holder, or none."""

    def went_unanswered(self) -> None:
        """An extension was sent and not answered: it may yet reach the server. Said before
        `Heartbeat.discard` stops to wait for it.
        """

    def beat_failed(self, error: LockUnavailable, again_at: float) -> None:
        """The server could not be asked."""

    def undo_retake(self) -> None:
        """It was taken again after it was discarded."""


class Heartbeat:
    """Extends leases every third of their ttl until they are discarded or lost."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        # Weak: a lock that its owner forgot must lapse, not live as long as the process.
        self._leases: dict[str, weakref.ref[Extendable]] = {}
        self._alarm = _Alarm()
        self._sleeping_until = 0.0
        self._idle = IDLE
        self._thread_id: int | None = None
        self._in_flight: frozenset[str] = frozenset()
        self._starting = native_lock()
        self._calls: deque[Callable[[], None]] = deque()
        self._teller = AT_ONCE

    def add(self, lease: Extendable) -> None:
        """Keep this lease alive, from a third of its ttl on."""
        self._leases[lease.token] = weakref.ref(lease)
        if self._thread_id is None:
            with self._starting:
                if self._thread_id is None:
                    self._teller = teller_here()
                    self._thread_id = start_native(self._run, "redislock-heartbeat")
        if lease.next_beat < self._sleeping_until:
            self._idle = max(lease.next_beat - clock(), IN_FLIGHT)
            self._alarm.ring()

    def discard(self, lease: Extendable) -> bool:
        """Stop extending this lease. An extension under way is waited for, within bounds.

        Returns:
            Whether one was under way. Unless it was answered, it may still reach the server.
        """
        self._leases.pop(lease.token, None)
        if lease.token not in self._in_flight:
            return False
        # No lock is taken to wait: an exception from outside, such as a soft time limit, could
        # leave it locked, and the heartbeat would stand still.
        give_up = clock() + lease.ttl / 6
        while lease.token in self._in_flight and clock() < give_up:
            time.sleep(IN_FLIGHT)
        return True

    def beat_now(self, lease: Extendable) -> None:
        """Extend this lease at once, not when it is due."""
        lease.next_beat = clock()
        self._alarm.ring()

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call this in the heartbeat's thread, if there is one, or in a greenlet where threads are
        patched. A finalizer may use it: it waits for no lock.
        """
        self._calls.append(call)
        self._alarm.ring()

    def _run(self) -> None:
        while True:
            try:
                with between_forks:
                    self._beat()
                    while self._calls:
                        self._teller.tell(self._calls.popleft())
                self._sleep()
            except Exception as exc:
                # A renewal thread that dies in silence is a double execution.
                self._teller.tell(partial(_say_bug, exc))
                self._alarm.wait(RETRY_EVERY)

    def live(self) -> list[Extendable]:
        """What is being kept alive."""
        leases = []
        for token, ref in list(self._leases.items()):
            lease = ref()
            if lease is None:
                self._leases.pop(token, None)
            else:
                leases.append(lease)
        return leases

    def _sleep(self) -> None:
        now = clock()
        until = min((lease.next_beat for lease in self.live()), default=None)
        if until is None:
            # As if there were one: else each lock that is taken and soon released would have to
            # wake this thread. Longer and longer if there is none.
            until = now + self._idle
            self._idle = min(2 * self._idle, IDLE)
        self._sleeping_until = min(until, now + IDLE)
        # A lease that was added before the line above saw an older time to sleep until.
        until = min((lease.next_beat for lease in self.live()), default=self._sleeping_until)
        self._alarm.wait(max(min(until, self._sleeping_until) - clock(), 0.0))
        self._sleeping_until = 0.0

    def _beat(self) -> None:
        now = clock()
        leases = self.live()
        if not any(lease.next_beat <= now for lease in leases):
            return
        batches: dict[Any, list[Extendable]] = {}
        for lease in leases:
            if lease.next_beat <= now + EARLY * lease.ttl / 3:
                batches.setdefault(lease.store, []).append(lease)
        # A server that hangs must not cost the locks of another one: each gets only as long as
        # the shortest ttl of all allows.
        shortest = min(lease.ttl for lease in leases)
        for store, batch in batches.items():
            self._extend(store, batch, shortest)

    def _extend(self, store: Any, batch: list[Extendable], shortest: float) -> None:
        now = clock()
        expired = [lease for lease in batch if not lease.may_extend(now)]
        for lease in expired:
            lease.stop_extending()
        batch = [lease for lease in batch if lease not in expired]
        if not batch:
            return
        self._in_flight = frozenset(lease.token for lease in batch)
        try:
            # Discarded between the collection and the line above: it must not be extended.
            batch = [lease for lease in batch if lease.token in self._leases]
            sent_at = clock()
            replies = _extend_all(store, batch, sent_at, shortest)
            for lease, reply in zip(batch, replies, strict=True):
                if isinstance(reply, LockUnavailable):
                    lease.went_unanswered()
        finally:
            self._in_flight = frozenset()
        for lease, reply in zip(batch, replies, strict=True):
            if lease.token not in self._leases:
                # Released while we asked, and not waited for long enough.
                if isinstance(reply, Extended) and reply.outcome == RETAKEN:
                    lease.undo_retake()
            elif isinstance(reply, LockUnavailable):
                lease.beat_failed(reply, clock() + RETRY_EVERY)
            elif reply.outcome == NOT_OURS:
                lease.beat_denied()
            else:
                lease.beat_succeeded(sent_at, reply)


def _say_bug(error: Exception) -> None:
    logger.error("redislock: the heartbeat met a bug in itself; it goes on", exc_info=error)


def _extend_all(store: Any, batch: list[Extendable], now: float, shortest: float) -> list[Any]:
    if not batch:
        return []
    try:
        return list(store.locks.extend([lease.extension(now) for lease in batch], shortest))
    except LockUnavailable as exc:
        return [exc] * len(batch)


class _Alarm:
    """A sleep that another thread, or greenlet, can end. Made of one native lock."""

    def __init__(self) -> None:
        self._lock = native_lock()
        self._lock.acquire()

    def wait(self, seconds: float) -> None:
        self._lock.acquire(timeout=seconds)

    def ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # rung before
            self._lock.release()


#: The process's heartbeat.
heartbeat: Final = Heartbeat()

# Threads do not survive a fork, and the parent's locks are not the child's.
os.register_at_fork(after_in_child=heartbeat._reset)
