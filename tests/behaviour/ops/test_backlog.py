"""The backlog in figures, and the collector that shows them to prometheus-client."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from celery import Celery

from celery_redislock import ConfigError, SingletonTask
from celery_redislock.app.entries import Entry
from celery_redislock.app.settings import app_locks
from celery_redislock.ops.backlog import backlog
from celery_redislock.ops.survey import BATCH, all_locks
from celery_redislock.protocol import calls, holders, past, rooms
from celery_redislock.protocol.claims import Parking
from celery_redislock.protocol.clock import clock
from celery_redislock.protocol.entries import slot_of
from celery_redislock.protocol.holders import successor_text
from celery_redislock.protocol.keys import lock_keys
from tests.support.looking import ROOT, claim, make_app, take
from tests.support.servers import free_port
from tests.support.waiting import eventually

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, generate_latest

from celery_redislock.ops import collector
from celery_redislock.prometheus import Collector


@pytest.fixture
def app(redis_server, label):
    app = make_app(redis_server.url, label)
    yield app


def park(app, task, label, task_id, **more):
    """Let another call of the task wait for the lock."""
    made = claim(app, task, label, task_id=task_id, token=f"token-of-{task_id}")
    entry = Entry.of(app.tasks[task], [label], {}, {"task_id": task_id, "headers": {}})
    app_locks(app).server.run(rooms.park(made, Parking(entry.dump(), **more)))
    return made.keys


def run_of(app, task, label):
    """A run that has begun, and is in the history."""
    made = dataclasses.replace(claim(app, task, label), task=task, history=50)
    return made, app_locks(app).server.run(calls.acquire(made))


def figures(app):
    return backlog(app_locks(app))


def registered(app, **options):
    registry = CollectorRegistry()
    registry.register(Collector(app, **options))
    return registry


# -- the figures ------------------------------------------------------------------------------


def test_each_lock_counts_in_its_state_and_each_waiter_for_its_task(app, client, label):
    store = app_locks(app).server
    take(app, "sync", "held")
    made = take(app, "sync", "retries")
    keep(app, made)
    made = take(app, "sync", "cools")
    keep(app, made, "cooling")
    take(app, "unique", "sent", queued=True)
    take(app, "several", "both", token="first")
    take(app, "several", "both", token="second", task_id="another")
    take(app, "report", "awaited")
    for each in ("second", "third"):
        park(app, "report", "awaited", each, received=clock() - 600)
    take(app, "sync", "ends")
    XXXREPL
    take(app, "report", "left")
    keys = park(app, "report", "left", "next")
    client.delete(keys.lock)
    made = take(app, "sync", "broken")
    run(app, "break", "--force", made.key)
    client.set(lock_of(app, "report", "reserved").key, '{"token":"","reserved":true}', ex=60)
    client.set(lock_named(label, "text").key, "not ours")
    client.rpush(lock_named(label, "a list").key, "not ours")
    seconds, _ = client.time()
    sent = lock_of(app, "report", "awaited")["sent"]
    client.zadd(sent, {"second:0.0": (seconds - 120) * 1000, "third:0.0": seconds * 1000})

    found = figures(app)
    assert {task: dict(each.locks) for task, each in found.items()} == {
        "sync": {"held": 2, "kept": 2},
        "unique": {"queued": 1},
        "several": {"held": 2},
        "report": {"held": 1, "free": 1},
        "unknown": {"foreign": 2, "kept": 1},
    }
    assert (found["report"].waiting, found["sync"].waiting) == (3, 1)
    assert 600 <= found["report"].oldest_waiter < 660
    assert 0 <= found["sync"].oldest_waiter < 60
    assert 0 < found["several"].oldest_holder < 60
    assert found["unique"].oldest_holder == 0, "nobody runs"
    assert (found["sync"].untaken, found["report"].untaken) == (0, 1)


def test_calls_that_wait_for_quiet_are_neither_free_nor_old(app):
    def burst(label):
        """Nothing."""

    options = {"base": SingletonTask, "lock_key": ["label"], "on_conflict": "debounce"}
    app.task(name="burst", shared=False, **options)(burst)
    for each, quiet in (("quiet", 3600.0), ("over", 0.001)):
        park(
            app, "burst", each, each, member=slot_of("burst"), quiet=(quiet, quiet),
            received=clock() - 600,
        )  # fmt: skip
    eventually(lambda: figures(app)["burst"].locks["free"] == 1, "the quiet time of one is over")
    found = figures(app)["burst"]
    assert dict(found.locks) == {"waits for quiet": 1, "free": 1}
    assert 600 <= found.oldest_waiter < 660
    rest = app_locks(app).server
    rest.run(rooms.drop(claim(app, "burst", "over").keys, 60, "", 60))
    found = figures(app)["burst"]
    assert (dict(found.locks), found.oldest_waiter) == ({"waits for quiet": 1}, 0.0)


def test_list_and_the_figures_agree_on_whose_a_lock_is(app, client, label):
    """Rooms whose holder died, and those of others than the holder."""
    take(app, "report", "left")
    client.delete(park(app, "report", "left", "next").lock)
    take(app, "account", "shared")
    keys = park(app, "account", "shared", "next")
    client.delete(keys.lock)
    client.rpush(lock_named(label, "lost")["room"], "id:0.0", "other:0.0")
    seconds, _ = client.time()
    client.zadd(lock_of(app, "sync", "slots")["waiters"], {"slot": (seconds + 60) * 1000})
    take(app, "sync", "held")

    found, listed = figures(app), all_locks(app_locks(app))
    for state in ("free", "held"):
        theirs = Counter(each.task or "unknown" for each in listed if each.state == state)
        ours = {task: each.locks[state] for task, each in found.items() if each.locks[state]}
        assert ours == theirs, state
    rooms = {each.task or "unknown": each.waiting for each in listed if each.state == "free"}
    assert rooms == {"report": 1, "account": 1, "unknown": 2, "sync": 1}
    waiting = {task: each.waiting for task, each in found.items() if each.waiting}
    assert waiting == {"report": 1, "account": 1, "unknown": 2}, "no pool slots"


def test_a_room_that_cannot_be_read_counts_all_the_same(app, client, label):
    client.rpush(lock_named(label, "lost")["room"], "id:0.0", "other:0.0")
    broken = lock_named(label, "broken")
    client.rpush(broken.room, "id:0.0")
    client.hset(broken.entries, "id:0.0", "no entry")
    client.set(lock_named(label, "foreign")["room"], "no list")
    client.set(lock_named(label, "foreign")["sent"], "no sorted set")
    foreign = lock_named(label, "foreign entries")
    client.rpush(foreign.room, "id:0.0")
    client.set(foreign.entries, "no hash")
    found = figures(app)
    assert (found["unknown"].waiting, found["unknown"].oldest_waiter) == (4, 0)
    assert found["unknown"].locks["free"] == 3


def test_more_than_a_round_trip_can_read_is_counted_once(app, client, label):
    value = holders.encode("token", ttl_ms=60_000, task="many", task_id="id")
    with client.pipeline() as pipeline:
        for number in range(BATCH * 2 + 7):
            keys = lock_named(label, f"many:{number}")
            pipeline.set(keys.lock, value, ex=60)
            if number % 10 == 0:
                pipeline.rpush(keys.room, "id:0.0")
                pipeline.hset(keys.entries, "id:0.0", '|@1000|{"task":"many"}')
        pipeline.execute()
    found = figures(app)["many"]
    assert dict(found.locks) == {"held": BATCH * 2 + 7}
    assert found.waiting == len(range(0, BATCH * 2 + 7, 10))


def test_the_last_success_of_a_task_is_that_of_all_its_locks(app, client, label):
    def ran(task, lock, how="succeeded"):
        made, reply = run_of(app, task, lock)
        end = past.end_text(reply.fence, 90.0, how)
        assert app_locks(app).server.run(calls.settle(made, calls.Release(run_end=end))).ours
        return reply.fence / 1e6 + 90.0

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
    run_of(app, "sync", "c")
    found = figures(app)
    assert found["sync"].last_success == pytest.approx(last, abs=0.01)
    assert found["account"].last_success == pytest.approx(once, abs=0.01), "behind many failures"
    assert "report" not in found
    client.rpush(f"{lock_of(app, 'sync', 'a').history}:sync", "no record", "1|x|succeeded")
    client.set(f"{lock_of(app, 'account', 'z').history}", "no set")
    assert figures(app)["sync"].last_success == found["sync"].last_success


# -- the collector ----------------------------------------------------------------------------


def test_a_task_without_any_lock_is_there_with_zeros(app):
    registry = registered(app)
    for task in ("sync", "report", "several", "unique", "account"):
        assert registry.get_sample_value("redislock_room_tasks", {"task": task}) == 0
        for state in ("held", "free"):
            labels = {"task": task, "state": state}
            assert registry.get_sample_value("redislock_locks", labels) == 0
    assert registry.get_sample_value("redislock_room_tasks", {"task": "plain"}) is None
    assert registry.get_sample_value("redislock_room_tasks", {"task": "unknown"}) is None


def test_a_last_success_is_remembered_and_the_option_to_compare_with_is_there(app, client, label):
    registry, task = registered(app, every=0.1), {"task": "account"}

    def value(name, task=task):
        return registry.get_sample_value(f"redislock_{name}_seconds", task)

    assert value("last_success_timestamp") is None
    assert value("lock_warn_after") == 10 * app.tasks["account"].lock_options.lock_ttl
    assert value("lock_warn_after", {"task": "plain"}) is None
    made, reply = run_of(app, "account", "x")
    end = past.end_text(reply.fence, 0.0, past.SUCCEEDED)
    app_locks(app).server.run(calls.settle(made, calls.Release(run_end=end)))
    at = eventually(lambda: value("last_success_timestamp"), "it is seen")
    assert at == pytest.approx(reply.fence / 1e6, abs=0.01)
    client.delete(f"{made.history}:account")
    when = registry.get_sample_value("redislock_survey_timestamp_seconds")
    surveyed = "redislock_survey_timestamp_seconds"
    eventually(lambda: registry.get_sample_value(surveyed) > when, "it looks again")
    assert value("last_success_timestamp") == at


def test_any_name_of_a_task_can_be_scraped(app, client, label):
    for number, name in enumerate(("\ud800", 'a"b\\c', "two\nlines", "\ud800")):
        value = holders.encode("token", ttl_ms=60_000, task=name, task_id="id")
        client.set(lock_named(label, f"named:{number}").key, value, ex=60)
    text = generate_latest(registered(app)).decode()
    assert 'redislock_locks{state="held",task="\\\\ud800"} 2.0' in text
    assert 'redislock_locks{state="held",task="two\\\\nlines"} 1.0' in text
    assert len([line for line in text.splitlines() if line.startswith("redislock_locks{")]) == 13


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


def test_a_survey_that_takes_long_is_there_for_the_next_scrape(app, monkeypatch):
    monkeypatch.setattr(collector, "PATIENCE", 0.01)
    goes_on, real = threading.Event(), collector.backlog

    def takes_long(locks):
        goes_on.wait(60)
        return real(locks)

    monkeypatch.setattr(collector, "backlog", takes_long)
    registry = registered(app, every=0.1)
    assert list(registry.collect()) == [], "nothing is known yet"
    goes_on.set()
    eventually(lambda: registry.get_sample_value("redislock_up") == 1, "the survey is there")


def test_what_fails_is_said_once_and_is_no_figure(app, monkeypatch, caplog):
    registry = registered(app, every=0.1)
    assert registry.get_sample_value("redislock_up") == 1
    when = registry.get_sample_value("redislock_survey_timestamp_seconds")
    surveys = []

    def fails(locks):
        surveys.append(1)
        raise RuntimeError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(collector, "backlog", fails)
        eventually(lambda: registry.get_sample_value("redislock_up") == 0, "it failed")
        eventually(lambda: list(registry.collect()) and len(surveys) > 2, "it is tried again")
        names = {each.name for each in registry.collect()}
        assert names == {
            *("redislock_up", "redislock_survey_timestamp_seconds"),
            "redislock_survey_duration_seconds",
        }
        assert registry.get_sample_value("redislock_survey_timestamp_seconds") >= when
    assert caplog.text.count("nothing to export") == 1
    assert "a bug" in caplog.text
    eventually(lambda: registry.get_sample_value("redislock_up") == 1, "it goes on")


def test_without_a_server_it_is_down_and_says_why(label, caplog):
    away = registered(make_app(f"redis://127.0.0.1:{free_port()}", label))
    assert away.get_sample_value("redislock_up") == 0
    assert "the lock server does not answer" in caplog.text
    nowhere = Celery("nowhere", broker="memory://", set_as_current=False)
    assert registered(nowhere).get_sample_value("redislock_up") == 0
    assert "redislock_url is not set" in caplog.text


def test_a_forked_process_makes_its_own_surveys(redis_server, label):
    script = (
        "import os, sys\n"
        "from prometheus_client import CollectorRegistry\n"
        "from celery_redislock.prometheus import Collector\n"
        "from tests.support.looking import make_app\n"
        "registry = CollectorRegistry()\n"
        "registry.register(Collector(make_app(*sys.argv[1:]), every=3600))\n"
        "assert registry.get_sample_value('redislock_up') == 1\n"
        "pid = os.fork()\n"
        "up = registry.get_sample_value('redislock_up')\n"
        "if not pid: os._exit(0 if up == 1 else 1)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, redis_server.url, label],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0


def test_a_wrong_interval_is_refused():
    for every in (0, -1, "10", None, True, float("nan")):
        with pytest.raises(ConfigError, match=r"every=.* from 0\.1"):
            Collector(None, every=every)
