"""The backlog in figures, and the collector that shows them to prometheus-client."""

from __future__ import annotations

import os
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from celery import Celery

from celery_redislock import ConfigError
from tests.support.looking import (
    end,
    every_state,
    lock_of,
    make_app,
    park,
    take,
)
from tests.support.servers import free_port
from tests.support.waiting import eventually

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, generate_latest

from celery_redislock.prometheus import Collector


def registered(app, **options):
    registry = CollectorRegistry()
    registry.register(Collector(app, **options))
    return registry


class Figures:
    """The gauges of one task; those that are not 0."""

    def __init__(self):
        self.locks, self.gauges = {}, {}

    def __getattr__(self, name):
        return self.gauges.get(name, 0)


def figures(app):
    """The figures of each task that has some, by a new survey."""
    found = {}
    for family in registered(app).collect():
        for sample in family.samples:
            task, name = sample.labels.get("task"), sample.name.removeprefix("redislock_")
            if task and sample.value and name != "lock_warn_after_seconds":
                each = found.setdefault(task, Figures())
                if name == "locks":
                    each.locks[sample.labels["state"]] = sample.value
                else:
                    each.gauges[name] = sample.value
    return found


# -- the figures ------------------------------------------------------------------------------


def test_each_lock_counts_in_its_state_and_each_waiter_for_its_task(app):
    every_state(app)
    park(app, "report", "bursts", "newest", quiet=60)

    found = figures(app)
    assert {task: each.locks for task, each in found.items()} == {
        "sync": {"held": 2, "kept": 2},
        "unique": {"queued": 1},
        "several": {"held": 2},
        "report": {"held": 1, "free": 1, "waits for quiet": 1},
        "unknown": {"foreign": 2, "kept": 1},
    }
    assert (found["report"].room_tasks, found["sync"].room_tasks) == (4, 1)
    assert 7200 <= found["report"].oldest_waiter_seconds < 9000
    assert 1800 <= found["sync"].oldest_waiter_seconds < 3600
    assert 3600 <= found["several"].oldest_holder_seconds < 5400
    assert found["unique"].oldest_holder_seconds == 0, "nobody runs"
    assert (found["sync"].untaken_tasks, found["report"].untaken_tasks) == (0, 2)


def test_the_last_success_of_a_task_is_that_of_all_its_locks(app, client, label):
    def last_success(found, task):
        return found[task].last_success_timestamp_seconds

    def ran(task, label, how="succeeded"):
        lock = take(app, task, label, history=True)
        end(app, lock, how)
        return lock.value["acquired_at"] + 90.0

    assert figures(app) == {}
    ran("sync", "a")
    ran("sync", "b")
    once = ran("account", "a")
    for how in ("failed", "retried", "lost") * 4:
        ran("sync", "a", how)
        ran("account", "a", how)
        ran("report", "a", how)
    ran("sync", "b")
    last = ran("sync", "b")
    take(app, "sync", "c", history=True)
    found = figures(app)
    assert last_success(found, "sync") == pytest.approx(last, abs=0.01)
    assert found["account"].last_success_timestamp_seconds == pytest.approx(once, abs=0.01), (
        "behind many failures"
    )
    assert "report" not in found
    client.rpush(f"{lock_of(app, 'sync', 'a').bucket}:history:sync", "no record", "1|x|succeeded")
    client.set(f"{lock_of(app, 'account', 'z').bucket}:history", "no set")
    assert last_success(figures(app), "sync") == last_success(found, "sync")


# -- the collector ----------------------------------------------------------------------------


def test_a_last_success_is_remembered_and_the_option_to_compare_with_is_there(app, client, label):
    registry, task = registered(app, every=0.1), {"task": "account"}

    def value(name, task=task):
        return registry.get_sample_value(f"redislock_{name}_seconds", task)

    assert value("last_success_timestamp") is None
    assert value("lock_warn_after") == 10 * app.tasks["account"].lock_options.lock_ttl
    assert value("lock_warn_after", {"task": "plain"}) is None
    lock = take(app, "account", "x", history=True)
    end(app, lock, took=0.0)
    at = eventually(lambda: value("last_success_timestamp"), "it is seen")
    assert at == pytest.approx(lock.value["acquired_at"], abs=0.01)
    client.delete(lock.runs)
    when = registry.get_sample_value("redislock_survey_timestamp_seconds")
    surveyed = "redislock_survey_timestamp_seconds"
    eventually(lambda: registry.get_sample_value(surveyed) > when, "it looks again")
    assert value("last_success_timestamp") == at


def test_registering_asks_nobody_and_many_scrapers_cost_one_survey(proxy, label):
    app = make_app(proxy.url, label)
    registry = registered(app, every=3600)
    assert proxy.requests == 0
    with ThreadPoolExecutor(16) as scrapers:
        (first, *others) = scrapers.map(generate_latest, [registry] * 16)
    requests = proxy.requests
    assert requests > 0
    assert set(others) == {first}, "it is of the same time"
    assert generate_latest(registry) == first
    assert proxy.requests == requests


def test_without_a_server_it_is_down_and_says_why(label, caplog):
    away = registered(make_app(f"redis://127.0.0.1:{free_port()}", label))
    assert away.get_sample_value("redislock_up") == 0
    assert "the lock server does not answer" in caplog.text
    nowhere = Celery("nowhere", broker="memory://", set_as_current=False)
    assert registered(nowhere).get_sample_value("redislock_up") == 0
    assert "redislock_url is not set" in caplog.text


def test_a_forked_process_makes_its_own_surveys(app):
    registry = registered(app, every=3600)
    assert registry.get_sample_value("redislock_up") == 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside other threads
        pid = os.fork()
    if not pid:
        os._exit(0 if registry.get_sample_value("redislock_up") == 1 else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_wrong_interval_is_refused():
    for every in (0, -1, "10", None, True, float("nan")):
        with pytest.raises(ConfigError, match=r"every=.* from 0\.1"):
            Collector(None, every=every)
