"""The tests' app, where each log line lets other greenlets run while its handler's lock is held, as
one does that goes to a pipe or to a socket.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from celery.signals import after_setup_logger

from .tasks import app

logger = logging.getLogger(__name__)  # not a task's, which has another handler


class Switching(logging.Handler):
    """Lets other greenlets run while it holds its lock."""

    def emit(self, record: logging.LogRecord) -> None:
        time.sleep(0.001)


@after_setup_logger.connect
def switch(logger: logging.Logger, **kwargs: Any) -> None:
    logger.addHandler(Switching())


@app.task(name="chats")
def chats(seconds: float) -> int:
    """Writes log lines all the time."""
    lines, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        logger.info("line %d", lines := lines + 1)
        time.sleep(0.001)
    return lines
