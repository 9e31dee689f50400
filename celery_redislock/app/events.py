"""Sends Celery events about locks, for Flower and other monitors.

The worker's main process sends them by its own dispatcher, which batches them, in the thread that
owns the connection. A pool process sends them by `Task.send_event`, as a task's own code would, but
in the background: the task must neither wait nor fail because the broker is away.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from celery import Task
from celery.app.task import Context

from ..protocol.log import fields, logger
from ..protocol.platform import at_fork
from .housekeeper import housekeeper
from .internals import as_running, call_in_consumer


class Events:
    """The events of this process, if they are `wanted`, as of the last message that arrived."""

    def __init__(self) -> None:
        self._forget()
        at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self.wanted = False
        #: The consumer, in the worker's main process.
        self._consumer: Any = None
        #: The worker's name, in a pool process.
        self._node: str | None = None

    def wanted_by(self, eventer: Any, consumer: Any) -> bool:
        """Whether this worker sends events of tasks. The main process asks."""
        is_on = eventer is not None and eventer.enabled
        self.wanted = is_on and (not eventer.groups or "task" in eventer.groups)
        self._consumer = consumer
        return self.wanted

    def learn(self, wanted: bool, node: str | None) -> None:
        """Remember what a message says of its worker, of which the main process knows better."""
        if self._consumer is None:
            self.wanted, self._node = wanted, node

    def emit(
        self, kind: str, outcome: str, key: str, of: Any, task_id: str | None, **content: Any
    ) -> None:
        """Send the event "task-lock-" and `kind` for a task of this app that sends events."""
        if not isinstance(of, Task) or not of.send_events or not task_id:
            return
        values = fields(outcome, key, task_id=task_id, **content)
        event = {name: value for name, value in values.items() if value is not None}
        event["name"] = values["redislock_task"]
        if kind in ("skipped", "replaced"):
            # Flower shows this as the reason why a task ended.
            by = values["redislock_holder"] or "an unknown holder"
            why = f"{values['redislock_key']} is held by" if kind == "skipped" else "in favour of"
            if values["redislock_suspension"] is not None:
                by, why = values["redislock_suspension"], f"{values['redislock_key']} is suspended:"
            event["exception"] = f"{outcome}: {why} {by}"
        kind = f"task-lock-{kind}"
        if self._consumer is not None:
            call_in_consumer(self._consumer, _dispatch, self._consumer, kind, task_id, event)
        else:
            request = Context(id=task_id, hostname=self._node)
            send = partial(_send, of, request, kind, event)
            housekeeper.add(send, most=0.0, talks=True)


def _dispatch(consumer: Any, kind: str, task_id: str, event: dict[str, Any]) -> None:
    if consumer.event_dispatcher is None:
        return
    try:
        consumer.event_dispatcher.send(kind, uuid=task_id, **event)
    except Exception as exc:
        logger.warning("redislock: could not send the event %s: %s", kind, exc)


def _send(task: Any, request: Context, kind: str, event: dict[str, Any]) -> None:
    try:
        with as_running(task, request):
            task.send_event(kind, **event)
    except Exception as exc:
        logger.warning("redislock: could not send the event %s: %s", kind, exc)


events: Final = Events()
