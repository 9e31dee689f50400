"""Does what must be done, though a soft time limit may be raised at any bytecode, also ours."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from celery.exceptions import SoftTimeLimitExceeded

from ..errors import LockUnavailable
from ..protocol.log import get_logger

T = TypeVar("T")

logger = get_logger()


class Ending(Protocol):
    """What `surely` ends, until it `is_over`."""

    is_over: bool


def surely(work: Callable[[], T], end: Callable[[], object], what: Ending) -> T:
    """Do this work, and then end it, whatever happens.

    A soft time limit is raised once, but at any bytecode, even in the inner `finally`. So the outer
    `finally` completes what the limit cut short.
    """
    __tracebackhide__ = True
    try:
        try:
            return work()
        finally:
            end()
    finally:
        if not what.is_over:
            end()


@contextlib.contextmanager
def only_logged(text: str, *arguments: Any) -> Iterator[None]:
    """Only log an error of this step: it must not change the task's outcome. A time limit is the
    task's, and is raised. An outage of the lock server is no error of ours.
    """
    try:
        yield
    except SoftTimeLimitExceeded:
        raise
    except LockUnavailable as exc:
        logger.warning(f"{text}: the lock server is not available: %s", *arguments, exc)
    except Exception:
        logger.exception(text, *arguments)
