"""One acquisition is one row, also after a server stood still for longer than the ttl."""

from __future__ import annotations

import json

import pytest
from celery import Celery
from prometheus_client import CollectorRegistry

from celery_redislock.prometheus import Collector
from tests.support.looking import client_of, make_app, run, runs_without, take, told
from tests.support.servers import apart
from tests.support.waiting import eventually, never
from tests.support.workers import make_app as make_sender

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


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_after_a_server_stood_still_a_run_is_one_row(
    conf, own_redis, start_worker, journal, label, queue, pool
):
    own = {k: v for k, v in apart(conf, own_redis).items() if not k.startswith("test_")}
    worker = start_worker(queues=queue, pool=pool, concurrency=1, conf={**conf, **own})
    app = Celery("looks", set_as_current=False)
    app.conf.update(own)
    result = make_sender(own).send_task("short_ttl", [label, 600.0], queue=queue)
    eventually(lambda: journal.read(label, "start"), "it runs")
    # What is on its way when the server stops comes when it goes on, and takes the lock again.
    eventually(lambda: told(app, "list")[0]["held_for"] > 1.5, "its heartbeat has a connection")

    own_redis.stop()
    eventually(lambda: "LOST" in worker.log(), "it takes its lock for lost")
    own_redis.resume()

    def states():
        found = told(app, "list")
        assert {each["task_id"] for each in found} <= {result.id}
        return [each["state"] for each in found]

    eventually(states, "it is shown", 30)
    # Its process says anew every 3 s that it lost the lock.
    never(lambda: len(states()) > 1, "it is two rows", 2.0)
    # In prefork the main process extends it.
    wanted = [{"prefork": "held", "threads": WITHOUT}[pool]]
    eventually(lambda: states() == wanted, "it is shown as it is", 10)
    findings = [each for each in told_of(app) if each["check"] == "workers"]
    assert any(each["level"] == "error" for each in findings) is (pool == "threads")


def told_of(app):
    return json.loads(run(app, "doctor", "--json").output)
