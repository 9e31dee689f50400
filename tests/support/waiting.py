"""Waiting on conditions: no test sleeps a fixed time and hopes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


#: A look counts for so many seconds at most: on a busy machine all are late, and so is the looking.
LOOK = 0.1


def eventually(condition: Callable[[], T], what: str, timeout: float = 60.0) -> T:
    """The condition's first true value.

    Args:
        condition: asked again and again; an exception of it is not caught.
        what: what is waited for, for the message.
        timeout: seconds, of a machine that is not busy; on another one up to three times as long.
    """
    began = looked = time.monotonic()
    left = timeout
    while True:
        value = condition()
        if value:
            return value
        now = time.monotonic()
        left -= min(now - looked, LOOK)
        if left < 0 or now - began > 3 * timeout:
            raise AssertionError(f"not within {timeout:g} s: {what} (last value: {value!r})")
        looked = now
        # What has taken a second takes another; those who ask keep others from a core.
        time.sleep(0.02 if now - began < 1 else 0.05)


def never(condition: Callable[[], object], what: str, seconds: float) -> None:
    """Fail as soon as the condition is true within these seconds. For what must not happen."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        value = condition()
        assert not value, f"happened, and must not: {what} ({value!r})"
        time.sleep(0.02)


def within(seconds: float, call: Callable[[], object]) -> bool:
    """Whether a call takes less time than that. Who is slow is slow three times; who had to wait
    for a core or a disk is not.
    """

    def took() -> float:
        began = time.monotonic()
        call()
        return time.monotonic() - began

    return any(took() < seconds for _ in range(3))
