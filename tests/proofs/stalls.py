"""The suite on a machine that stands still now and then, as a virtual one does.

    python -m tests.proofs.stalls [pytest's arguments]

stops everything that the tests have started, all at once, at random moments, and lets it go on
half a second later. A test that fails so and not otherwise is timed more finely than any machine
keeps time, or has met a race of the lock's own; or it waits for a process to stop, and took ours
for its own. Linux only.
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
#: States that a stop would not change: stopped by a test, traced, dead.
_NOT_RUNNING = (None, "T", "t", "Z", "X")


def below(pid: int) -> list[int]:
    """The running processes below this one, parents first."""
    found = [pid]
    for each in found:  # grows as we go
        found += children_of(each)
    return [each for each in found[1:] if state_of(each) not in _NOT_RUNNING]


def stall(seconds: float) -> None:
    """Stop everything below this process for so long, but for what somebody else had stopped."""
    stopped: list[int] = []
    try:
        for pid in below(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                stopped.append(pid)
        time.sleep(seconds)
    finally:
        for pid in reversed(stopped):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def ends_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
        return True
    return False


def main(arguments: list[str]) -> int:
    stalls = 0
    with subprocess.Popen([sys.executable, "-m", "pytest", *arguments]) as suite:
        while not ends_within(suite, random.uniform(*EVERY)):
            stall(random.uniform(*LASTS))
            stalls += 1
    print(f"with {stalls} stalls of {LASTS[0]:g} to {LASTS[1]:g} s")
    return suite.returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
