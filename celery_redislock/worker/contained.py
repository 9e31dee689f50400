"""Contains errors of our steps in Celery's main process: there they would end the worker."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from ..protocol.log import logger

T = TypeVar("T")


def contained(step: Callable[..., T]) -> Callable[..., T | None]:
    """Make this method of a request log its error, and return None, so that Celery goes on."""

    @functools.wraps(step)
    def call(request: Any, *args: Any) -> T | None:
        try:
            return step(request, *args)
        except Exception:
            logger.exception(
                "redislock: unexpected error in %s of %s[%s]; its lock or reservation may stay"
                " until it expires",
                step.__name__, request.task.name, request.id,
            )  # fmt: skip
            return None

    return call
