"""What is written down of past runs, by real workers: how each ended, and what it turned away."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest
from celery import Celery

from celery_redislock import RedisLock
from celery_redislock.app.settings import AppLocks, app_locks
from celery_redislock.ops.history import PastRun, past_runs, turned_away
from celery_redislock.protocol import calls
from celery_redislock.protocol.canonical import digest
from celery_redislock.protocol.keys import lock_keys
from tests.support.rights import acl_lines, as_user
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

QUEUE = "history"


@pytest.fixture(scope="module")
def lock_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def locks(lock_server: RedisServer) -> AppLocks:
    app = Celery("history", broker="memory://", set_as_current=False)
    app.conf.redislock_url = lock_server.url
    return app_locks(app)


@pytest.fixture(scope="module")
def worker(start_module_worker, lock_server):
    return start_module_worker(
        queues=QUEUE, concurrency=4, conf={"redislock_url": f"{lock_server.url}/0"}
    )


@pytest.fixture
def runs_of(locks, label) -> Callable[..., list[PastRun]]:
    """The runs of this test's lock of that task, the oldest first, when there are so many."""

    def runs_of(name: str, count: int, **options: object) -> list[PastRun]:
        lock = f"{name}:v1:{digest({'label': label})}"

        def found() -> list[PastRun]:
            runs = past_runs(locks, task=name, name=lock, **options)
            return runs[::-1] if len(runs) >= count else []

        return eventually(found, f"{count} runs of {name}")

    return runs_of


@pytest.mark.parametrize(
    ("how", "ended"),
    [
        ("return", "succeeded"),
        ("raise", "failed"),
        ("ignore", "ignored"),
        ("reject", "rejected"),
    ],
)
def test_a_run_is_kept_with_how_it_ended(worker, send, runs_of, label, how, ended):
    result = send("skip", label, 0.1, how)
    (run,) = runs_of("skip", 1)
    assert (run.task, run.task_id, run.how) == ("skip", result.id, ended)
    assert run.node is not None
    assert run.pid is not None
    assert run.attempt == 0
    assert run.fence > 0
    assert run.key == lock_keys("redislock", run.name).lock
    assert 0.1 <= round(run.took, 3) < 30
    assert run.turned_away == 0


@pytest.mark.parametrize("name", ["retries", "retries_held"])
def test_each_attempt_of_a_task_is_a_run(worker, send, runs_of, label, name):
    send(name, label)
    runs = runs_of(name, 2)
    assert [(run.attempt, run.how) for run in runs] == [(0, "retried"), (1, "succeeded")]


@pytest.mark.parametrize(
    ("name", "seconds"), [("skip", ()), ("refuse", ()), ("wait_briefly", ()), ("queued_two", ())]
)
def test_a_run_counts_the_duplicates_that_it_turned_away(
    worker, send, runs_of, journal, locks, label, name, seconds
):
    send(name, label, 3.0 if name != "queued_two" else 6.0)
    eventually(lambda: journal.count(label, "start"), "it runs")
    results = [send(name, label, 0.0) for _ in range(2 if name == "queued_two" else 0)]
    turned = [send(name, label, 0.0) for _ in range(3)]
    for result in turned:
        eventually(result.ready, "it is turned away")
    runs = runs_of(name, 1 + len(results))
    assert [run.turned_away for run in runs] == [3] + [0] * len(results)
    (counts,) = turned_away(locks, task=name).values()
    assert sum(counts.values()) == 3
    assert all(hour % 3600 == 0 for hour in counts)


def test_what_waits_or_is_deferred_is_not_turned_away(worker, send, runs_of, journal, label):
    send("wait", label, 1.0)
    eventually(lambda: journal.count(label, "start"), "it runs")
    result = send("wait", label, 0.0)
    assert result.get(timeout=20)
    assert [run.turned_away for run in runs_of("wait", 2)] == [0, 0]


def test_a_cool_down_turns_away_for_the_run_before_it(worker, send, runs_of, label):
    assert send("pauses", label, 0.0).get(timeout=20)
    for _ in range(2):
        eventually(send("pauses", label, 0.0).ready, "it is turned away")
    (run,) = runs_of("pauses", 1)
    assert (run.how, run.turned_away) == ("succeeded", 2)
    assert run.took < 5, "the pause is not the run's"


def test_a_run_whose_child_was_killed_died(worker, send, runs_of, journal, label):
    send("long_ttl", label, 60.0)
    (entry,) = eventually(lambda: journal.read(label, "start"), "it runs")
    os.kill(entry.pid, signal.SIGKILL)
    (run,) = runs_of("long_ttl", 1)
    assert run.how == "died"
    assert run.took < 30


