"""Tells when a child process is gone: when no code of it can run any more, and not before.

Asks the kernel and not the pool: Celery may take five seconds to notice a killed child, and
reports a hard time limit some 100 ms early, while the child's `finally` blocks still run.
"""

from __future__ import annotations

import atexit
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from ..lock.forks import between_forks

#: Seconds between looks at a process where the kernel has no pidfd (Linux before 5.3, others).
LOOK_EVERY: Final = 0.05
#: Seconds that the end of this process waits for the callbacks of children that are gone.
LAST_WAIT: Final = 3.0


class ChildWatch:
    """Waits for processes to end, with one sleeping daemon thread for each."""

    def __init__(self) -> None:
        self._callbacks: dict[int, Callable[[], Any]] = {}
        self._threads: dict[int, threading.Thread] = {}
        #: Threads that run their callback.
        self._calling: set[threading.Thread] = set()
        atexit.register(self._finish)
        os.register_at_fork(after_in_child=self._forget)

    def on_exit(self, pid: int, callback: Callable[[], Any]) -> None:
        """Call this when the process is gone, instead of an earlier callback for it.

        At once if it already is. The call comes from another thread.
        """
        # This order, and the reverse in _wait: so it is called whatever comes in between.
        self._callbacks[pid] = callback
        if pid not in self._threads:
            thread = threading.Thread(
                target=self._wait, args=(pid,), name=f"redislock-child-{pid}", daemon=True
            )
            self._threads[pid] = thread
            thread.start()

    def _wait(self, pid: int) -> None:
        await_exit(pid)
        self._calling.add(threading.current_thread())
        self._threads.pop(pid, None)
        callback = self._callbacks.pop(pid, None)
        if callback is not None:
            with between_forks:
                callback()
        self._calling.discard(threading.current_thread())

    def _finish(self) -> None:
        # A worker that ends has just ended its children.
        give_up = time.monotonic() + LAST_WAIT
        threads = [thread for pid, thread in list(self._threads.items()) if not is_alive(pid)]
        for thread in {*threads, *self._calling}:
            thread.join(max(give_up - time.monotonic(), 0.0))

    def _forget(self) -> None:
        self._callbacks, self._threads, self._calling = {}, {}, set()


def await_exit(pid: int) -> None:
    """Return when the process is gone, or a zombie."""
    try:
        fd = os.pidfd_open(pid)
    except (AttributeError, OSError):
        # No such call here, or no such process any more.
        while is_alive(pid):
            time.sleep(LOOK_EVERY)
        return
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll()
    finally:
        os.close(fd)


def is_alive(pid: int) -> bool:
    """Whether any code of the process may still run."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return True  # no /proc here: the worker reaps its children soon
