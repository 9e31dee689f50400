"""The load of a case: messages of every policy on a few keys, random and seeded."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Mapping
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
    "queue": 3,
    "queue_limited": 1,
    "queue_briefly": 1,
    "queue_then_defer": 1,
    "coalesce": 3,
    "retry_queued": 1,
    "retry_held_queued": 1,
    "retry_coalesced": 1,
    "pause": 1,
    "pause_coalesced": 1,
    "two": 2,
    "two_queued": 3,
    "two_retried": 1,
    "two_patient": 1,
}
#: Those that go through waiting rooms, and a few that do not.
OF_ROOMS = {
    **{name: weight for name, weight in TASKS.items() if list(TASKS).index(name) > 9},
    "skip": 1,
    "defer": 1,
    "wait": 1,
    "retry_held": 1,
}
KEYS = ("k0", "k1", "k2", "k3")
#: Of the tasks of which two may run at once.
KEYS_OF_TWO = ("t0", "t1")
#: Some of these expire soon, so that it also happens while they wait.
EXPIRING = ("queue", "coalesce", "two_queued")
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
        tasks: how often each task is sent, relative to the others.
    """

    def __init__(
        self,
        rng: random.Random,
        app: Celery,
        queue: str,
        ttl: float,
        history: History,
        room: Callable[[], bool],
        tasks: Mapping[str, int] = TASKS,
    ) -> None:
        self._rng = rng
        self._tasks = tasks
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
            name = task or self._rng.choices(list(self._tasks), list(self._tasks.values()))[0]
            kwargs = {**self._arguments(name), **options.pop("kwargs", {})}
            task_id = str(uuid.UUID(int=self._rng.getrandbits(128)))
            if "expires" not in options and name in EXPIRING and self._rng.random() < 0.1:
                options["expires"] = 1.0
        expires = options.get("expires")
        self._history.write("sent", id=task_id, task=name, expires=expires, **kwargs)
        self.sent.append(task_id)
        self._app.send_task(name, kwargs=kwargs, queue=self._queue, task_id=task_id, **options)
        return task_id

    def _arguments(self, name: str) -> dict[str, Any]:
        rng = self._rng
        arguments = {
            "key": rng.choice(KEYS_OF_TWO if name.startswith("two") else KEYS),
            "seconds": round(self._seconds(self.short or "retr" in name), 3),
            "how": "raise" if rng.random() < 0.06 else "return",
        }
        if "retr" in name:
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
