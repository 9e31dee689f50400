"""What a worker's start says that is no `celery worker`, as in a project's own tests."""

from __future__ import annotations

import logging

import pytest
from celery import Celery, signals

from celery_redislock import ConfigError, SingletonTask
from celery_redislock.worker import start


class Within:
    """A worker, as far as its start looks at it."""


def test_a_worker_within_another_program_says_at_once_what_is_wrong(caplog):
    app = Celery("within", set_as_current=False)
    app.conf.update(redislock_enabled=False, redislock_tasks={"no.such.task": {}})

    @app.task(name="one", shared=False, base=SingletonTask)
    def one(): ...

    caplog.set_level(logging.INFO, "celery_redislock")
    worker = Within()
    worker.app = app
    signals.worker_init.send(sender=worker)
    assert [record.getMessage() for record in caplog.records] == [
        "redislock: redislock_tasks['no.such.task'] matches no task of this app",
        "redislock: redislock_enabled is False: 1 task without locks",
    ]


@pytest.mark.parametrize("error", [ConfigError("no such option"), ValueError("a bug of ours")])
def test_a_worker_whose_tasks_cannot_be_prepared_does_not_start(monkeypatch, error):
    """Celery would only log the error, and the tasks would run without their locks."""

    def fails(app):
        raise error

    monkeypatch.setattr(start, "protect_tasks", fails)
    worker = Within()
    worker.app = Celery("unprepared", set_as_current=False)
    with pytest.raises(SystemExit, match=f"redislock: {error}"):
        signals.worker_init.send(sender=worker)
