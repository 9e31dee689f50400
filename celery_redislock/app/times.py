"""Reads times as messages and callers give them."""

from __future__ import annotations

import numbers
from datetime import datetime, timezone
from typing import Any

from celery.utils.time import maybe_iso8601, maybe_make_aware


def seconds_until(when: Any) -> float | None:
    """Seconds from now until that time, in seconds or as messages and callers give it; one without
    a time zone is in UTC, as for Celery. None if it cannot be read, which Celery itself reports.
    """
    if when is None or isinstance(when, bool):
        return None
    if isinstance(when, numbers.Real):
        return float(when)
    try:
        if isinstance(when, str):
            when = maybe_iso8601(when)
        # In UTC: the difference of two times of one zone is that of their wall clocks, which is an
        # hour off if summer time begins or ends in between.
        when = maybe_make_aware(when).astimezone(timezone.utc)
        return float((when - datetime.now(timezone.utc)).total_seconds())
    except (ValueError, TypeError, AttributeError, OverflowError):
        return None


def has_passed(when: Any) -> bool:
    """Whether that time is over. False if it cannot be read."""
    left = seconds_until(when)
    return left is not None and left < 0
