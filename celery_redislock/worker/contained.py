"""Steps of ours within Celery's work in the main process. An error there would end the worker."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from ..protocol.log import get_logger

logger = get_logger()

T = TypeVar("T")


def contained(step: Callable[..., T]) -> Callable[..., T | None]:
    """A method of a request that logs its error, so that Celery's work goes on. It returns None
    then.
    """

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