def test_a_run_that_is_revoked_or_exceeds_its_time_was_terminated(
    worker, send, sender, runs_of, journal, label
):
    result = send("long_ttl", label, 60.0)
    eventually(lambda: journal.count(label, "start"), "it runs")
    sender.control.revoke(result.id, terminate=True)
    assert runs_of("long_ttl", 1)[0].how == "terminated"
    send("hard_limited", label)
    assert runs_of("hard_limited", 1)[0].how == "terminated"


def test_a_run_that_a_newer_one_ends_is_replaced(worker, send, runs_of, journal, label):
    send("replaced_gently", label)
    eventually(lambda: journal.count(label, "start"), "it runs")
    send("replaced_gently", label, 0.0)
    assert [run.how for run in runs_of("replaced_gently", 2)] == ["replaced", "succeeded"]
    send("replaced", label, 60.0)
    eventually(lambda: journal.count(label, "start") == 3, "it runs")
    send("replaced", label, 0.0)
    assert [run.how for run in runs_of("replaced", 2)] == ["replaced", "succeeded"]


def test_a_run_whose_lock_was_taken_away_is_broken_or_lost(
    worker, send, runs_of, journal, locks, lock_server, label
):
    send("watches_lock", label)
    eventually(lambda: journal.count(label, "start"), "it runs")
    (run,) = runs_of("watches_lock", 1, running=True)
    assert run.how == "running"
    assert run.ended is None
    locks.server.run(calls.break_lock(lock_keys("redislock", run.name), 6.0, task="watches_lock"))
    (run,) = runs_of("watches_lock", 1)
    assert run.how == "broken"
    eventually(lambda: journal.count(label, "lost"), "it knows")
    send("watches_lock", label)
    eventually(lambda: journal.count(label, "start") == 2, "another one runs")
    with lock_server.client() as client:
        client.set(run.key, "thief", px=60_000)

    def ends() -> list[str]:
        return [run.how for run in runs_of("watches_lock", 2)]

    eventually(lambda: ends() == ["broken", "lost"], f"it is lost {ends()}")


def test_a_run_of_a_worker_that_was_killed_lapsed(
    start_worker, sender, runs_of, journal, lock_server, queue, label
):
    worker = start_worker(queues=queue, conf={"redislock_url": f"{lock_server.url}/0"})
    sender.send_task("short_ttl", [label, 60.0], queue=queue)
    eventually(lambda: journal.count(label, "start"), "it runs")
    os.killpg(worker.pid, signal.SIGKILL)

    def lapsed() -> list[PastRun]:
        return [run for run in runs_of("short_ttl", 1, running=True) if run.how == "lapsed"]

    (run,) = eventually(lapsed, "its lock expires")
    assert run.ended is None
    assert run.took is None


@pytest.mark.parametrize("history", [0, 7])
def test_a_lock_outside_tasks_keeps_a_history_if_it_is_told_to(locks, lock_server, label, history):
    with RedisLock(lock_server.url, label, history=history):
        assert not RedisLock(lock_server.url, label, history=history).acquire(0)
    runs = past_runs(locks, name=label)
    assert [(run.task, run.how, run.name) for run in runs] == (
        [(None, "released", label)] if history else []
    )


def test_without_history_nothing_is_written(start_worker, sender, own_redis, journal, queue, label):
    conf = {"redislock_url": own_redis.url, "redislock_history": 0}
    start_worker(queues=queue, concurrency=4, conf=conf)
    first = sender.send_task("skip", [label, 2.0], queue=queue)
    eventually(lambda: journal.count(label, "start"), "it runs")
    for name in ("skip", "wait_briefly"):
        duplicate = sender.send_task(name, [label, 0.0], queue=queue)
        eventually(duplicate.ready, "it ends")
    assert first.get(timeout=20)
    with own_redis.client() as client:
        keys = client.keys("*history*") + client.keys("*turned*")
        assert keys == []


def test_a_worker_without_the_new_rights_goes_on_and_keeps_nothing(
    start_worker, sender, own_redis, queue, label
):
    words = [word for word in acl_lines()["workers"] if word not in ("+zcard", "+ltrim", "+lset")]
    with own_redis.client() as client:
        client.execute_command("ACL", "SETUSER", "workers", *words)
        start_worker(queues=queue, conf={"redislock_url": f"{as_user(own_redis.url, 'workers')}/0"})
        for number in range(20):
            arguments = [label, 0.0]
            assert sender.send_task("skip", arguments, queue=queue).get(timeout=20), number
        assert {client.llen(key) for key in client.keys("*:history:*")} <= set(range(60))
        client.execute_command("ACL", "SETUSER", "workers", "-rpush", "-hset", "-zadd")
        assert sender.send_task("skip", [label, 0.0], queue=queue).get(timeout=20)
