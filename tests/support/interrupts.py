"""Signals that come at a known place: one that comes at a time may come anywhere."""

from __future__ import annotations

import contextlib
import signal
import traceback
from collections.abc import Iterator
from types import FrameType

#: Seconds between looks at where the main thread is.
EVERY = 0.2


@contextlib.contextmanager
def interrupted(error: type[BaseException], within: str) -> Iterator[None]:
    """Raise an error in the main thread, once, when it waits for a server's answer.

    Args:
        error: what a handler of a signal raises.
        within: a function that it must have been called from.
    """

    def look(signum: int, frame: FrameType | None) -> None:
        calls = [each.f_code.co_name for each, _ in traceback.walk_stack(frame)]
        if "read_from_socket" in calls[0] and within in calls:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise error

    handler = signal.signal(signal.SIGALRM, look)
    left, _ = signal.setitimer(signal.ITIMER_REAL, EVERY, EVERY)  # pytest-timeout's
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)
        signal.signal(signal.SIGALRM, handler)
