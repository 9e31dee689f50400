"""What Celery logs of a refused duplicate, and that this is all that is different about it."""

from __future__ import annotations

import logging

import pytest
from celery.app import trace

from celery_redislock import Defer, LockConflict, Raise, SingletonTask
from celery_redislock.app.internals import EXPECTED, TRACE_LOGGER
from celery_redislock.testing import hold_lock, memory_locks


@pytest.fixture(autouse=True)
def locks():
    with memory_locks():
        yield


@pytest.fixture
def celerys(caplog):
    """What Celery logs of tasks' ends."""

    def celerys():
        return [each for each in caplog.records if each.name == TRACE_LOGGER]

    caplog.set_level(logging.DEBUG)
    return celerys


def test_celery_still_calls_it_so():
    assert trace.logger.name == TRACE_LOGGER
    assert trace.log_policy_expected.description == EXPECTED
    assert trace.log_policy_expected.severity == logging.INFO


@pytest.mark.parametrize("policy", ["raise", Raise(), Defer(then=Raise())])
def test_a_refused_duplicate_is_expected_and_writes_no_traceback(app, celerys, policy):
    @app.task(name="refuses", shared=False, base=SingletonTask, on_conflict=policy)
    def refuses(x):
        """Nothing."""

    with hold_lock(refuses, 5):
        result = refuses.apply((5,))
    (record,) = celerys()
    assert record.levelno == logging.INFO
    assert record.levelname == "INFO"
    assert f"Task refuses[{result.id}] raised expected: LockConflict(" in record.getMessage()
    assert not record.exc_info
    assert record.data["description"] == EXPECTED
    assert "Traceback" not in logging.Formatter().format(record)


def test_it_is_a_failure_like_any_other(app):
    failures = []

    class Base(SingletonTask):
        abstract = True

        def on_failure(self, exc, task_id, args, kwargs, einfo):
            failures.append((exc, task_id))

    @app.task(name="refuses", shared=False, base=Base, on_conflict="raise")
    def refuses(x):
        """Nothing."""

    with hold_lock(refuses, 5) as held:
        result = refuses.apply((5,))
    assert result.state == "FAILURE"
    error = result.result
    assert type(error) is LockConflict
    assert (error.key, error.holder.task) == (held.key, "refuses")
    assert failures == [(error, result.id)]
    lines = result.traceback.strip().splitlines()
    assert lines[0].startswith("Traceback")
    assert lines[-1].startswith("celery_redislock.LockConflict: the lock is held: ")
    assert sum(line.startswith("  File ") for line in lines) <= 5


def test_a_conflict_of_a_lock_that_the_body_takes_is_none(app, celerys):
    @app.task(name="fails", shared=False, base=SingletonTask)
    def fails(x):
        raise LockConflict("another key")

    assert fails.apply((5,)).state == "FAILURE"
    (record,) = celerys()
    assert record.levelno == logging.ERROR
    assert "raised unexpected" in record.getMessage()
    assert record.exc_info


def test_a_before_start_that_fails_is_what_the_task_fails_with(app):
    class Base(SingletonTask):
        abstract = True

        def before_start(self, task_id, args, kwargs):
            raise KeyError("it cannot start")

    @app.task(name="refuses", shared=False, base=Base, on_conflict="raise")
    def refuses(x):
        """Nothing."""

    app.conf.result_backend = "cache+memory://"
    refuses.__trace__ = trace.build_tracer(refuses.name, refuses, app=app)
    with hold_lock(refuses, 5):
        request = {"id": "refused", "delivery_info": {}}
        told = trace.trace_task(refuses, "refused", (5,), {}, request, app=app)
    assert told.info.state == "FAILURE"
    assert repr(app.AsyncResult("refused").result) == "KeyError('it cannot start')"
