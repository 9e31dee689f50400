"""The backlog as gauges for prometheus-client. Needs the extra `prometheus`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from prometheus_client import registry
from prometheus_client.core import GaugeMetricFamily

from ..app import metrics
from ..app.internals import real_app
from ..errors import LockError, LockUnavailable
from ..inspection.figures import Figures, figures
from ..inspection.why import why
from ..protocol.checks import TTL, checked
from ..protocol.clock import clock
from ..protocol.log import logger
from ..tasks.task import SingletonTask

#: Seconds for which a scrape waits for a survey, new or under way. Prometheus by default waits 10.
PATIENCE: Final = 5.0

#: The gauges of each task: their texts, and how to read their values.
PER_TASK: Final[dict[str, tuple[str, Callable[[Figures], float | None]]]] = {
    "redislock_room_tasks": ("Tasks that wait in waiting rooms", lambda each: each.waiting),
    "redislock_oldest_waiter_seconds": (
        "Seconds since the arrival of the task that has waited longest in a waiting room",
        lambda each: each.oldest_waiter,
    ),
    "redislock_oldest_holder_seconds": (
        "Seconds for which the oldest run has held its lock",
        lambda each: each.oldest_holder,
    ),
    "redislock_untaken_tasks": (
        "Tasks of waiting rooms that no worker has taken for a minute or more",
        lambda each: each.untaken,
    ),
    "redislock_runs_without_lock": (
        "Runs whose bodies go on after they lost their lock",
        lambda each: each.locks["without its lock"],
    ),
    # Workers have these two as well.
    "redislock_last_success_timestamp_seconds": (
        metrics.LAST_SUCCESS.text,
        lambda each: each.last_success,
    ),
    "redislock_lock_warn_after_seconds": (metrics.WARN_AFTER.text, lambda each: each.warn_after),
}
LOCKS: Final = (
    "redislock_locks",
    "Locks, and runs that lost theirs, by the state that `celery redislock list` shows",
)
UP: Final = ("redislock_up", "Whether the last survey of the lock server succeeded")
WHEN: Final = (
    "redislock_survey_timestamp_seconds", "Unix time of the last survey that succeeded"
)  # fmt: skip
TOOK: Final = ("redislock_survey_duration_seconds", "How long the last survey took")


class Collector(registry.Collector):
    """Waiting tasks and holders, for each task, as gauges for a registry of prometheus-client.

    A scrape surveys the lock server if the last survey was long enough ago; else it shows the last
    one: many scrapers cost no more than one. While the server does not answer, `redislock_up` is 0
    and the gauges of the tasks are missing.

    Args:
        app: the Celery app.
        every: the least seconds from the beginning of one survey to the next, from 0.1. The pause
            after a survey is at least as long as the survey took.

    Raises:
        ConfigError: `every` is not such a number.
    """

    def __init__(self, app: Any, *, every: float = 10.0) -> None:
        self._app = real_app(app)
        self._every = checked("Collector", "every", every, TTL)
        self._surveys: dict[int, _Surveys] = {}

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """The gauges without values. A registry asks when the collector is registered."""
        yield from _of_tasks({})
        for each in (UP, WHEN, TOOK):
            yield GaugeMetricFamily(*each)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The gauges, for a scrape. Waits `PATIENCE` seconds at most."""
        # Each process makes its own surveys: a forked child lacks its parent's threads.
        surveys = self._surveys.setdefault(os.getpid(), _Surveys(self._app, self._every))
        yield from surveys.latest()


class _Surveys:
    """Makes surveys on demand, in a thread: one that takes long is ready for the next scrape."""

    def __init__(self, app: Any, every: float) -> None:
        self._app, self._every = app, every
        self._mutex, self._thread = threading.Lock(), threading.Thread()
        self._due = 0.0
        self._gauges: list[GaugeMetricFamily] = []
        self._succeeded_at: float | None = None
        #: Why the last survey failed.
        self._trouble = ""
        #: The last success of each task, since the history may be cut, or lost with its server.
        self._successes: dict[str, float] = {}

    def latest(self) -> list[GaugeMetricFamily]:
        """The last survey, after a new one if that is due; empty if the first takes too long."""
        with self._mutex:
            if clock() >= self._due and not self._thread.is_alive():
                run = threading.Thread(target=self._run, name="redislock-survey", daemon=True)
                self._thread = run
                run.start()
        self._thread.join(PATIENCE)
        return self._gauges

    def _run(self) -> None:
        began = clock()
        gauges = self._try()
        gauges.append(GaugeMetricFamily(*UP, value=not self._trouble))
        if self._succeeded_at is not None:
            gauges.append(GaugeMetricFamily(*WHEN, value=self._succeeded_at))
        took = clock() - began
        self._gauges = [*gauges, GaugeMetricFamily(*TOOK, value=took)]
        self._due = began + max(self._every, 2 * took)

    def _try(self) -> list[GaugeMetricFamily]:
        """The gauges of the tasks, or none; each new error is logged once."""
        before, self._trouble = self._trouble, ""
        try:
            gauges = [*_of_tasks(self._figures())]
        except Exception as exc:  # nobody else reports an error of a thread
            self._trouble = why(exc) if isinstance(exc, LockUnavailable) else str(exc) or repr(exc)
            if self._trouble != before:
                is_bug = not isinstance(exc, LockError | OSError)
                logger.warning("redislock: nothing to export: %s", self._trouble, exc_info=is_bug)
            return []
        if before:
            logger.info("redislock: the lock server is surveyed again")
        self._succeeded_at = time.time()
        return gauges

    def _figures(self) -> dict[str, Figures]:
        """The figures of the tasks in the server, and zeros for the app's other tasks."""
        found = figures(self._app)
        for name, task in list(self._app.tasks.items()):
            if isinstance(task, SingletonTask):
                each = found.setdefault(name, Figures())
                each.locks.update(held=0, free=0)  # a Counter adds these
                each.warn_after = task.lock_options and task.lock_options.warn_after
        for name, each in found.items():
            known = (each.last_success, self._successes.get(name))
            if latest := max((at for at in known if at is not None), default=None):
                each.last_success = self._successes[name] = latest
        return found


def _of_tasks(figures: dict[str, Figures]) -> Iterator[GaugeMetricFamily]:
    for name, (text, value) in PER_TASK.items():
        family = GaugeMetricFamily(name, text, labels=["task"])
        for task, each in sorted(figures.items()):
            if (shown := value(each)) is not None:
                family.add_metric([task], shown)
        yield family
    family = GaugeMetricFamily(*LOCKS, labels=["task", "state"])
    for task, each in sorted(figures.items()):
        for state, count in sorted(each.locks.items()):
            family.add_metric([task, state], count)
    yield family
