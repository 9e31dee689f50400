"""A sender of tasks that are unique while queued: fixtures, and what defines its tasks."""

from __future__ import annotations

import gc

import pytest
from celery import Celery
from celery.exceptions import TimeoutError as ResultTimeout

from celery_redislock import SingletonTask
from tests.support.unique import UNIQUE


def body(label, seconds=0.2, how="return"):
    """Has the worker's signature, and runs there only."""


def make_sender(conf, **overrides):
    """An app that has the tasks' code, as a web server has."""
    app = Celery("scopes", set_as_current=False)
    app.conf.update({k: v for k, v in {**conf, **overrides}.items() if not k.startswith("test_")})
    for name, options in UNIQUE.items():
        define(app, name, **options)
    return app


def define(app, name, **options):
    defaults = {"base": SingletonTask, "lock_key": ["label"], "lock_ttl": 6, "shared": False}
    return app.task(**{**defaults, **options, "name": name})(body)


def ended(result, timeout=60):
    """What it ended in."""
    try:
        return result.get(timeout=timeout)
    except ResultTimeout:
        raise
    except Exception as exc:
        return exc


@pytest.fixture(scope="module")
def app(conf):
    app = make_sender(conf)
    yield app
    gc.collect()  # results that nobody asked for, while there is a server
    app.close()


@pytest.fixture
def tasks(app, queue):
    """The sender's tasks by name, sent to this test's own queue."""

    class Tasks:
        def __getattr__(self, name):
            return app.tasks[name]

        def send(self, name, *args, **options):
            return app.tasks[name].apply_async(args, **{"queue": queue, **options})

        def sig(self, name, *args):
            return app.tasks[name].si(*args).set(queue=queue)

    return Tasks()


@pytest.fixture
def length(redis_server, queue):
    """How many messages are in this test's queue."""
    with redis_server.client(db=1) as broker:
        yield lambda: broker.llen(queue)
