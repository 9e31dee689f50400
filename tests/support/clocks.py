"""The package's monotonic clock, which the kit's `advance` may have put ahead in this process."""

from __future__ import annotations

import sys


def clock() -> float:
    """What time it is to the package."""
    now: float = sys.modules["celery_redislock.protocol.clock"].clock()
    return now
