"""The clock that tells a holder how long it may rely on its lock."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

# CLOCK_MONOTONIC stops while a machine is suspended, but Redis goes on. With a clock that goes on
# too, a holder knows after the suspension that its lock has expired.
_CLOCK_ID = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

#: Seconds on a clock that never goes back and never stops.
clock: Final[Callable[[], float]] = partial(time.clock_gettime, _CLOCK_ID)
