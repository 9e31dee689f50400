"""The clock by which a holder's right ends."""

from __future__ import annotations

import time

# CLOCK_MONOTONIC stands still while a machine is suspended, and Redis does not. Where there is
# a clock that goes on, a holder that wakes up knows that its lock has lapsed.
_CLOCK_ID = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    """Seconds on a clock that never goes back and never stands still."""
    return time.clock_gettime(_CLOCK_ID)
