"""A bug of this package ends no worker, and changes no task's outcome."""

from __future__ import annotations

import os
import signal
import uuid

import pytest
from celery import chain

from tests.contract.worker.faulty import faulty
from tests.support.waiting import eventually

APP = "tests.contract.worker.faulty"


@pytest.fixture(scope="module", params=["solo", "prefork", "threads"])
def worker(request, start_module_worker):
    queue = f"q{uuid.uuid4().hex}"
    worker = start_module_worker(app=APP, queues=queue, pool=request.param, concurrency=2)
    worker.queue, worker.pool = queue, request.param
    return worker


@pytest.fixture(scope="module")
def app(conf):
    with faulty(conf) as app:
        yield app


@pytest.fixture
def send(app, worker):
    return lambda name, *args, **more: app.tasks[name].apply_async(
        args, **{"queue": worker.queue, **more}
    )


def runs_on(worker, send):
    """Its log says that it has met the bug, and it runs what comes next."""
    assert send("job", uuid.uuid4().hex).get(timeout=20)
    assert "Unrecoverable" not in worker.log()


def test_a_lock_that_cannot_be_asked_for_fails_its_task(worker, app, send, label, journal):
    told = f"{label}<acquire>"
    follows = app.tasks["job"].si(label).set(queue=worker.queue)
    result = chain(app.tasks["late"].si(told).set(queue=worker.queue), follows)()
    parent = result.parent
    eventually(parent.ready, "it has ended")
    assert parent.state == "FAILURE"
    assert type(parent.result).__name__ == "Fault"
    assert "acquire" in parent.traceback
    eventually(result.ready, "its chain has ended")
    assert journal.count(label, "start") + journal.count(told, "start") == 0
    runs_on(worker, send)


@pytest.mark.parametrize("name", ["job", "late"])
def test_an_outcome_stands_though_its_lock_cannot_be_released(worker, app, send, label, name):
    told = f"{label}<settle>"
    assert send(name, told).get(timeout=20) == told
    assert "could not release redislock:" in worker.log()
    runs_on(worker, send)
    # Nobody extends it.
    eventually(lambda: app.tasks[name].lock_holder(told) is None, "it expires")


@pytest.mark.parametrize("step", ["stamp", "__init__", "finished_note"])
def test_the_main_process_goes_on(worker, send, label, step):
    told = f"{label}<{step}>"
    assert send("late", told).get(timeout=20) == told
    runs_on(worker, send)


def test_a_reservation_that_cannot_be_settled_ends_no_worker(worker, app, send, label):
    told = f"{label}<settle>"
    result = send("reserved", told, countdown=3600)
    eventually(lambda: result.id in worker.log(), "it has come")
    app.control.revoke(result.id, destination=[worker.node])
    eventually(lambda: "Fault: settle" in worker.log(), "the worker has tried")
    runs_on(worker, send)


def test_a_time_limit_is_told_though_a_step_of_ours_fails(worker, send, label):
    if worker.pool != "prefork":
        pytest.skip("this pool has no time limits")
    result = send("<ends_message>", label, "stand")
    eventually(result.ready, "it has ended")
    assert result.state == "FAILURE"
    eventually(lambda: "unexpected error in _settle_timed_out" in worker.log(), "it is told")
    runs_on(worker, send)


def test_a_child_that_is_not_watched_may_die(worker, send, label, journal):
    if worker.pool != "prefork":
        pytest.skip("this pool has no children")
    result = send("job", f"{label}<__init__>", "stand")
    (run,) = eventually(lambda: journal.read(f"{label}<__init__>", "start"), "it runs")
    os.kill(run.pid, signal.SIGKILL)
    eventually(result.ready, "it has ended")
    assert result.state == "FAILURE"
    runs_on(worker, send)
