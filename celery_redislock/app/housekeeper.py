"""Does background work on locks in threads of its own: soon, at a given time, or when a process is
gone. It tries each errand again until the lock server answers.

Code that adds an errand must not wait: it may run in a task, or in the worker's own thread.
"""

from __future__ import annotations

import atexit
import heapq
import itertools
import os
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from ..errors import LockUnavailable
from ..lock.forks import between_forks
from ..lock.greenlets import Alarm
from ..protocol.clock import clock
from ..protocol.log import logger
from ..protocol.platform import at_fork, notice_fork
from ..protocol.turns import Turn
from .internals import at_pool_process_exit
from .processes import LOOK_EVERY, Pollable, Watched, can_poll, is_alive

#: Seconds between two tries if the lock server does not answer.
TRY_AGAIN: Final = 0.25
#: Seconds after which an errand is given up. Keys that it leaves behind expire.
GIVE_UP: Final = 3600.0
#: Seconds that the process waits at its end for what is left to do.
LAST_WAIT: Final = 3.0
#: The longest sleep in seconds: `poll` takes no more than 24 days.
LONGEST: Final = 3600.0
#: The least seconds from the end of a chore's round to the next.
PAUSE: Final = 0.1
#: Seconds within which a thread that was started begins to run.
STARTS_WITHIN: Final = 5.0
#: Seconds by which a chore's round may be late, behind other errands.
LATEST: Final = 60.0
#: The one key of `Lane._bells`.
_ONE: Final = "one"


class Errand(NamedTuple):
    """A piece of background work. Sorted by when it is due, and then by when it was added."""

    due: float
    number: int
    give_up: float
    do: Callable[[], Any]


class Bell(Protocol):
    """What ends the thread's sleep."""

    def ring(self) -> None:
        """End the sleep, or the next one."""

    def wait(self, seconds: float) -> Collection[int] | None:
        """Sleep for so many seconds, or until it rings. Returns the pidfds of ended processes."""


