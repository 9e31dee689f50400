"""Does background work on locks, one errand after another in a thread: soon, or when it is due, and
again until the lock server answers. There may be many errands at once, and the code that adds them
must not wait.
"""

from __future__ import annotations

import atexit
import heapq
import itertools
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from ..errors import LockUnavailable
from ..lock.forks import between_forks
from ..lock.greenlets import Alarm
from ..protocol.clock import clock
from ..protocol.log import get_logger
from .internals import at_pool_process_exit

logger = get_logger()

#: Seconds between two tries if the lock server does not answer.
TRY_AGAIN: Final = 0.25
#: Seconds after which an errand is given up. What it leaves behind expires.
GIVE_UP: Final = 3600.0
#: Seconds that the process waits at its end for what is left to do.
LAST_WAIT: Final = 2.0
#: The key of the one thread in `Errands._alarms`.
_THREAD: Final = "thread"


class Errand(NamedTuple):
    """Something to do. Sorted by when it is due, and then by when it was added."""

    due: float
    number: int
    give_up: float
    do: Callable[[], Any]


class Errands:
    """What this process is to do, with a thread that ends when nothing is left.

    Not a `queue.Queue`: where it is not patched it would block all greenlets. And no mutex: an
    exception from outside, such as a soft time limit, could leave it locked. Each step on the heap
    and on the dict is one operation.
    """

    def __init__(self) -> None:
        self._forget()
        atexit.register(self.finish)
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._finishes_in: int | None = None
        self._heap: list[Errand] = []
        self._numbers = itertools.count()
        self._doing: Errand | None = None
        #: What wakes the thread, if there is one.
        self._alarms: dict[str, Alarm] = {}

    def add(self, do: Callable[[], Any], most: float = GIVE_UP, after: float = 0.0) -> None:
        """Do this, and again until the lock server answers.

        Args:
            do: what to do.
            most: seconds from when it is due, after which it is given up.
            after: seconds until it is due.
        """
        self._push(clock() + after, most, do)
        if self._finishes_in != os.getpid():
            self._finishes_in = os.getpid()
            at_pool_process_exit(self.finish)
        if (alarm := self._alarms.get(_THREAD)) is not None:
            alarm.ring()
        else:
            self._start(Alarm(threading.Lock()))

    def finish(self) -> None:
        """Wait for what is due to be done, for at most `LAST_WAIT`. The rest is dropped."""
        give_up = time.monotonic() + LAST_WAIT
        while self.is_busy and time.monotonic() < give_up:
            time.sleep(0.01)

    @property
    def is_busy(self) -> bool:
        """Whether something is being done, or is due."""
        return self._doing is not None or any(each.due <= clock() for each in self._heap[:1])

    def _push(self, due: float, most: float, do: Callable[[], Any]) -> None:
        heapq.heappush(self._heap, Errand(due, next(self._numbers), due + most, do))

    def _start(self, alarm: Alarm) -> None:
        if (other := self._alarms.setdefault(_THREAD, alarm)) is not alarm:
            other.ring()
            return
        run = partial(self._run, alarm)
        try:
            threading.Thread(target=run, name="redislock-errands", daemon=True).start()
        except BaseException:
            self._alarms.pop(_THREAD, None)  # the next one to add something starts it
            raise

    def _run(self, alarm: Alarm) -> None:
        while True:
            if self._heap:
                alarm.wait(self._do_next())
                continue
            self._alarms.pop(_THREAD, None)
            # One may have been added in between by a caller that saw this thread.
            if not self._heap or self._alarms.setdefault(_THREAD, alarm) is not alarm:
                return

    def _do_next(self) -> float:
        """Do what is due first. Returns for how many seconds to wait, if nothing is added."""
        errand = heapq.heappop(self._heap)
        wait = errand.due - clock()
        if wait > 0:
            heapq.heappush(self._heap, errand)
            return wait
        self._doing = errand
        if not self._do(errand) and (now := clock()) < errand.give_up:
            self._push(now, errand.give_up - now, errand.do)  # behind all that is due by now
            time.sleep(TRY_AGAIN)
        self._doing = None
        return 0.0

    def _do(self, errand: Errand) -> bool:
        try:
            with between_forks:
                errand.do()
        except LockUnavailable as exc:
            logger.debug("redislock: background work on a lock failed, will try again: %s", exc)
            return False
        except Exception:
            logger.exception("redislock: unexpected error in background work on a lock")
        return True


#: The process's errands.
errands: Final = Errands()
