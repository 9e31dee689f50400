"""A plugin of pytest for Celery's own tests: guards every task of every app.

It is told what to do by the environment:

- `GUARD`: "task_cls" or "redislock_tasks", or nothing for tests without locks;
- `GUARD_POLICY`, `GUARD_URL`: what a duplicate does, and where the locks are;
- `GUARD_SLOTS`: the concurrency of Celery's own test worker, guarded or not.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import suppress
from functools import wraps
from typing import Any

import pytest
import redis
from celery import Celery

#: On the lock server: the test that runs; and a hash, for each test and what became of a task that
#: met a held lock, how often. "acquired" counts the locks.
TEST, MET = "guard:test", "guard:met"


def pytest_configure(config: pytest.Config) -> None:
    how = os.environ.get("GUARD")
    if how:
        _guard(how, os.environ["GUARD_POLICY"], os.environ["GUARD_URL"])
        config.pluginmanager.register(_Counter(os.environ["GUARD_URL"]))
        # Celery's unit tests look for threads that are left; ours are meant to be.
        every = threading.enumerate
        threading.enumerate = lambda: [
            each for each in every() if not each.name.startswith("redislock-")
        ]


def _guard(how: str, policy: str, url: str) -> None:
    """Let every app of this process guard its tasks, as a project's settings would."""
    settings: dict[str, Any] = {
        "redislock_url": url,
        "redislock_on_conflict": policy,
        # Most unit tests run tasks eagerly.
        "redislock_eager": True,
    }
    if how == "task_cls":
        Celery.task_cls = "celery_redislock:SingletonTask"
    else:
        settings["redislock_tasks"] = {"*": {}}
    original = Celery.__init__

    @wraps(original)
    def init(app: Celery, *args: Any, **kwargs: Any) -> None:
        original(app, *args, **kwargs)
        app.add_defaults(settings)

    Celery.__init__ = init


class _Counter:
    """Counts what becomes of tasks, in every process, for the test that runs."""

    def __init__(self, url: str) -> None:
        from celery_redislock import signals  # a plain run does not even import it

        self._client = redis.Redis.from_url(url)
        for signal in signals.lock_acquired, signals.lock_conflict:
            signal.connect(self._count, weak=False)

    def _count(self, details: Any, **_: Any) -> None:
        with suppress(Exception):  # a test may have put a mock in our way
            test = (self._client.get(TEST) or b"").decode()
            outcome = getattr(details, "outcome", "acquired")
            self._client.hincrby(MET, f"{outcome}|{test}", 1)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._client.set(TEST, nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Generator[None, Any, Any]:
    made = yield
    if fixturedef.argname == "celery_worker_parameters":
        made["concurrency"] = int(os.environ.get("GUARD_SLOTS", "1"))
    return made
