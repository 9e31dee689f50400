"""Keeps a process from forking while one of our threads is at work.

A forked child has only the thread that forked. A mutex that another thread held at the fork, such
as a connection pool's, a metric's or a producer's, stays locked in the child for ever. A prefork
worker's main process forks whenever a child has died, just when our threads are busy with the lock
of the dead child.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Final

from ..protocol.clock import clock
from ..protocol.platform import at_fork

#: The most seconds that forks wait for a thread, once: a hanging thread must not stop the worker,
#: which forks all its children in a row and kills those that do not report within seconds.
LONGEST_WAIT: Final = 0.2
#: Seconds between two looks at the gate.
LOOK_EVERY: Final = 0.001


class ForkGate:
    """A context manager for the work of our background threads: forks wait until it is done.

    Forks wait only after `use`: elsewhere a task's body or a greenlet may fork. The gate has no
    mutex itself: each step is one operation on a set or a number. Do not nest it.
    """

    def __init__(self) -> None:
        self._reset()
        at_fork(before=self._close, after_in_parent=self._open, after_in_child=self._reset)

    def _reset(self) -> None:
        self._in_use = False
        self._inside: set[int] = set()
        #: Threads inside that a fork has stopped waiting for.
        self._given_up: set[int] = set()
        # A time, not a flag: a flag would stay set for ever if `_open` were cut short.
        self._closed_until = 0.0

    def use(self) -> None:
        """From now on, forks of this process wait. Forks of its children do not."""
        self._in_use = True

    def __enter__(self) -> None:
        me = threading.get_ident()
        self._given_up.discard(me)
        while True:
            self._inside.add(me)  # first: else a fork that begins now would not see this thread
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
            self._closed_until = give_up + 1.0  # each time: another thread's fork may reset it
            if not self._inside - self._given_up - {threading.get_ident()}:
                return
            time.sleep(LOOK_EVERY)
        self._given_up |= self._inside

    def _open(self) -> None:
        self._closed_until = 0.0


between_forks: Final = ForkGate()
