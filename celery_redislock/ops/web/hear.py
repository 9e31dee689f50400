"""Listens to Celery's events, in a thread beside, while somebody watches the page."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from ...core.holders import one_line
from ...core.log import get_logger

logger = get_logger()

#: Seconds before it tries again to reach the broker.
AGAIN: Final = 2.0


class Ear:
    """Hands over the events that somebody cares for.

    Args:
        app: the Celery app.
        cares: whether an event is wanted.
        heard: what takes one. Called in the thread.
    """

    def __init__(
        self,
        app: Any,
        cares: Callable[[dict[str, Any]], bool],
        heard: Callable[[dict[str, Any]], None],
    ) -> None:
        self._app = app
        self._cares = cares
        self._heard = heard
        self._stop = threading.Event()
        self._receiver: Any = None
        #: Whether any event of a worker came: they send them with -E.
        self.any = False
        #: Why there are none, in one line; "" if there is no reason known.
        self.trouble = ""
        self._thread = threading.Thread(target=self._run, name="redislock-web", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let it end, within a second or two. Waits for nothing."""
        self._stop.set()
        if self._receiver is not None:
            self._receiver.should_stop = True

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._app.connection_for_read() as connection:
                    self._receiver = self._app.events.Receiver(
                        connection, handlers={"*": self._take}
                    )
                    self._receiver.should_stop = self._stop.is_set()
                    self._receiver.capture(limit=None, timeout=None, wakeup=False)
            except Exception as exc:
                self.trouble = one_line(f"no events: {type(exc).__name__}: {exc}")
                logger.debug("redislock: %s", self.trouble)
                self._stop.wait(AGAIN)

    def _take(self, event: dict[str, Any]) -> None:
        kind = str(event.get("type", ""))
        if kind.startswith("task-"):
            self.any, self.trouble = True, ""
        if self._cares(event):
            self._heard(event)
