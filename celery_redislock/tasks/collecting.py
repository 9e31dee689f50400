"""Lets a check load all tasks and find all errors, where a worker ends at the first one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final

_collecting: Final[ContextVar[bool]] = ContextVar("redislock_collecting", default=False)


@contextlib.contextmanager
def errors_kept() -> Iterator[None]:
    """A context in which tasks with wrong options are bound without raising, and keep the error."""
    before = _collecting.set(True)
    try:
        yield
    finally:
        _collecting.reset(before)


def is_collecting_errors() -> bool:
    """Whether a check loads the tasks, and reports itself what is wrong."""
    return _collecting.get()
