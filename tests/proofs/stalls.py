"""The suite on a machine that stands still now and then, as a virtual one does.

    python -m tests.proofs.stalls [pytest's arguments]

stops everything that the tests have started, all at once, at random moments, and lets it go on
half a second later. A test that fails so and not otherwise is timed more finely than any machine
keeps time, or has met a race of the lock's own. Linux only.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time

from tests.support.workers import children_of, state_of

#: Seconds between two stalls, and of one: at least and at most.
EVERY = (2.0, 6.0)
LASTS = (0.2, 0.8)


def running() -> list[int]:
    """The processes below this one, parents first, without the dead and what a test has stopped."""
    found = [os.getpid()]
    for each in found:  # grows as we go
        found += children_of(each)
    return [each for each in found[1:] if state_of(each) in ("R", "S", "D")]


def send(pids: list[int], signum: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)


def main(arguments: list[str]) -> int:
    stalls = 0
    with subprocess.Popen([sys.executable, "-m", "pytest", *arguments]) as suite:
        while suite.poll() is None:
            time.sleep(random.uniform(*EVERY))
            pids = running()
            try:
                send(pids, signal.SIGSTOP)
                time.sleep(random.uniform(*LASTS))
            finally:
                send(pids[::-1], signal.SIGCONT)
            stalls += 1
    print(f"with {stalls} stalls of {LASTS[0]:g} to {LASTS[1]:g} s")
    return suite.returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
