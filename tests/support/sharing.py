"""What the suites on this machine share: slots to run tests in, and ports.

Two suites side by side then take twice as long, and none of their tests meets a machine that has
twice as much to do, or a server of the other suite on its own port.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

#: Tests that run at once for each core. Most of the time they wait.
PER_CORE = 6


class Claims:
    """Numbers that each belong to one process at a time, until it lets go of them or ends.

    Not by `flock`: a forked child would share that, and may outlive the test.

    Args:
        name: what the numbers identify, such as "ports".
        folder: where they are kept; None for those of this machine and user.
    """

    def __init__(self, name: str, folder: Path | None = None) -> None:
        folder = folder or Path(tempfile.gettempdir()) / f"redislock-tests-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        self.worth_waiting = True
        # Open as long as the process runs: closing it would let go of all.
        self._file = (folder / name).open("wb")

    def claim(self, number: int) -> bool:
        """Try to claim the number. True if this process has it now."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def let_go(self, number: int) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, number)


ports = Claims("ports")
slots = Claims("slots")


@contextlib.contextmanager
def slot(
    of: Claims = slots, count: int = PER_CORE * (os.cpu_count() or 1), most: float = 600.0
) -> Iterator[None]:
    """Wait for one of so many slots, and hold it. After so many seconds go on without one, and from
    then on do not wait: a suite that hangs must not make others hang.
    """
    numbers = list(range(count))
    random.SystemRandom().shuffle(numbers)  # not by `random`, which tests seed
    until = time.monotonic() + most
    while (held := next(filter(of.claim, numbers), None)) is None and of.worth_waiting:
        of.worth_waiting = time.monotonic() < until
        time.sleep(0.1)
    try:
        yield
    finally:
        if held is not None:
            of.let_go(held)
