"""What a worker's start says that is no `celery worker`, as in a project's own tests."""

from __future__ import annotations

import logging

import pytest
from celery import Celery, signals
from celery.contrib.testing.worker import start_worker

from celery_redislock import ConfigError, Queue, SingletonTask
from celery_redislock.testing import memory_locks
from celery_redislock.worker import start
from tests.support.waiting import eventually, never


class Within:
    """A worker, as far as its start looks at it."""


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


def test_a_worker_that_ended_looks_after_no_rooms():
    """A suite may start hundreds of workers in one process."""
    app = Celery("brief", broker="memory://", backend="cache+memory://", set_as_current=False)
    with memory_locks() as locks:

        def looks():
            return locks.client.keys("*:sweep:*")

        @app.task(base=SingletonTask, shared=False, name="brief", on_conflict=Queue())
        def brief(): ...

        with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=20):
            eventually(looks, "it looks after rooms")
        eventually(lambda: not looks(), "its turn is over")
        never(looks, "it looks again", 1.5)
    app.close()


def test_a_worker_without_a_result_backend_says_so_at_once():
    app = Celery("half", broker="memory://", set_as_current=False)
    app.conf.result_backend = "redis://:secret@127.0.0.1:1/0"
    does_not_answer = r"redis://.*127\.0\.0\.1:1/0 does not answer"
    with (
        memory_locks(),
        pytest.raises(SystemExit, match=does_not_answer) as told,
        start_worker(app, pool="solo", perform_ping_check=False),
    ):
        raise AssertionError("it started")
    assert "secret" not in str(told.value)
    assert "result_backend='cache+memory://'" in str(told.value)
    app.close()


def test_that_nobody_hears_of_lost_locks_is_said_elsewhere(monkeypatch, caplog, capsys):
    """As `logging.config` leaves a logger that it does not name."""
    said = "the logger 'celery_redislock' is disabled: nobody will hear of lost locks"
    start._say_if_unheard()
    assert caplog.text == ""
    monkeypatch.setattr(logging.getLogger("celery_redislock"), "disabled", True)
    start._say_if_unheard()
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("celery.worker", "WARNING")
    assert said in record.getMessage()
    for name in ("celery.worker", None):
        monkeypatch.setattr(logging.getLogger(name), "disabled", True)
    start._say_if_unheard()
    assert said in capsys.readouterr().err
