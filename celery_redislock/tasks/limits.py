"""Steps of ours whose errors do not change how a task ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded

from ..errors import LockUnavailable
from ..protocol.log import logger


@contextlib.contextmanager
def only_logged(text: str, *arguments: Any) -> Iterator[None]:
    """Only log an error of this step. A time limit is the task's, and is raised."""
    try:
        yield
    except SoftTimeLimitExceeded:
        raise
    except LockUnavailable as exc:
        logger.warning(f"{text}: the lock server is not available: %s", *arguments, exc)
    except Exception:
        logger.exception(text, *arguments)
