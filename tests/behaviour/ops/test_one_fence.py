"""One acquisition is one row, also after a server stood still for longer than the ttl."""

from __future__ import annotations

import json

from prometheus_client import CollectorRegistry

from celery_redislock.prometheus import Collector
from tests.support.looking import client_of, make_app, run, runs_without, take, told

WITHOUT = "without its lock"


def test_a_run_that_the_server_has_as_the_holder_has_its_lock(redis_server, label):
    """The answer came too late for the run, and its lock came back."""
    app = make_app(redis_server.url, label)
    for lock in (take(app, "sync", "one", history=True), take(app, "several", "two")):
        runs_without(app, lock, "no answer")
    runs_without(app, take(app, "several", "two"), "no answer")  # in the second slot

    rows = told(app, "list")
    assert [each["state"] for each in rows] == ["held"] * 3
    assert len({each["fence"] for each in rows}) == 3
    for key in {each["key"] for each in rows}:
        assert {each["state"] for each in told(app, "show", key)["locks"]} == {"held"}
    assert "without a lock" not in run(app, "list").output
    assert "without a lock" not in run(app, "watch", "--times", "1").output
    assert [each["how"] for each in told(app, "history", "sync", "one")] == ["running"]
    assert not [each for each in told_of(app) if each["check"] == "workers"]
    registry = CollectorRegistry()
    registry.register(Collector(app))
    of_several = {"task": "several"}
    assert registry.get_sample_value("redislock_runs_without_lock", of_several) == 0
    assert registry.get_sample_value("redislock_locks", {**of_several, "state": "held"}) == 2


def test_a_run_whose_lock_another_has_is_without_it(redis_server, label):
    app = make_app(redis_server.url, label)
    lost = take(app, "sync", "one", age=5, history=True)
    runs_without(app, lost)
    client_of(app).delete(lost.key)
    take(app, "sync", "one", history=True)
    assert sorted(each["state"] for each in told(app, "list")) == ["held", "without its lock"]
    assert [each["how"] for each in told(app, "history", "sync", "one")] == ["running", "lost"]


def told_of(app):
    return json.loads(run(app, "doctor", "--json").output)
