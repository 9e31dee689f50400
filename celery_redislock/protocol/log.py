"""Log records: each is one line, whatever the names contain, and has fields for machines."""

from __future__ import annotations

import logging
from typing import Any, Final

from .holders import Holder, one_line
from .suspensions import Suspension

#: The fields of every record of ours; None where there is nothing to say.
FIELDS: Final = (
    "redislock_outcome",
    "redislock_key",
    "redislock_task",
    "redislock_task_id",
    "redislock_attempt",
    "redislock_label",
    "redislock_holder",
    "redislock_holder_task_id",
    "redislock_suspension",
    "redislock_countdown",
    "redislock_fence",
    "redislock_held",
    "redislock_reason",
)


def fields(
    outcome: str,
    key: str,
    *,
    task: str | None = None,
    task_id: str | None = None,
    attempt: int | None = None,
    label: str | None = None,
    holder: Holder | None = None,
    suspension: Suspension | None = None,
    **more: Any,
) -> dict[str, Any]:
    """The `extra` of an outcome's log line, and its event's fields, without control characters."""
    values = {
        "outcome": outcome,
        "key": key,
        "task": task,
        "task_id": task_id,
        "attempt": attempt,
        "label": holder.label if label is None and holder is not None else label,
        "holder": None if holder is None else str(holder),
        "holder_task_id": None if holder is None else holder.task_id,
        "suspension": None if suspension is None else str(suspension),
        **more,
    }
    return {
        f"redislock_{name}": one_line(value) if isinstance(value, str) else value
        for name, value in values.items()
    }


class _OneLine:
    """An argument of a log line, as text in one line."""

    def __init__(self, argument: Any) -> None:
        self._argument = argument

    def __str__(self) -> str:
        return one_line(str(self._argument))

    def __repr__(self) -> str:
        return one_line(repr(self._argument))


class _Filter(logging.Filter):
    """Gives every record all the fields, and keeps its arguments in one line."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(map(_tamed, record.args))
        for name in FIELDS:
            if name not in record.__dict__:
                record.__dict__[name] = None
        return True


def _tamed(argument: Any) -> Any:
    if isinstance(argument, str):
        return one_line(argument)
    if argument is None or isinstance(argument, int | float):
        return argument
    return _OneLine(argument)


#: The package's logger, each of whose records is one line.
logger: Final = logging.getLogger("celery_redislock")
logger.addFilter(_Filter())
