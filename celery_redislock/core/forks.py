"""Threads in a process that forks: none of them is in the middle of something when it does.

A forked child is a copy of the moment, with no thread in it but the one that forked. A mutex that
another one held then, be it of a connection pool, a metric or a producer, is held in the child for
ever. A prefork worker's main process forks whenever a child has died, which is just when our
threads have something to do for the dead one.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Final

from .clock import clock

#: Seconds that a fork waits at most for a thread, once: what hangs must not stop the worker, which
#: forks all its children in a row and kills those that it does not hear of within seconds.
LONGEST_WAIT: Final = 0.2
#: Seconds between looks.
LOOK_EVERY: Final = 0.001


class ForkGate:
    """A context manager for what threads do beside a process's own work. Forks come between.

    Only where it is in use: elsewhere a body may fork, in whose midst an exception may be raised
    that must not be lost, or a greenlet. It has no mutex itself: each of its steps is one operation
    on a set or a number. Do not nest it.
    """

    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(
            before=self._close, after_in_parent=self._open, after_in_child=self._begin
        )

    def _begin(self) -> None:
        self._in_use = False
        self._inside: set[int] = set()
        #: Those inside that a fork has waited for long enough.
        self._given_up: set[int] = set()
        # No flag, which would stay up for good if `_open` were cut short.
        self._closed_until = 0.0

    def use(self) -> None:
        """From now on this process's forks wait. Not those of its children."""
        self._in_use = True

    def __enter__(self) -> None:
        me = threading.get_ident()
        self._given_up.discard(me)
        while True:
            self._inside.add(me)  # first, or a fork that begins now would not see it
            if clock() >= self._closed_until:
                return
            self._inside.discard(me)
            time.sleep(LOOK_EVERY)

    def __exit__(self, *exc_info: Any) -> None:
        self._inside.discard(threading.get_ident())

    def _close(self) -> None:
        if not self._in_use:
            return
        give_up = clock() + LONGEST_WAIT
        while clock() < give_up:
            self._closed_until = give_up + 1.0  # again: another thread's fork may have ended
            if not self._inside - self._given_up - {threading.get_ident()}:
                return
            time.sleep(LOOK_EVERY)
        self._given_up |= self._inside

    def _open(self) -> None:
        self._closed_until = 0.0


#: The process's gate.
between_forks: Final = ForkGate()
