"""What a run of the tests has started ends with it, whatever ended the run.

A run has a mark: a limit that nobody uses, which each process inherits and none loses. Nothing else
lasts: redis-server overwrites its environment, Erlang's port mapper leaves its parent, workers have
sessions of their own. A process beside the run waits until the run is gone, and kills what has the
mark. Linux only.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import select
import signal
import subprocess
import sys
import time
from pathlib import Path


def end_all_with_this_process() -> None:
    """Let what this process starts from here on end with it. In what a run has started this does
    nothing: that ends with the run.
    """
    if sys.platform != "linux" or is_marked():
        return
    _, most = resource.getrlimit(resource.RLIMIT_MSGQUEUE)
    limited = most if most > 1 else 2**20
    mark = random.SystemRandom().randrange(1, limited)  # not by `random`, which tests seed
    none = subprocess.DEVNULL
    subprocess.Popen(
        [sys.executable, "-m", __name__, str(os.getpid()), str(mark)],
        cwd=Path(__file__).parents[2],
        stdin=none,
        stdout=none,
        stderr=none,
        start_new_session=True,
    )
    resource.setrlimit(resource.RLIMIT_MSGQUEUE, (mark, most))


def is_marked() -> bool:
    """Whether this process is of a run."""
    mark, most = resource.getrlimit(resource.RLIMIT_MSGQUEUE)
    return mark != most


def processes_with(mark: int) -> list[int]:
    found = []
    for pid in (int(each) for each in os.listdir("/proc") if each.isdigit()):
        with contextlib.suppress(OSError):
            if resource.prlimit(pid, resource.RLIMIT_MSGQUEUE)[0] == mark:
                found.append(pid)
    return found


def main(run: int, mark: int) -> None:
    with contextlib.suppress(ProcessLookupError), open(os.pidfd_open(run), "rb", 0) as ended:
        select.select([ended], [], [])
    for _ in range(100):  # what is killed may have started something meanwhile
        for pid in (left := processes_with(mark)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            return
        time.sleep(0.1)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
