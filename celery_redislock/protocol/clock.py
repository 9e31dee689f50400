"""The clock that tells a holder how long it may rely on its lock."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final


def _longest() -> Callable[[], float]:
    """The clock of this platform that goes on while the machine is suspended, as Redis does. With
    it a holder knows after the suspension that its lock has expired.

    * Linux: CLOCK_BOOTTIME. CLOCK_MONOTONIC stops.
    * macOS: CLOCK_MONOTONIC. `time.monotonic` is `mach_absolute_time`, which stops.
    * Windows: `time.monotonic`, which counts time asleep.
    * Elsewhere it may stop. Then a holder may rely on its lock for too long after a suspension.
    """
    for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC"):
        clock_id = getattr(time, name, None)
        if clock_id is not None and hasattr(time, "clock_gettime"):
            return partial(time.clock_gettime, clock_id)
    return time.monotonic


#: Seconds on a clock that never goes back and, where the platform has such a clock, never stops.
#: Nothing but C is called: it is read several times for each run.
clock: Final[Callable[[], float]] = _longest()
