"""Celery events about locks, for Flower and others. Sent by the worker's main process.

The main process has a connection for events, batches them, and knows whether anybody wants them. A
pool process sends it a datagram, which takes microseconds, needs no connection, and neither waits
nor fails. So it also leaves to the main process what it cannot do now, and may not live to do.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from typing import Any, Final

from ..lock.forks import between_forks
from ..lock.greenlets import AT_ONCE, start_native, teller_here
from ..protocol.log import fields, get_logger
from .internals import call_in_consumer

logger = get_logger()

#: The largest datagram, in bytes.
LARGEST: Final = 65536
#: Opens a datagram that leaves something to the main process.
_LEFT: Final = "left"


class Channel:
    """A channel from the pool's processes to the main process."""

    def __init__(self) -> None:
        self._read = self._write = -1
        self._opened_in = self._reads_in = -1
        self._consumer: Any = None
        self._teller = AT_ONCE
        self._take_over: Callable[..., Any] = lambda *what: None
        #: Whether anybody wants events, as of the last message that arrived.
        self.wanted = False

    def open(self) -> None:
        """Open it, in the worker's main process, before its pool starts."""
        if self._write >= 0:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._read, self._write = ours.detach(), theirs.detach()
        self._opened_in = os.getpid()
        os.set_blocking(self._read, True)
        os.set_blocking(self._write, False)

    def wanted_by(self, request: Any, consumer: Any) -> bool:
        """Whether this worker sends events for that request's task. For its main process."""
        eventer = request.eventer
        if eventer is None or not eventer.enabled or not request.task.send_events:
            self.wanted = False
        else:
            self.wanted = not eventer.groups or "task" in eventer.groups
        if self.wanted:
            self._consumer = consumer
            self._listen()
        return self.wanted

    def take_over(self, call: Callable[..., Any]) -> None:
        """Call this with what pool processes leave to the main process. For the latter."""
        self._take_over = call
        self._listen()

    def _listen(self) -> None:
        if self._write >= 0 and self._reads_in != os.getpid():
            self._reads_in = os.getpid()
            self._teller = teller_here()
            start_native(self._run, "redislock-events")

    def send(self, kind: str, task_id: str | None, content: dict[str, Any]) -> None:
        """Pass an event to the main process. Lost if that is a thousand events behind."""
        if self.wanted and task_id:
            self._put(f"task-lock-{kind}", task_id, content)

    def leave(self, *what: str) -> bool:
        """Leave something to the main process. False if it cannot be told, or this is it."""
        return self.is_pool_process and self._put(_LEFT, *what)

    @property
    def is_pool_process(self) -> bool:
        """Whether a worker's main process has forked this one."""
        return self._opened_in not in (-1, os.getpid())

    def _put(self, *message: Any) -> bool:
        if self._write < 0:
            return False
        try:
            data = json.dumps(message).encode()
            if len(data) > LARGEST:
                raise ValueError(f"it has {len(data)} bytes")
            # writev, and readv below: eventlet has made `os.write` wait in its hub.
            os.writev(self._write, [data])
        except (OSError, TypeError, ValueError) as exc:
            logger.debug("redislock: %s was not passed on: %s", message[0], exc)
            return False
        return True

    def _run(self) -> None:
        buffer = bytearray(LARGEST)
        while True:
            try:
                size = os.readv(self._read, [buffer])
                kind, *rest = json.loads(bytes(buffer[:size]))
                with between_forks:
                    if kind == _LEFT:
                        self._take_over(*rest)
                    else:
                        call_in_consumer(self._consumer, _publish, self._consumer, kind, *rest)
            except Exception as exc:
                self._teller.tell_bug("while sending events", exc)


def _publish(consumer: Any, kind: str, task_id: str, content: dict[str, Any]) -> None:
    """Send an event, in the consumer's thread, which owns the connection."""
    dispatcher = consumer.event_dispatcher
    if dispatcher is None:
        return
    try:
        dispatcher.send(kind, uuid=task_id, **content)
    except Exception as exc:
        logger.warning("redislock: could not send the event %s: %s", kind, exc)


channel: Final = Channel()


def emit(kind: str, outcome: str, key: str, **content: Any) -> None:
    """Send an event of a task that runs in a worker, if that worker sends events.

    Args:
        kind: the event's type, after "task-lock-".
        outcome: as in the log.
        key: the lock's key.
        content: as `log.fields` takes it.
    """
    found = fields(outcome, key, **content)
    event = {name: value for name, value in found.items() if value is not None}
    event["name"] = found["redislock_task"]
    if kind in ("skipped", "replaced"):
        # Flower shows this as the reason why a task ended.
        by = found["redislock_holder"] or "an unknown holder"
        why = f"{found['redislock_key']} is held by" if kind == "skipped" else "in favour of"
        event["exception"] = f"{outcome}: {why} {by}"
    channel.send(kind, content.get("task_id"), event)
