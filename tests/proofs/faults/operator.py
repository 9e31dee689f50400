"""The operator of a case, who suspends tasks and locks while the load runs."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from celery import Celery

from celery_redislock import LockUnavailable
from celery_redislock.operations import resume, suspend
from tests.proofs.history import History
from tests.proofs.wire import lock_key

from .background import Background

#: Seconds between two suspensions, and of one: at least and at most.
APART = (0.05, 0.4)
LASTS = (0.3, 1.2)


class Operator(Background):
    """Suspends a task, or a lock, and resumes some of them before their end.

    Args:
        rng: chooses everything.
        app: reaches the lock server as the workers do.
        tasks, keys: what it suspends: the tasks' names, and the locks'.
    """

    def __init__(
        self,
        rng: random.Random,
        app: Celery,
        history: History,
        tasks: Sequence[str],
        keys: Sequence[str],
    ) -> None:
        super().__init__("operator")
        self._rng, self._app, self._history = rng, app, history
        self._tasks = [{"task": each} for each in tasks]
        self._locks = [{"lock": lock_key(each)} for each in keys]

    def _run(self) -> None:
        while not self._end.wait(self._rng.uniform(*APART)):
            meant = self._rng.choice(self._rng.choice((self._tasks, self._locks, self._locks)))
            seconds = self._rng.uniform(*LASTS)
            with self.suspends(meant, seconds):
                time.sleep(min(self._rng.uniform(0.2, 2.0), 1.0) * seconds)

    @contextlib.contextmanager
    def suspends(self, meant: Mapping[str, Any], seconds: float) -> Iterator[None]:
        """Suspend it meanwhile, for so many seconds at most. Writes down between which times that
        was in effect for sure.
        """
        asked, since = time.monotonic(), None
        with contextlib.suppress(LockUnavailable):  # else nobody knows whether it is in effect
            suspend(self._app, **meant, seconds=seconds, unknown=True)
            since = time.monotonic()
        yield
        if since is not None:
            until = min(time.monotonic(), asked + seconds)
            self._history.write("suspended", **meant, since=since, until=until)
        with contextlib.suppress(LockUnavailable):  # it ends by itself
            resume(self._app, **meant)
