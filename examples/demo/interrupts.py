"""Ctrl-C, SIGTERM and the overall deadline: noted when they come, acted upon between two steps.

An exception raised from a signal handler could strike between the start of a process and the
note that it has to be ended.
"""

from __future__ import annotations

import signal
import time
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """Somebody wants the demo to end now.

    Attributes:
        signum: the signal that said so.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class TooLate(Exception):
    """The demo's time is up."""


class Interrupts:
    """What can end the demo before its end.

    Args:
        seconds: until the deadline, from now on.
    """

    def __init__(self, seconds: float) -> None:
        self._signum: int | None = None
        self.prolong(seconds)

    def prolong(self, seconds: float) -> None:
        """Let the deadline be so many seconds from now."""
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds

    def listen(self) -> None:
        """Note signals from now on, until the process ends."""
        for signum in _SIGNALS:
            # A signal that nohup, or a shell for its background jobs, ignores stays ignored.
            if signal.getsignal(signum) is not signal.SIG_IGN:
                signal.signal(signum, self._note)

    def check(self) -> None:
        """Return if the demo may go on.

        Raises:
            Interrupted: a signal came.
            TooLate: the deadline has passed.
        """
        if self._signum is not None:
            raise Interrupted(self._signum)
        if time.monotonic() > self._deadline:
            raise TooLate(f"not done within {self._seconds:g} s")

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self._signum = signum
