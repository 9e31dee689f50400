"""Times as messages and callers give them."""

from __future__ import annotations

import numbers
from datetime import datetime
from typing import Any

from celery.utils.time import maybe_iso8601, maybe_make_aware


def seconds_until(when: Any, timezone: Any = None) -> float | None:
    """Seconds from now; None if that is not known. Celery reports what is wrong with the time.

    Args:
        when: a number of seconds, or a time as messages and callers give it.
        timezone: for a time without one; None for UTC.
    """
    if when is None or isinstance(when, bool):
        return None
    if isinstance(when, numbers.Real):
        return float(when)
    try:
        if isinstance(when, str):
            when = maybe_iso8601(when)
        when = maybe_make_aware(when, timezone)
        return float((when - datetime.now(when.tzinfo)).total_seconds())
    except (ValueError, TypeError, AttributeError, OverflowError):
        return None


def has_passed(when: Any, timezone: Any = None) -> bool:
    """Whether that time is over, as far as that is known. See `seconds_until`."""
    left = seconds_until(when, timezone)
    return left is not None and left < 0
