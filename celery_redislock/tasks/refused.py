"""Changes what Celery logs of a refused duplicate (`Raise`).

If it fails in Celery's tracer (eager, or Sentry wraps the tracer; see `tracer.py`), Celery would
log an ERROR with this package's own traceback. The failure is intended, and a line of ours names
the holder. So we make Celery's line that of an expected error, as for one in `Task.throws`. That
option itself would also hide it from Sentry, and hide conflicts of locks that the body takes.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from ..app.internals import EXPECTED, TRACE_LOGGER
from ..errors import LockConflict

_MARK: Final = "_redislock_refused"


def refused(error: LockConflict) -> LockConflict:
    """The error, marked as the end of a refused duplicate."""
    setattr(error, _MARK, True)
    return error


class _Filter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        if not record.exc_info or not is_refusal(record.exc_info[1]):
            return True
        record.exc_info = record.exc_text = None
        record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
        if isinstance(record.args, dict):
            data = {**record.args, "description": EXPECTED}
            record.args = record.__dict__["data"] = data
        return _logger.isEnabledFor(logging.INFO)


def is_refusal(error: Any) -> bool:
    """Whether the error ends a refused duplicate."""
    # Some releases of Celery log the error in the wrapper that carries it to the main process.
    error = getattr(error, "exc", error)
    return isinstance(error, LockConflict) and hasattr(error, _MARK)


_logger: Final = logging.getLogger(TRACE_LOGGER)
_logger.addFilter(_Filter())
