"""The heartbeat: one native daemon thread per process, which keeps every held lock alive.

It is native also where threads are patched, see `greenlets`: a greenlet starves while another one
computes. All locks of a server that are due are extended in one round trip. In a prefork worker the
main process has a heartbeat too, for the locks that its children hold.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from ..errors import LockUnavailable
from ..protocol.calls import extend
from ..protocol.claims import Extended, Extension
from ..protocol.clock import clock
from ..protocol.platform import at_fork, notice_fork
from ..protocol.turns import Turn
from ..protocol.waiting import RETRY_EVERY
from ..servers.server import Server
from .forks import between_forks
from .greenlets import AT_ONCE, Alarm, native_lock, start_native, teller_here

#: Locks that are due within this part of their interval are extended with those that are due now.
EARLY: Final = 0.25
#: Seconds between two looks at whether an extension is still under way.
IN_FLIGHT: Final = 0.001
#: Seconds within which a thread that was started begins to run.
STARTS_WITHIN: Final = 1.0
#: The longest sleep, in seconds, so that a thread without locks costs almost nothing.
IDLE: Final = 60.0


class Extendable(Protocol):
    """A lock that the heartbeat keeps alive."""

    ttl: float  # seconds that the lock outlives its holder
    next_beat: float  # when to extend the lock next, on `clock`

    @property
    def server(self) -> Server: ...

    def extension(self, now: float) -> Extension | None:
        """The extension to send now; None if this has set `next_beat`, or discarded the lock."""

    def answered(self, reply: Extended | LockUnavailable, sent_at: float, discarded: bool) -> None:
        """Take the reply to an extension, or why there is none; `discarded`: nobody waits."""


_Ref = weakref.ref[Extendable]


class Heartbeat:
    """Extends leases every third of their ttl until they are discarded or lost."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        # Weak: a lock that its owner dropped must expire, not live as long as the process. A dict,
        # whose order is that in which they came: a set's is by their addresses.
        self._leases: dict[_Ref, None] = {}
        self._alarm = Alarm(native_lock())
        self._sleeping_until = 0.0
        self._idle = IDLE
        #: Has this process once the thread runs. The thread puts it in, and a second one finds it.
        self._threads: dict[int, object] = {}
        self._in_flight: frozenset[_Ref] = frozenset()
        #: Those of them that were discarded, and whose reply nobody waits for.
        self._overtaken: set[_Ref] = set()
        #: Leases with an unanswered extension, which may reach the server at any time.
        self._unanswered: frozenset[_Ref] = frozenset()
        self._start_turn = Turn()
        self._calls: deque[Callable[[], None]] = deque()
        self._teller = AT_ONCE

    def add(self, lease: Extendable) -> None:
        """Keep this lease alive, from a third of its ttl on."""
        if os.getpid() not in self._threads:
            self._start()
        self._leases[weakref.ref(lease)] = None
        if lease.next_beat < self._sleeping_until:
            self._idle = max(lease.next_beat - clock(), IN_FLIGHT)
            self._alarm.ring()

    def _start(self) -> None:
        """Start the thread, unless another caller is just starting it."""
        notice_fork()
        mine = object()
        try:
            if self._start_turn.take(mine, STARTS_WITHIN):
                self._teller = teller_here()
                start_native(self._run, "redislock-heartbeat")
        except BaseException:
            self._start_turn.give_back(mine)  # the next lock starts it
            raise

    def discard(self, lease: Extendable, wait: bool = True) -> bool:
        """Stop extending this lease. With `wait`, wait for an extension under way, within bounds.
        Returns whether an extension may still reach the server: one was under way, or had no reply.
        """
        ref = weakref.ref(lease)
        self._leases.pop(ref, None)
        if ref not in self._in_flight:
            return ref in self._unanswered
        # Do not take a lock to wait: an exception from outside, such as a soft time limit, could
        # leave it locked, and the heartbeat would stop.
        give_up = clock() + lease.ttl / 6
        while wait and ref in self._in_flight and clock() < give_up:
            time.sleep(IN_FLIGHT)
        if ref in self._in_flight:
            self._overtaken.add(ref)
        return True

    def beat_now(self, lease: Extendable) -> None:
        """Extend this lease at once, before it is due."""
        lease.next_beat = clock()
        self._alarm.ring()

    def call_soon(self, call: Callable[[], None]) -> None:
        """Have the heartbeat's thread, or a greenlet, make this call. Safe in a finalizer."""
        self._calls.append(call)
        self._alarm.ring()

    def _run(self) -> None:
        me = object()
        if self._threads.setdefault(os.getpid(), me) is not me:
            return  # whoever started the first one was interrupted, and could not know that it runs
        while True:
            try:
                with between_forks:
                    self._beat()
                    while self._calls:
                        self._teller.tell(self._calls.popleft())
                self._sleep()
            except Exception as exc:
                # If this thread died in silence, a task would run twice.
                self._teller.tell_bug("in the heartbeat", exc)
                self._alarm.wait(RETRY_EVERY)

    def live(self) -> list[Extendable]:
        """The leases that are kept alive."""
        leases = []
        for ref in list(self._leases):
            lease = ref()
            if lease is None:
                self._leases.pop(ref, None)
            else:
                leases.append(lease)
        return leases

    def _sleep(self) -> None:
        now = clock()
        until = min((lease.next_beat for lease in self.live()), default=now + IDLE)
        if until > now + self._idle:
            # Sleep as if there were one more lease, due like the last that woke this thread: else
            # each lock that is taken and soon released would have to wake it. Sleep longer and
            # longer while there is none.
            until = now + self._idle
            self._idle = min(2 * self._idle, IDLE)
        self._sleeping_until = until
        # Look again: a lease that was added before the line above saw an older `_sleeping_until`.
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
                batches.setdefault(lease.server, []).append(lease)
        # A server that hangs must not cost another one's locks: each server gets only as long as
        # the shortest ttl allows.
        shortest = min(lease.ttl for lease in leases)
        for server, batch in batches.items():
            self._extend(server, batch, shortest)

    def _extend(self, server: Server, batch: list[Extendable], shortest: float) -> None:
        sent_at = clock()
        asked = [
            (weakref.ref(lease), lease, extension)
            for lease in batch
            if (extension := lease.extension(sent_at)) is not None
        ]
        self._overtaken = set()
        self._in_flight = frozenset(ref for ref, _, _ in asked)
        try:
            # Leases discarded between the collection and the line above must not be extended.
            asked = [each for each in asked if each[0] in self._leases]
            replies = _extend_all(server, [extension for _, _, extension in asked], shortest)
            pairs = list(zip(asked, replies, strict=True))
            silent = {ref for (ref, *_), reply in pairs if isinstance(reply, LockUnavailable)}
            if silent:  # set it before a `discard` that waits for the reply goes on
                living = (ref for ref in self._unanswered | silent if ref() is not None)
                self._unanswered = frozenset(living)
        finally:
            self._in_flight = frozenset()
        for (ref, lease, _), reply in pairs:
            # Whoever waited for the reply, or discards the lease only now, releases the lock later.
            lease.answered(reply, sent_at, discarded=ref in self._overtaken)


def _extend_all(
    server: Server, extensions: list[Extension], shortest: float
) -> list[Extended | LockUnavailable]:
    if not extensions:
        return []
    try:
        return server.run_all(
            [extend(each) for each in extensions], ttl=shortest, purpose="heartbeat"
        )
    except LockUnavailable as exc:
        return [exc] * len(extensions)


heartbeat: Final = Heartbeat()

# Threads do not survive a fork, and the parent's locks are not the child's.
at_fork(after_in_child=heartbeat._reset)
