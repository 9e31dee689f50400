"""The documented examples of celery-once and celery-singleton, for workers and for senders: with
those packages, or with ours, as the import says.
"""

from __future__ import annotations

import importlib
import json
import os
from types import SimpleNamespace
from typing import Any

import redis
from celery import Celery, current_task

from tests.support.journal import Journal
from tests.support.unshared import App

#: Where `QueueOnce` and `Singleton` are imported from: that is all that differs.
IMPORTS = {
    "theirs": ("celery_once", "celery_singleton"),
    "ours": ("celery_redislock.compat.celery_once", "celery_redislock.compat.celery_singleton"),
}


def configure(app: Celery, conf: dict[str, Any]) -> None:
    """The settings of both packages, and none of ours."""
    ours = ("test_", "redislock_url")
    app.conf.update({k: v for k, v in conf.items() if not k.startswith(ours)})
    app.conf.ONCE = {
        "backend": "celery_once.backends.Redis",
        "settings": {"url": conf["test_locks"], "default_timeout": 60 * 60},
    }
    app.conf.singleton_backend_url = conf["test_locks"]


def define(app: Celery, side: str, journal: Journal) -> SimpleNamespace:
    """The tasks, which the test lets go on."""
    once, singleton = map(importlib.import_module, IMPORTS[side])

    def work(label: str) -> str:
        request = current_task.request
        journal.write("start", label, request)
        journal.await_go(request.id)
        journal.write("end", label, request)
        return "Done!"

    # -- celery-once ----------------------------------------------------------------------

    @app.task(base=once.QueueOnce)
    def slow_task(label):
        return work(label)

    @app.task(base=once.QueueOnce, once={"graceful": True})
    def graceful_task(label):
        return work(label)

    @app.task(base=once.QueueOnce, once={"keys": ["a"]})
    def slow_add(a, b):
        return work(a)

    @app.task(base=once.QueueOnce, once={"keys": []})
    def only_one(a, b):
        return work(a)

    @app.task(base=once.QueueOnce, once={"timeout": 60 * 60 * 10})
    def long_running_task(label):
        return work(label)

    @app.task(base=once.QueueOnce, once={"unlock_before_run": True})
    def unlocked_task(label):
        return work(label)

    class ContextQueueOnce(once.QueueOnce):
        """As that package's page has it for Flask."""

        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            journal.write("context", args[0], self.request)
            return super().__call__(*args, **kwargs)

    @app.task(base=ContextQueueOnce)
    def context_task(label):
        return work(label)

    @app.task(base=once.QueueOnce, bind=True, max_retries=1)
    def retried_once(self, label):
        return work(label) if self.request.retries else self.retry(countdown=0.1)

    @app.task(base=once.QueueOnce, bind=True, max_retries=1, once={"unlock_before_run": True})
    def retried_unlocked(self, label):
        return work(label) if self.request.retries else self.retry(countdown=3)

    # -- celery-singleton -----------------------------------------------------------------

    @app.task(base=singleton.Singleton)
    def do_stuff(*args, **kwargs):
        return work(args[0])

    @app.task(base=singleton.Singleton, unique_on=["username"])
    def do_something(username, otherarg=None):
        return work(username)

    @app.task(base=singleton.Singleton, raise_on_duplicate=True)
    def do_or_raise(username):
        return work(username)

    @app.task(base=singleton.Singleton, lock_expiry=600)
    def expiring(label):
        return work(label)

    @app.task(base=singleton.Singleton, lock_expiry=1)
    def short(label):
        return work(label)

    class Telling(singleton.Singleton):
        abstract = True

        def on_duplicate(self, existing_task_id: str) -> str:
            return f"duplicate of {existing_task_id}"

    @app.task(base=Telling)
    def telling(label):
        return work(label)

    @app.task(base=singleton.Singleton, bind=True, max_retries=1)
    def retried_singleton(self, label):
        return work(label) if self.request.retries else self.retry(countdown=0.1)

    @app.task
    def total(results):
        return results

    tasks = {name: task for name, task in locals().items() if hasattr(task, "apply_async")}
    return SimpleNamespace(
        **tasks,
        QueueOnce=once.QueueOnce,
        AlreadyQueued=once.AlreadyQueued,
        Singleton=singleton.Singleton,
        DuplicateTaskError=singleton.DuplicateTaskError,
        clear_locks=singleton.clear_locks,
        app=app,
    )


if "TEST_CONF" in os.environ:
    CONF = json.loads(os.environ["TEST_CONF"])
    app = App("tests.behaviour.compat.jobs")
    configure(app, CONF)
    define(app, CONF["test_side"], Journal(redis.Redis.from_url(CONF["test_journal"])))
