"""What operators see and do where the locks are spread over the nodes of a Redis Cluster."""

from __future__ import annotations

import dataclasses
import json

import pytest

from celery_redislock.app.entries import Entry
from celery_redislock.app.settings import app_locks
from celery_redislock.protocol import calls, past, rooms
from celery_redislock.protocol.claims import Parking
from tests.support.looking import claim, make_app, run, take

#: So many locks are on all nodes.
LABELS = [f"label-{number}" for number in range(12)]


@pytest.fixture
def app(cluster, label):
    app = make_app(cluster.url, label, redislock_history=50)
    yield app
    app_locks(app).server.close()


def told(app, *arguments):
    result = run(app, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_all_locks_are_listed_and_can_be_broken(app, cluster):
    keys = {take(app, "sync", each)[0].keys.lock for each in LABELS}
    assert len({cluster.primary_of(key).port for key in keys}) == 3
    assert {each["key"] for each in told(app, "list")} == keys
    broken = told(app, "break", "--force", "--all", "sync")["broken"]
    assert {each["task_id"] for each in broken} == {f"id-of-{each}" for each in LABELS}
    assert {each["state"] for each in told(app, "list")} <= {"broken"}


def test_waiting_tasks_of_all_locks_are_seen_and_dropped(app):
    for each in LABELS:
        take(app, "report", each)
        made = claim(app, "report", each, task_id=f"waits-{each}", token=f"token-{each}")
        entry = Entry.of(app.tasks["report"], [each], {}, {"task_id": made.task_id, "headers": {}})
        app_locks(app).server.run(rooms.park(made, Parking(entry.dump())))
    assert [each["waiting"] for each in told(app, "list")] == [1] * len(LABELS)
    told(app, "drop-waiting", "--force", "--all", "report")
    assert [each["waiting"] for each in told(app, "list")] == [0] * len(LABELS)


def test_runs_of_all_locks_are_in_the_history(app):
    for each in LABELS:
        made = dataclasses.replace(claim(app, "sync", each), task="sync", history=50)
        fence = app_locks(app).server.run(calls.acquire(made)).fence
        end = calls.Release(run_end=past.end_text(fence, 1.0, "succeeded"))
        assert app_locks(app).server.run(calls.settle(made, end)).ours
    result = run(app, "history", "sync")
    assert result.output.count("succeeded") == len(LABELS)
