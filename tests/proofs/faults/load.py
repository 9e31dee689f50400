"""The load of a case: messages of every policy on a few keys, random and seeded."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from celery import Celery

from tests.proofs.history import History

from .background import Background
from .kinds import STEADILY, STEADY, TASKS

#: Of these tasks, several calls in a row come now and then.
BURSTS = ("debounce", "coalesce")
KEYS = ("k0", "k1", "k2", "k3")
#: Of tasks, by what their names contain, that share no lock with others.
OWN_KEYS = {
    "replace": ("r0",),
    STEADY: ("d0",),
    "debounced": ("d1",),
    "debounce": ("d1", "k0"),
}
#: Some of these expire soon, so that it also happens while they wait.
EXPIRING = ("queue", "coalesce")
#: Seconds between two messages.
APART = (0.02, 0.2)


def _keys_of(task: str) -> tuple[str, ...]:
    return next((keys for word, keys in OWN_KEYS.items() if word in task), KEYS)


class Load(Background):
    """Sends while not too many messages are open.

    Args:
        rng: chooses everything.
        app: sends, by a way of its own to the broker.
        queue: where to.
        ttl: of the locks; some bodies last longer.
        room: whether one more may be sent now; or if so many times as many may be open.
        tasks: how often each task is sent, relative to the others.
        apart: seconds between two messages, at least and at most.

    Attributes:
        short: whether no more long bodies are sent, lest the end is long in coming.
        sent: the ids of all that was sent.
    """

    def __init__(
        self,
        rng: random.Random,
        app: Celery,
        queue: str,
        ttl: float,
        history: History,
        room: Callable[[int], bool],
        tasks: Mapping[str, int] = TASKS,
        apart: tuple[float, float] = APART,
    ) -> None:
        super().__init__("load")
        self._rng = rng
        self._tasks = tasks
        self._apart = apart
        self._app = app
        self._queue = queue
        self._ttl = ttl
        self._history = history
        self._room = room
        self._mutex = threading.Lock()
        self.short = False
        self.sent: list[str] = []

    def one(self, task: str | None = None, **options: Any) -> str:
        """Send one message; random where nothing is said. Returns the task's id.

        Args:
            task: its name.
            options: for `send_task`; `kwargs` are put over random ones.
        """
        with self._mutex:
            name = task or self._any_task()
            kwargs = {**self._arguments(name), **options.pop("kwargs", {})}
            task_id = str(uuid.UUID(int=self._rng.getrandbits(128)))
            if "expires" not in options and name in EXPIRING and self._rng.random() < 0.1:
                options["expires"] = 1.0
        self._history.write("sent", id=task_id, task=name, expires=options.get("expires"), **kwargs)
        self.sent.append(task_id)
        self._app.send_task(name, kwargs=kwargs, task_id=task_id, queue=self._queue, **options)
        return task_id

    def _any_task(self) -> str:
        return self._rng.choices(list(self._tasks), list(self._tasks.values()))[0]

    def _some(self) -> None:
        """One message, or some in a row."""
        with self._mutex:
            name = self._any_task()
            count = self._rng.choice((1, 1, 2, 4)) if name in BURSTS else 1
            key = self._rng.choice(_keys_of(name))
        for _ in range(count):
            self.one(name, kwargs={"key": key})

    def _arguments(self, name: str) -> dict[str, Any]:
        rng = self._rng
        arguments = {
            "key": rng.choice(_keys_of(name)),
            "seconds": round(self._seconds(name), 3),
            "how": "raise" if rng.random() < 0.06 else "return",
        }
        if "retr" in name:
            arguments["retries"] = rng.choice((1, 1, 2))
            arguments["countdown"] = rng.choice((0, 0, 0.3, 0.8))
        return arguments

    def _seconds(self, name: str) -> float:
        kind = self._rng.random()
        if name.startswith("replace") and not self.short:
            return self._rng.uniform(0.4, 1.6)  # else few would be met by a newer one
        if kind < 0.7 or self.short or "retr" in name:
            return self._rng.uniform(0.05, 0.4)
        if kind < 0.92:
            return self._rng.uniform(0.4, 0.8)
        return self._rng.uniform(1.2, 1.6) * self._ttl

    def _run(self) -> None:
        steady_at = 0.0
        while not self._end.wait(self._rng.uniform(*self._apart)):
            # On a machine that is late the broker must not have more and more of them.
            if time.monotonic() > steady_at and self._room(3):
                steady_at = time.monotonic() + STEADILY
                self.one(STEADY)
            if self._room(1):
                self._some()
