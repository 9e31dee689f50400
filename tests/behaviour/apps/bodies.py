"""What all of these apps' tasks do, and how an app is made."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

import redis
from celery import Celery

from tests.support.journal import Journal

#: What the test gave to the worker. Empty in the test's own process.
CONF: dict[str, Any] = json.loads(os.environ.get("TEST_CONF", "{}"))

client = redis.Redis.from_url(CONF.get("test_journal", "redis://"), decode_responses=True)
journal = Journal(client)


def new_app(name: str, conf: Mapping[str, Any]) -> Celery:
    app = Celery(name, set_as_current=bool(CONF))
    app.conf.update({key: value for key, value in conf.items() if not key.startswith("test_")})
    return app


def add_tasks(app: Celery, base: Any, tasks: Mapping[str, Mapping[str, Any]]) -> None:
    """Give the app a task for each of these names and options, all with the body `run`. The base is
    the caller's: an app of plain Celery must not import ours.
    """
    for name, options in tasks.items():

        def job(self: Any, label: str, how: str | float = 0.0) -> str:
            return run(self, label, how)

        defaults = {"base": base, "bind": True, "lock_key": ["label"], "lock_ttl": 6}
        app.task(**{**defaults, **options, "name": name, "shared": False})(job)


def run(self: Any, label: str, how: str | float = 0.0) -> str:
    """One run, written down at its start and its end.

    Args:
        how: seconds, "stand" to go on when the test says so, "retry" to do so once ("stand and
            retry": when the test says so; "retry later": after 3 s; "retry elsewhere": with another
            label), or "fail". With "pause and" before it, its first attempt asks for a pause of
            1.5 s ("pause long and": of a minute). With "describe and" it says how far it is: it
            stands then, and is a page further each time that the test lets it go.
    """
    fence = {"fence": self.lock.fence} if hasattr(self, "lock") else None
    journal.write("start", label, self.request, fence)
    pause, how = 0.0, str(how)
    for words, seconds in {"pause and ": 1.5, "pause long and ": 60.0}.items():
        if how.startswith(words):
            pause, how = seconds, how.removeprefix(words)
    try:
        if pause and not self.request.retries:
            self.lock.pause(pause)
        if how == "describe and stand":
            for page in (1, 2):
                self.lock.describe(f'page {page} of "2", 100 % ✓')
                journal.await_go(self.request.id)
        elif how == "stand":
            journal.await_go(self.request.id)
        elif how in ("retry", "stand and retry", "retry later"):
            if not self.request.retries:
                if how == "stand and retry":
                    journal.await_go(self.request.id)
                raise self.retry(countdown=3 if how == "retry later" else 0.5)
        elif how == "retry elsewhere":
            raise self.retry(args=(f"{label} elsewhere", 0.0), countdown=0.5)
        elif how == "fail":
            raise ValueError("it fails")
        else:
            time.sleep(float(how))
        return label
    finally:
        journal.write("end", label, self.request)
