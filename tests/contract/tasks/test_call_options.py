"""Options of a lock that are given to a retry, or to an entry of beat's schedule: refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from celery import Celery
from celery.beat import Scheduler, SchedulingError
from celery.contrib.testing.worker import start_worker

from celery_redislock import ConfigError, SingletonTask
from tests.support.looking import run


@pytest.fixture
def app(redis_server) -> Iterator[Celery]:
    app = Celery("calls", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.redislock_url = redis_server.url

    @app.task(base=SingletonTask, name="calls.sync", shared=False)
    def sync() -> None: ...

    app.finalize()
    yield app
    app.close()


def test_a_retry_with_such_an_option_fails_the_task_and_loses_nothing(app) -> None:
    @app.task(base=SingletonTask, bind=True, name="calls.retries", shared=False)
    def retries(self: SingletonTask) -> None:
        raise self.retry(countdown=0, lock_ttl=5)

    with (
        start_worker(app, pool="solo", perform_ping_check=False),
        pytest.raises(ConfigError, match=r"task calls\.retries: lock_ttl=5"),
    ):
        retries.delay().get(timeout=20)


def test_beat_says_so_at_each_tick_and_doctor_before(app) -> None:
    app.conf.beat_schedule = {
        "nightly": {
            "task": "calls.sync",
            "schedule": timedelta(hours=1),
            "options": {"expires": 60, "on_conflict": "queue"},
        }
    }
    scheduler = Scheduler(app, lazy=True)
    scheduler.setup_schedule()
    with pytest.raises(SchedulingError, match="on_conflict='queue' is not accepted"):
        scheduler.apply_async(scheduler.schedule["nightly"])
    result = run(app, "doctor")
    assert result.exit_code == 1
    assert "nightly: a call of task calls.sync: on_conflict='queue'" in result.output