class Lane:
    """Errands that are done one after another, in a thread that ends when none is left.

    It has no `queue.Queue`: an unpatched one would block all greenlets. And it has no mutex: an
    exception from outside, such as a soft time limit, could leave it locked. Each step on the heap
    and on the dicts is one operation, which no other thread can interrupt.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._watched: dict[int, Watched] = {}
        self._forget()
        at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._heap: list[Errand] = []
        self._numbers = itertools.count()
        self._doing: Errand | None = None
        #: What wakes the thread, if there is one. The thread puts it in.
        self._bells: dict[str, Bell] = {}
        self._start_turn = Turn()
        for process in self._watched.values():
            process.close()
        #: The processes that are watched, and what to do when they are gone.
        self._watched = {}
        self._when_gone: dict[int, tuple[Callable[[], Any], float]] = {}

    def add(self, do: Callable[[], Any], most: float, after: float = 0.0) -> None:
        """See `Housekeeper.add`."""
        notice_fork()
        self._push(clock() + after, most, do)
        self.see_to_it()

    def when_gone(self, pid: int, do: Callable[[], Any], most: float) -> None:
        """Do this when the process has ended and none of its code can run any more. It replaces
        what an earlier call gave for that process.

        We ask the kernel, not the pool: Celery may take five seconds to notice a killed child, and
        reports a hard time limit some 100 ms early, while the child's `finally` blocks still run.
        """
        notice_fork()
        # Store, then watch; `_look_at_processes` does the reverse. So no order of steps loses it.
        self._when_gone[pid] = do, most
        # A worker calls this for each task: the thread need not wake for a process that it watches.
        if pid not in self._watched:
            self._watched[pid] = Watched(pid, wakes=can_poll())
            self.see_to_it()

    @property
    def is_busy(self) -> bool:
        """Whether something is being done, or is due."""
        if self._doing is not None or any(each.due <= clock() for each in self._heap[:1]):
            return True
        return any(not is_alive(pid) for pid in list(self._watched))

    def _push(self, due: float, most: float, do: Callable[[], Any]) -> None:
        heapq.heappush(self._heap, Errand(due, next(self._numbers), due + most, do))

    # -- the thread -----------------------------------------------------------------------

    def see_to_it(self) -> None:
        """Wake the thread, or start it."""
        if (bell := self._bells.get(_ONE)) is not None:
            bell.ring()
        else:
            self._start()

    def _start(self) -> None:
        """Start the thread, unless another caller is just starting it."""
        mine = object()
        try:
            if self._start_turn.take(mine, STARTS_WITHIN):
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except BaseException:
            # The next errand starts it. If this one runs all the same, one of the two ends.
            self._start_turn.give_back(mine)
            raise

    def _run(self) -> None:
        bell: Bell = Pollable(self._watched) if can_poll() else Alarm(threading.Lock())
        while self._bells.setdefault(_ONE, bell) is bell:
            self._start_turn = Turn()
            while self._heap or self._watched:
                try:
                    self._look_at_processes(bell.wait(self._do_next()) or ())
                except Exception:  # without this thread, the locks of dead processes would stay
                    logger.exception("redislock: unexpected error in the housekeeper; continuing")
                    time.sleep(TRY_AGAIN)
            self._bells.pop(_ONE, None)
            # A caller that still saw this thread may have added an errand in between.
            if not self._heap and not self._watched:
                return

    def _look_at_processes(self, ready: Collection[int]) -> None:
        for pid, process in list(self._watched.items()):
            if process.fd in ready or (process.fd < 0 and not is_alive(pid)):
                self._add_for(pid)  # before the `del`: `finish` looks at both
                del self._watched[pid]
                process.close()
                self._add_for(pid)  # given in between

    @property
    def _longest(self) -> float:
        """The seconds after which the thread must look at processes that wake nobody."""
        looks = any(each.fd < 0 for each in list(self._watched.values()))
        return LOOK_EVERY if looks else LONGEST

    def _add_for(self, pid: int) -> None:
        if (errand := self._when_gone.pop(pid, None)) is not None:
            self.add(*errand)

    def _do_next(self) -> float:
        """Do the first errand, if it is due. Returns the seconds to wait if none is added."""
        if not self._heap:
            return self._longest
        errand = heapq.heappop(self._heap)
        wait = errand.due - clock()
        if wait > 0:
            heapq.heappush(self._heap, errand)
            return min(wait, self._longest)
        self._doing = errand
        if not self._do(errand) and (now := clock()) < errand.give_up:
            # After all errands that are due by then.
            self._push(now + TRY_AGAIN, errand.give_up - now - TRY_AGAIN, errand.do)
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


class Housekeeper:
    """Background work in two lanes: what may hang as it talks never holds up what frees locks."""

    def __init__(self) -> None:
        self._frees, self._talks = Lane("redislock-housekeeper"), Lane("redislock-courier")
        self.when_gone = self._frees.when_gone
        self._finishes_in: int | None = None
        atexit.register(self.finish)

    def add(
        self,
        do: Callable[[], Any],
        most: float = GIVE_UP,
        after: float = 0.0,
        *,
        talks: bool = False,
    ) -> None:
        """Do this in `after` seconds, and try again until the lock server answers, for `most`
        seconds at most. `talks`: it talks to a broker or a result backend.
        """
        if self._finishes_in != os.getpid():
            at_pool_process_exit(self.finish)
            self._finishes_in = os.getpid()
        (self._talks if talks else self._frees).add(do, most, after)

    def finish(self) -> None:
        """Wait for what is due to be done, for at most `LAST_WAIT`. The rest is dropped."""
        notice_fork()
        give_up = time.monotonic() + LAST_WAIT
        while self.is_busy and time.monotonic() < give_up:
            for lane in (self._frees, self._talks):
                if lane.is_busy:
                    lane.see_to_it()
            time.sleep(0.01)

    @property
    def is_busy(self) -> bool:
        return self._frees.is_busy or self._talks.is_busy


housekeeper: Final = Housekeeper()


class Chore:
    """Background work in rounds, as long as there is more of it. An error ends one round only."""

    def __init__(self, do: Callable[[], Any], has_more: Callable[[], bool], every: float) -> None:
        self._do, self._has_more, self._every = do, has_more, every
        #: Is taken while a round is to come.
        self._turn = Turn()

    def begin(self, after: float = 0.0) -> None:
        """Do the next round after so many seconds, unless one is due anyway."""
        mine = object()
        try:
            if self._turn.take(mine, after + LATEST):
                housekeeper.add(partial(self._round, mine), most=0.0, after=after)
        except BaseException:
            self._turn.give_back(mine)
            raise

    def _round(self, mine: object) -> None:
        if not self._turn.is_of(mine):
            return  # it was so late that another one has begun
        began = clock()
        try:
            self._do()
        finally:
            self._turn.give_back(mine)
            if self._has_more():
                self.begin(max(began + self._every - clock(), PAUSE))
