"""The load of a case: messages of every policy on a few keys, random and seeded."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable
from typing import Any

from celery import Celery

from .history import History

#: How often each task is sent, relative to the others.
TASKS = {
    "skip": 4,
    "skip_result": 2,
    "defer": 4,
    "defer_briefly": 1,
    "wait": 3,
    "wait_then_defer": 2,
    "refuse": 1,
    "abort": 2,
    "retry_released": 2,
    "retry_held": 2,
}
KEYS = ("k0", "k1", "k2", "k3")
#: Seconds between two messages.
APART = (0.02, 0.2)


class Load:
    """A thread that sends while not too many messages are open.

    Args:
        rng: chooses everything.
        app: sends, by a way of its own to the broker.
        queue: where to.
        ttl: of the locks; some bodies last longer.
        room: whether one more may be sent now.
    """

    def __init__(
        self,
        rng: random.Random,
        app: Celery,
        queue: str,
        ttl: float,
        history: History,
        room: Callable[[], bool],
    ) -> None:
        self._rng = rng
        self._app = app
        self._queue = queue
        self._ttl = ttl
        self._history = history
        self._room = room
        self._mutex = threading.Lock()
        self._end = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        #: Whether no more long bodies are sent, lest the end is long in coming.
        self.short = False
        self.sent: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def one(self, task: str | None = None, **options: Any) -> str:
        """Send one message; random where nothing is said. Returns the task's id.

        Args:
            task: its name.
            options: for `send_task`; `kwargs` are put over random ones.
        """
        with self._mutex:
            name = task or self._rng.choices(list(TASKS), list(TASKS.values()))[0]
            kwargs = {**self._arguments(name), **options.pop("kwargs", {})}
            task_id = str(uuid.UUID(int=self._rng.getrandbits(128)))
        self._history.write("sent", id=task_id, task=name, **kwargs)
        self.sent.append(task_id)
        self._app.send_task(name, kwargs=kwargs, queue=self._queue, task_id=task_id, **options)
        return task_id

    def _arguments(self, name: str) -> dict[str, Any]:
        rng = self._rng
        arguments = {
            "key": rng.choice(KEYS),
            "seconds": round(self._seconds(self.short or name.startswith("retry")), 3),
            "how": "raise" if rng.random() < 0.06 else "return",
        }
        if name.startswith("retry"):
            arguments["retries"] = rng.choice((1, 1, 2))
            arguments["countdown"] = rng.choice((0, 0, 0.3, 0.8))
        return arguments

    def _seconds(self, short: bool) -> float:
        kind = self._rng.random()
        if kind < 0.7 or short:
            return self._rng.uniform(0.05, 0.4)
        if kind < 0.92:
            return self._rng.uniform(0.4, 0.8)
        return self._rng.uniform(1.2, 1.6) * self._ttl

    def _run(self) -> None:
        try:
            while not self._end.wait(self._rng.uniform(*APART)):
                if self._room():
                    self.one()
        except BaseException as exc:
            self._error = exc
