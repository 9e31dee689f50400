"""Does background work on locks, one errand after another in a thread, and again until the lock
server answers. There may be many errands at once, and the code that adds them must not wait.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from ..core.clock import clock
from ..core.forks import between_forks
from ..core.log import get_logger
from ..errors import LockUnavailable
from .internals import at_pool_process_exit

logger = get_logger()

#: Seconds between two tries if the lock server does not answer.
TRY_AGAIN: Final = 0.25
#: Seconds after which an errand is given up. What it leaves behind expires.
GIVE_UP: Final = 3600.0
#: Seconds that the process waits at its end for what is left to do.
LAST_WAIT: Final = 2.0

Errand = Callable[[], Any]


class Errands:
    """A queue with a thread that ends when nothing is left to do.

    Not a `queue.Queue`: where it is not patched it would block all greenlets.
    """

    def __init__(self) -> None:
        self._forget()
        atexit.register(self.finish)
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._finishes_in: int | None = None
        self._waiting: deque[tuple[float, Errand]] = deque()
        self._busy = False

    def add(self, errand: Errand, most: float = GIVE_UP) -> None:
        """Do this soon, and again until the lock server answers, for so many seconds at most."""
        self._waiting.append((clock() + most, errand))
        if self._finishes_in != os.getpid():
            self._finishes_in = os.getpid()
            at_pool_process_exit(self.finish)
        if not self._busy:
            self._busy = True
            threading.Thread(target=self._run, name="redislock-errands", daemon=True).start()

    def later(self, seconds: float, errand: Errand) -> None:
        """Do this in so many seconds."""
        timer = threading.Timer(seconds, self.add, (errand,))
        timer.daemon = True
        timer.start()

    def finish(self) -> None:
        """Wait for what is left to do, for at most `LAST_WAIT`."""
        give_up = time.monotonic() + LAST_WAIT
        while self._busy and time.monotonic() < give_up:
            time.sleep(0.01)

    def _run(self) -> None:
        while True:
            try:
                give_up, errand = self._waiting.popleft()
            except IndexError:
                self._busy = False
                if self._waiting:  # added in between, when this thread still counted as busy
                    self._busy = True
                    continue
                return
            if not self._do(errand) and clock() < give_up:
                self._waiting.append((give_up, errand))
                time.sleep(TRY_AGAIN)

    def _do(self, errand: Errand) -> bool:
        try:
            with between_forks:
                errand()
        except LockUnavailable as exc:
            logger.debug("redislock: background work on a lock failed, will try again: %s", exc)
            return False
        except Exception:
            logger.exception("redislock: unexpected error in background work on a lock")
        return True


#: The process's errands.
errands: Final = Errands()
