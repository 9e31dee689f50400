"""What is written down of past runs, by real workers: how each ended, and what it turned away."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery

from celery_redislock import RedisLock
from tests.support.looking import run
from tests.support.servers import RedisServer
from tests.support.waiting import eventually
from tests.support.workers import make_app

QUEUE = "history"
Run = dict[str, Any]


@pytest.fixture(scope="module")
def lock_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def operator(lock_server: RedisServer) -> Iterator[Celery]:
    """An app that knows no task, and asks what is kept."""
    with make_app({"broker_url": "memory://", "redislock_url": lock_server.url}) as app:
        yield app


def told(app: Celery, *arguments: str) -> list[Run]:
    """What `celery redislock history` tells programs."""
    result = run(app, "history", *arguments, "--json")
    assert result.exit_code == 0, result.output
    found: list[Run] = json.loads(result.stdout)
    return found


@pytest.fixture(scope="module")
def worker(start_module_worker, lock_server):
    return start_module_worker(
        queues=QUEUE, concurrency=4, conf={"redislock_url": f"{lock_server.url}/0"}
    )


@pytest.fixture
def runs_of(operator, journal, label) -> Callable[..., list[Run]]:
    """The runs of this test's tasks with that name, the oldest first, when so many are over."""

    def runs_of(name: str, count: int, over: bool = True) -> list[Run]:
        def found() -> list[Run]:
            ids = {entry.task_id for entry in journal.read(label)}
            kept = told(operator, name, "--limit", "999")
            runs = [each for each in kept if each["task_id"] in ids and (each["ended"] or not over)]
            return runs[::-1] if len(runs) >= count else []

        return eventually(found, f"{count} runs of {name}")

    return runs_of


def hows(runs: list[Run]) -> list[str]:
    return [run["how"] for run in runs]


def took(run: Run) -> float:
    return float(run["ended"] - run["began"])


@pytest.mark.parametrize(
    ("how", "ended"),
    [
        ("return", "succeeded"),
        ("raise", "failed"),
        ("ignore", "ignored"),
        ("reject", "rejected"),
    ],
)
def test_a_run_is_kept_with_how_it_ended(worker, send, runs_of, journal, label, how, ended):
    result = send("skip", label, 0.1, how)
    (run,) = runs_of("skip", 1)
    (start,) = journal.read(label, "start")
    assert (run["task"], run["task_id"], run["how"]) == ("skip", result.id, ended)
    assert (run["node"], run["pid"]) == (worker.node, start.pid)
    assert (run["attempt"], run["fence"]) == (0, start.data["fence"])
    assert run["key"].endswith(f":lock:{run['name']}")
    assert 0.1 <= round(took(run), 3) < 30
    assert run["turned_away"] == 0


@pytest.mark.parametrize("name", ["skip", "queued_two"])
def test_a_run_counts_the_duplicates_that_it_turned_away(
    worker, send, runs_of, journal, operator, label, name
):
    send(name, label, 3.0)
    eventually(lambda: journal.count(label, "start"), "it runs")
    results = [send(name, label, 0.0) for _ in range(2 if name == "queued_two" else 0)]
    turned = [send(name, label, 0.0) for _ in range(3)]
    for result in turned:
        eventually(result.ready, "it is turned away")
    runs = runs_of(name, 1 + len(results))
    assert [run["turned_away"] for run in runs] == [3] + [0] * len(results)
    counts = told(operator, "--skips", name)
    assert sum(each["turned_away"] for each in counts) == 3
    assert all(each["hour"] % 3600 == 0 for each in counts)


def test_a_run_whose_child_was_killed_died(worker, send, runs_of, journal, label):
    send("long_ttl", label, 60.0)
    (entry,) = eventually(lambda: journal.read(label, "start"), "it runs")
    os.kill(entry.pid, signal.SIGKILL)
    (run,) = runs_of("long_ttl", 1)
    assert run["how"] == "died"
    assert took(run) < 30


def test_a_run_that_is_revoked_or_exceeds_its_time_was_terminated(
    worker, send, sender, runs_of, journal, label
):
    result = send("long_ttl", label, 60.0)
    eventually(lambda: journal.count(label, "start"), "it runs")
    sender.control.revoke(result.id, terminate=True)
    assert hows(runs_of("long_ttl", 1)) == ["terminated"]
    send("hard_limited", label)
    assert hows(runs_of("hard_limited", 1)) == ["terminated"]


def test_a_run_that_a_newer_one_ends_is_replaced(worker, send, runs_of, journal, label):
    send("replaced_gently", label)
    eventually(lambda: journal.count(label, "start"), "it runs")
    send("replaced_gently", label, 0.0)
    assert hows(runs_of("replaced_gently", 2)) == ["replaced", "succeeded"]
    send("replaced", label, 60.0)
    eventually(lambda: journal.count(label, "start") == 3, "it runs")
    send("replaced", label, 0.0)
    assert hows(runs_of("replaced", 2)) == ["replaced", "succeeded"]


def test_a_run_of_a_worker_that_was_killed_lapsed(
    start_worker, sender, runs_of, journal, lock_server, queue, label
):
    worker = start_worker(
        queues=queue, concurrency=1, conf={"redislock_url": f"{lock_server.url}/0"}
    )
    sender.send_task("short_ttl", [label, 60.0], queue=queue)
    eventually(lambda: journal.count(label, "start"), "it runs")
    os.killpg(worker.pid, signal.SIGKILL)

    def lapsed() -> list[Run]:
        return [run for run in runs_of("short_ttl", 1, over=False) if run["how"] == "lapsed"]

    (run,) = eventually(lapsed, "its lock expires")
    assert run["ended"] is None


@pytest.mark.parametrize("history", [0, 7])
def test_a_lock_outside_tasks_keeps_a_history_if_it_is_told_to(
    operator, lock_server, label, history
):
    with RedisLock(lock_server.url, label, history=history) as lock:
        assert not RedisLock(lock_server.url, label, history=history).acquire(0)
    runs = told(operator, lock.key)
    assert [(run["task"], run["how"], run["name"]) for run in runs] == (
        [(None, "released", label)] if history else []
    )


def test_a_lock_outside_tasks_that_an_operator_broke_is_broken(operator, label):
    lock = RedisLock(operator, label, heartbeat=False)
    lock.acquire()
    assert run(operator, "break", lock.key, "--force").exit_code == 0
    assert lock.release() is False
    assert [past_run["how"] for past_run in told(operator, lock.key)] == ["broken"]
