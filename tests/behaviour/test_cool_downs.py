"""After `lock_min_hold`, or a pause, the next one starts at once."""

from __future__ import annotations

import time

import pytest

from celery_redislock import ConfigError, SingletonTask, TaskSkipped
from tests.behaviour.apps.house import house
from tests.behaviour.conftest import HOUSE

QUEUE = "cool-downs"


@pytest.fixture(scope="module", autouse=True)
def worker(start_module_worker):
    return start_module_worker(app=HOUSE, queues=QUEUE, concurrency=12)


@pytest.fixture
def app(conf, redis_server):
    """The worker's app, to be asked who has a lock."""
    with house({**conf, "redislock_url": f"{redis_server.url}/0"}) as app:
        yield app


def test_a_call_in_a_pause_is_told_apart_from_one_that_met_a_run(
    send, hold_open, worker, journal, label
):
    first = hold_open("pauses")
    met_run = send("pauses", label)
    with pytest.raises(TaskSkipped):
        met_run.get(timeout=20)
    journal.let_go(first.id)
    assert first.get(timeout=20) == label
    met_pause = send("pauses", label)
    with pytest.raises(TaskSkipped) as skipped:
        met_pause.get(timeout=20)
    assert skipped.value.holder.cooling_down
    line = next(
        each for each in worker.log().splitlines() if f"pauses[{met_pause.id}] skipped" in each
    )
    assert "which has ended and is followed by a pause" in line


def test_a_pause_outlives_its_retry(send, journal, app, label):
    task = app.tasks["pauses_and_skips"]
    assert send(task.name, label, "pause long and retry").get(timeout=20) == label
    ended = journal.read(label, "end")
    holder = task.lock_holder(label)
    assert (holder.cooling_down, holder.attempt) == (True, 1)
    assert holder.ttl + time.monotonic() - ended[0].at == pytest.approx(60, abs=1)
    assert task.break_lock(label)


@pytest.mark.parametrize("seconds", ["60", -1, None, float("nan")])
def test_a_pause_that_is_no_time_is_refused_also_where_no_lock_is_taken(conf, label, seconds):
    with house({**conf, "redislock_eager": True}) as app:

        @app.task(base=SingletonTask, bind=True, shared=False, name="asks")
        def asks(self, name):
            self.lock.pause(seconds)

        for run in (asks, lambda name: asks.apply((name,)).get()):
            with pytest.raises(ConfigError, match=r"lock\.pause: seconds=.* must be a number of s"):
                run(label)
