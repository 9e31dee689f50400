"""How late this machine is: a witness, against which a test judges the times that it measured.

A machine that has too much to do, or that stands still for a moment, makes a test fail that allows
half a second, though the product is right. So a thread in each process that judges times sleeps a
few milliseconds, looks at the clock, sleeps again, and keeps when it was late. `elapsed` is the
time that passed less that.

It is a witness of this process only, and what it judges was mostly done by others: a server, a
worker, its children. What its lateness says about those:

- All stood still (a virtual machine that is paused, `make test-stalls`): each was late once, at the
  same time and for as long. What the witness saw is exact.
- The cores are crowded: each process waits for a core whenever it wakes, and so does the witness.
  It wakes about as often as a chain of processes that wake one another, so that the part of a span
  in which it waited is about the part in which they did. Who computes waits longer than who only
  wakes, so a worker that starts may be later than the witness says, and never is it less late by
  much: bounds stay some tenths of a second above what an idle machine needs.
- Only another process was held up (a disk, a lock in the kernel): the witness sees nothing. The
  bound's own reserve is for that.
- This process held the interpreter's lock itself: the witness cannot tell that from a late machine.
  What a test says of that, it must measure in another process.

Only upper bounds are judged so. That something took no less than a time is true of the clock.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections import deque
from pathlib import Path

#: Seconds between two looks at the clock; and how late a look is on an idle machine, at most.
EVERY = 0.01
PUNCTUAL = 0.005

#: As many run or wait for each core where the cores are crowded; see `await_cores`.
CROWDED = 10

Span = tuple[float, float]


class Witness:
    """Sleeps and looks at the clock, from `start` on, until its process ends."""

    def __init__(self) -> None:
        #: When it should have looked, and when it did. The newest are last; some minutes of them.
        self.late: deque[Span] = deque(maxlen=20_000)
        self._due = float("inf")
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Once is enough."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="lateness", daemon=True)
            self._thread.start()

    def _look(self) -> None:
        while True:
            self._due = time.monotonic() + EVERY
            time.sleep(EVERY)
            now = time.monotonic()
            if now - self._due > PUNCTUAL:
                self.late.append((self._due, now))

    def spans(self, since: float, until: float) -> list[Span]:
        """When it was late in that time, in order: also if it still is, and has not looked yet."""
        due, seen, now = self._due, list(self.late), time.monotonic()
        if now - due > PUNCTUAL and (not seen or seen[-1][0] != due):
            seen.append((due, now))
        latest = itertools.takewhile(lambda span: span[1] > since, reversed(seen))
        return [(max(a, since), min(b, until)) for a, b in latest if a < until][::-1]

    def lateness(self, since: float, until: float) -> float:
        """For how many seconds of that time it was late."""
        return sum(b - a for a, b in self.spans(since, until))


witness = Witness()


def _forget() -> None:
    """A forked child has no such thread, and judges nothing unless it starts one."""
    global witness
    witness = Witness()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def elapsed(since: float, until: float | None = None) -> float:
    """Seconds from one time to another, or to now, in which the machine was not late.

    Args:
        since, until: of the monotonic clock, which all processes share.
    """
    until = time.monotonic() if until is None else until
    return until - since - witness.lateness(since, until)


def await_cores(most: float = 3.0) -> None:
    """Let others go on first, for so many seconds at most, while the cores are crowded.

    A test that starts yet more processes then makes all others late, and is late itself. Beside a
    build, a suite takes longer with this, and has no tests that fail for it. Suites share the
    machine by `sharing.slot`.
    """
    until = time.monotonic() + most
    while _running() > CROWDED * (os.cpu_count() or 1) and time.monotonic() < until:
        time.sleep(random.uniform(0.05, 0.25))


def _running() -> int:
    """How many threads run or wait for a core; 0 where Linux does not tell."""
    try:
        load = Path("/proc/loadavg").read_text()
    except OSError:
        return 0
    return int(load.split()[3].split("/")[0])
