"""Celery's events, as they come: what workers tell of their runs and of the locks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, Final

from ..protocol.holders import one_line
from ..protocol.log import logger

#: The beginning of the types of our events.
EVENTS: Final = "task-lock-"
#: Seconds between two tries to reach the broker.
RETRY_EVERY: Final = 2.0


class Listener:
    """Hands over Celery's events as they come, in a thread, until it is closed."""

    def __init__(self, app: Any, heard: Callable[[dict[str, Any]], None]) -> None:
        self._app = app
        self._heard = heard
        self._closed = threading.Event()
        #: Whether any event of a worker's tasks has come. Workers send these with -E only.
        self.any = False
        #: Why no event can come, in one line; "" if events can.
        self.trouble = "no events: not yet connected to the broker"
        threading.Thread(target=self._run, name="redislock-listener", daemon=True).start()

    def close(self) -> None:
        """End the thread within a few seconds, without waiting for that."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                with self._app.connection_for_read() as connection:
                    self._listen(connection)
            except Exception as exc:
                self.trouble = one_line(f"no events: {type(exc).__name__}: {exc}")
                logger.debug("redislock: %s", self.trouble)
                self._closed.wait(RETRY_EVERY)

    def _listen(self, connection: Any) -> None:
        # `Receiver` would try for some seconds before it says that the broker is away; and its
        # `capture` opens a second connection, retries it for ever, and logs a traceback each time.
        connection.ensure_connection(max_retries=len(connection.alt))
        receiver = self._app.events.Receiver(connection, handlers={"*": self._on_event})
        (consumer,) = receiver.get_consumers(connection.Consumer, None)
        with consumer:
            while not self._closed.is_set():
                with contextlib.suppress(TimeoutError):
                    connection.drain_events(timeout=1.0)
                connection.heartbeat_check()
                self.trouble = ""

    def _on_event(self, event: dict[str, Any]) -> None:
        kind = str(event.get("type", ""))
        # Senders send task-sent, and a worker without -E sends only that it is alive.
        if kind.startswith("task-") and kind != "task-sent":
            self.any = True
        self._heard(event)
