"""The package's monotonic clock, which the kit's `advance` may have put ahead in this process."""

from __future__ import annotations

from celery_redislock.protocol import clock as the_clock


def clock() -> float:
    """What time it is to the package."""
    return the_clock.clock()
