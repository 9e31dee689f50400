"""Every private name of Celery and kombu that this package uses, each with the reason.

Where a release of Celery renames one, this is the place to mend.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

# The stack of running tasks. `send_task` makes the task on top the parent of what it sends, and has
# no way to say that it is not. Without it a task that is published again would be its own child.
from celery._state import _task_stack

__all__ = ["least_countdown", "outside_of_tasks", "serializer_of"]


@contextlib.contextmanager
def outside_of_tasks() -> Iterator[None]:
    """Hide the running task: `send_task` would make it the parent of what it sends."""
    task = _task_stack.pop()
    try:
        yield
    finally:
        if task is not None:
            _task_stack.push(task)


def push_task(task: Any) -> None:
    """Make this the running task, for log lines and `current_task`."""
    _task_stack.push(task)


def pop_task() -> None:
    """Undo `push_task`."""
    _task_stack.pop()


def serializer_of(content_type: str | None) -> str | None:
    """The name of the serializer that writes this content type; None if none does."""
    # kombu tells the type of a name in public, and the name of a type only here.
    from kombu.serialization import registry

    return registry.type_to_name.get(content_type) if content_type else None


def least_countdown(app: Any) -> float:
    """The shortest countdown in seconds that the broker takes; 0.0 where any will do.

    With quorum queues RabbitMQ itself delays messages, by whole seconds, and Celery raises for
    less than one.
    """
    from celery.utils.quorum_queues import detect_quorum_queues

    driver = app.producer_pool.connections.connection.transport.driver_type
    return 1.0 if detect_quorum_queues(app, driver)[0] else 0.0
