"""Time in tests: what waits in a worker of the tests' own process has its turn at once when time
passes at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker

from celery_redislock import (
    Coalesce,
    Debounce,
    Defer,
    Queue,
    Replace,
    SingletonTask,
    Skip,
    TaskSkipped,
    Wait,
)
from celery_redislock.testing import MemoryLocks, hold_lock, memory_locks
from tests.behaviour.looking import Keys
from tests.support.waiting import eventually

SPANS = [5, 3600]
#: How a call waits for so many seconds, if it is held up by a lock that somebody holds for longer.
GIVES_UP: dict[str, Callable[[float], Any]] = {
    "Defer": lambda s: Defer(delay=s, max_wait=s),
    "Queue": lambda s: Queue(max_wait=s),
    "Queue, then": lambda s: Queue(max_wait=s, then=Skip()),
    "Wait": lambda s: Wait(timeout=s),
}
#: The same, if it meets nobody, or one who ends at once.
RUNS: dict[str, Callable[[float], Any]] = {
    "Debounce": lambda s: Debounce(quiet=s, max_wait=2 * s),
    "Debounce, at most": lambda s: Debounce(quiet=s, max_wait=s),
    "Defer, until free": lambda s: Defer(delay=s),
}
#: The same, if it comes in the pause after a run.
PAUSES: dict[str, Callable[[float], Any]] = {
    "Coalesce": lambda s: Coalesce(),
    "Queue": lambda s: Queue(),
    "Replace": lambda s: Replace(),
    "Wait": lambda s: Wait(),
}
KINDS = {"gives up": GIVES_UP, "runs": RUNS, "pauses": PAUSES}
CASES = [(kind, policy) for kind, policies in KINDS.items() for policy in policies]


class Stage:
    """A worker in a thread of this process, and the locks that it shares with us."""

    def __init__(self, locks: MemoryLocks, app: Celery) -> None:
        self.locks = locks
        self._app = app

    def task(self, kind: str, policy: str, seconds: float) -> Any:
        return self._app.tasks[f"{kind} {policy} {seconds}"]

    def waits(self, kind: str, policy: str, seconds: float) -> Callable[[], None]:
        """Let a call wait. What is returned asserts that it ends as it is to end."""
        task = self.task(kind, policy, seconds)
        held = None
        if kind == "gives up" or policy.startswith("Defer"):
            held = hold_lock(task)
        elif kind == "pauses":
            assert task.delay().get(timeout=30) == "ran"
        result = task.delay()
        keys = Keys(task.lock_key_for())
        at = (keys.room, keys.waiters)
        eventually(
            # It ends at once if it came when the pause was over.
            lambda: self.locks.client.exists(*at) or self.locks.outcomes(task) or result.ready(),
            f"{task.name} waits",
        )
        if kind != "gives up" and held is not None:
            held.release()

        def ends() -> None:
            outcome = result.get(timeout=60, propagate=False)
            if kind == "gives up":
                assert isinstance(outcome, TaskSkipped), f"{task.name}: {outcome!r}"
                assert held is not None
                held.release()
            else:
                assert outcome == "ran", f"{task.name}: {outcome!r}"

        return ends


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    app = Celery("kit", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.broker_transport_options = {"polling_interval": 0.01}

    def runs() -> str:
        return "ran"

    for kind, policies in KINDS.items():
        for name, policy in policies.items():
            for seconds in SPANS:
                options = {"lock_min_hold": seconds} if kind == "pauses" else {}
                app.task(
                    base=SingletonTask,
                    shared=False,
                    name=f"{kind} {name} {seconds}",
                    on_conflict=policy(seconds),
                    **options,
                )(runs)
    fit = {"pool": "threads", "concurrency": 8, "perform_ping_check": False}
    with memory_locks() as locks, start_worker(app, shutdown_timeout=20, **fit):
        yield Stage(locks, app)
    app.close()


@pytest.mark.parametrize("seconds", SPANS)
def test_every_policy_comes_at_once_when_time_passes(stage: Stage, seconds: float) -> None:
    ends = [stage.waits(*case, seconds) for case in CASES]
    began = time.monotonic()
    stage.locks.advance(seconds * 1.3)
    for each in ends:
        each()
    assert time.monotonic() - began < 60
