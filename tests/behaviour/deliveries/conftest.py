"""What these tests share: their app's workers, and a sender that has the tasks' code."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from celery.result import AsyncResult

from celery_redislock import SingletonTask
from tests.support.journal import Entry, Journal
from tests.support.waiting import eventually
from tests.support.workers import Worker

APP = "tests.behaviour.apps.deliveries"


@pytest.fixture
def start(start_worker: Callable[..., Worker], queue: str) -> Callable[..., Worker]:
    """Starts a worker of this test's own queue, or of others."""

    def start(*arguments: str, **options: Any) -> Worker:
        return start_worker(*arguments, **{"app": APP, "queues": queue, **options})

    return start


@pytest.fixture
def send_here(sender: Celery, queue: str) -> Callable[..., AsyncResult[Any]]:
    """Sends a task by name, to this test's own queue unless it is told another."""

    def send_here(name: str, *args: Any, **options: Any) -> AsyncResult[Any]:
        return sender.send_task(name, args, **{"queue": queue, **options})

    return send_here


@pytest.fixture
def web(conf: dict[str, Any], queue: str) -> Iterator[Celery]:
    """The app of a web server: it has the tasks' code, which need not be the worker's. It sends to
    this test's own queue.
    """
    app = Celery("web", set_as_current=False)
    app.conf.update({k: v for k, v in conf.items() if not k.startswith("test_")})
    app.conf.task_default_queue = queue
    yield app
    gc.collect()  # results that nobody asked for, while there is a server to tell
    app.close()


@pytest.fixture
def define(web: Celery) -> Callable[..., Any]:
    """Defines a task in that app."""

    def define(function: Callable[..., Any], **options: Any) -> Any:
        defaults = {"base": SingletonTask, "lock_key": ["label"], "lock_ttl": 6, "shared": False}
        return web.task(**{**defaults, **options})(function)

    return define


@pytest.fixture
def started(journal: Journal, label: str) -> Callable[..., Entry]:
    """Waits for so many runs of the label, and gives the last."""

    def started(count: int = 1) -> Entry:
        eventually(lambda: journal.count(label, "start") >= count, f"{count} started")
        return journal.read(label, "start")[count - 1]

    return started


def lines_of(worker: Worker, *words: str) -> list[str]:
    """The lines of a worker's log that have all these words."""
    return [line for line in worker.log().splitlines() if all(word in line for word in words)]


def await_line(worker: Worker, *words: str) -> None:
    eventually(lambda: lines_of(worker, *words), f"the log has a line of {words}")
