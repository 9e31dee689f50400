"""What a worker's start says that is no `celery worker`, as in a project's own tests."""

from __future__ import annotations

import logging

from celery import Celery, signals

from celery_redislock import SingletonTask


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
