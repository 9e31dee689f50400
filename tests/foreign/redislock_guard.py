"""A plugin of pytest for Celery's own tests: guards every task of every app.

It is told what to do by the environment:

- `GUARD`: "task_cls" or "redislock_tasks", or nothing for tests without locks;
- `GUARD_POLICY`, `GUARD_URL`: what a duplicate does, and where the locks are;
- `GUARD_SLOTS`: the concurrency of Celery's own test worker, guarded or not.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import suppress
from functools import wraps
from typing import Any

import pytest
import redis
from celery import Celery

#: A hash on the lock server: how many locks were acquired, and what became of duplicates.
COUNTS = "guard:counts"


def pytest_configure() -> None:
    how = os.environ.get("GUARD")
    if how:
        _guard(how, os.environ["GUARD_POLICY"], os.environ["GUARD_URL"])
        _count(os.environ["GUARD_URL"])


def _guard(how: str, policy: str, url: str) -> None:
    """Let every app of this process guard its tasks, as a project's settings would."""
    settings: dict[str, Any] = {"redislock_url": url, "redislock_on_conflict": policy}
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


def _count(url: str) -> None:
    from celery_redislock import signals

    counts = redis.Redis.from_url(url)

    def count(details: Any, **_: Any) -> None:
        with suppress(Exception):  # a test may have put a mock in our way
            counts.hincrby(COUNTS, getattr(details, "outcome", "acquired"), 1)

    signals.lock_acquired.connect(count, weak=False)
    signals.lock_conflict.connect(count, weak=False)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Generator[None, Any, Any]:
    made = yield
    if fixturedef.argname == "celery_worker_parameters":
        made["concurrency"] = int(os.environ.get("GUARD_SLOTS", "1"))
    return made
