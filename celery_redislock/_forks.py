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

from ._clock import clock

#: Seconds that a fork waits at most for the threads: a hanging server must not stop the worker.
LONGEST_WAIT: Final = 1.0
#: Seconds between looks.
LOOK_EVERY: Final = 0.001


class ForkGate:
    """A context manager for what threads do beside a process's own work. Forks come between.

    It has no mutex itself: each of its steps is one operation on a set or a flag. Do not nest it.
    """

    def __init__(self) -> None:
        self._reopen()
        os.register_at_fork(
            before=self._close, after_in_parent=self._open, after_in_child=self._reopen
        )

    def _reopen(self) -> None:
        self._inside: set[int] = set()
        self._closed = False

    def __enter__(self) -> None:
        me = threading.get_ident()
        while True:
            self._inside.add(me)  # first, or a fork that begins now would not see it
            if not self._closed:
                return
            self._inside.discard(me)
            time.sleep(LOOK_EVERY)

    def __exit__(self, *exc_info: Any) -> None:
        self._inside.discard(threading.get_ident())

    def _close(self) -> None:
        self._closed = True
        give_up = clock() + LONGEST_WAIT
        while self._inside - {threading.get_ident()} and clock() < give_up:
            time.sleep(LOOK_EVERY)

    def _open(self) -> None:
        self._closed = False


#: The process's gate.
between_forks: Final = ForkGate()
