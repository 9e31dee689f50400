"""The examples, run as their own first lines say; the compose file."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from examples.rates import CALLS, PAUSE
from tests.support.servers import RedisServer
from tests.support.workers import ROOT, Process, Worker

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer) -> None:
    """Locks and messages apart, each in a database that no other test uses."""
    monkeypatch.setenv("REDIS_URL", f"{redis_server.url}/5")
    monkeypatch.setenv("CELERY_BROKER_URL", f"{redis_server.url}/6")
    monkeypatch.delenv("CELERY_RESULT_BACKEND", raising=False)


def run_example(name: str, *arguments: str) -> str:
    """What `python examples/<name>` prints. What it started ends with it."""
    process = subprocess.Popen(
        [sys.executable, f"examples/{name}", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},  # this checkout's package, not another one's
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=90)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, err
    return out


# -- beat_job.py, by the commands of the compose file ----------------------------------------


def celery_command(service: str) -> list[str]:
    """A service's command without `celery -A examples.beat_job`."""
    celery, option, app, *arguments = shlex.split(COMPOSE["services"][service]["command"])
    assert [celery, option, app] == ["celery", "-A", "examples.beat_job"]
    return arguments


@pytest.fixture
def composed(tmp_path: Path) -> Iterator[list[Process]]:
    """Both workers and the beat of the compose file, and one beat too many."""
    commands = [
        [*celery_command("worker-1"), "-n", "one@test"],
        [*celery_command("worker-2"), "-n", "two@test"],
        [*celery_command("beat"), "-s", str(tmp_path / "schedule-1")],
        [*celery_command("beat"), "-s", str(tmp_path / "schedule-2")],
    ]
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(Process(*command, conf={}, app="examples.beat_job"))
            for command in commands
        ]


def test_beat_jobs_neither_overlap_themselves_nor_run_twice_for_a_tick(composed, redis_server):
    *_, report, digest = run_example("beat_job.py").splitlines()

    runs, skipped, overlaps = map(int, re.findall(r"\d+", report))
    assert runs == 3
    assert skipped >= 3, "each run takes three seconds, and two beats send each second"
    assert overlaps == 0
    runs, skipped, apart = map(float, re.findall(r"[\d.]+", digest))
    assert runs >= 3
    assert skipped >= 2, "two beats fire each tick"
    assert apart >= 1.6 - 0.1, "the bodies note their times a moment after the acquire"
    for process in composed:
        assert process.popen.poll() is None, process.log()
    # The messages went to CELERY_BROKER_URL, and the locks to REDIS_URL.
    assert redis_server.client(db=6).exists("_kombu.binding.celery")
    assert not redis_server.client(db=5).exists("_kombu.binding.celery")
    assert redis_server.client(db=5).keys("redislock:*:fence")


# -- rates.py ---------------------------------------------------------------------------------


def test_rates_are_kept_each_in_its_way():
    with Worker(conf={}, app="examples.rates", concurrency=8) as worker:
        worker.ready()
        lines = run_example("rates.py").splitlines()
    runs = {
        name: [(int(number), float(at)) for number, at in re.findall(r"(\d+) at +([\d.]+)", line)]
        for name, _, line in (line.partition("  ") for line in lines)
    }
    at = {name: [at for _, at in each] for name, each in runs.items()}
    for name in ("skips", "spreads", "last_wins"):
        # The bodies note their times a moment after the acquisition, and they are rounded.
        assert all(later - earlier > PAUSE - 0.3 for earlier, later in pairwise(at[name])), name
    assert len(runs["skips"]) < CALLS
    assert {number for number, _ in runs["spreads"]} == {*range(1, CALLS + 1)}
    assert len(runs["last_wins"]) < CALLS
    assert runs["last_wins"][-1][0] == CALLS, "the last call has its run"
    assert len(runs["three"]) == CALLS
    assert all(b - a > PAUSE - 0.3 for a, b in zip(at["three"], at["three"][3:], strict=False))
    assert at["three"][-1] < at["spreads"][-1]
    assert 1 <= len(runs["at_the_sender"]) < CALLS / 2


# -- account_sync.py -------------------------------------------------------------------------


@pytest.fixture(params=["the same server", "a cluster"])
def sync_worker(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Worker]:
    if request.param == "a cluster":
        monkeypatch.setenv("LOCKS_URL", request.getfixturevalue("cluster").url)
    with Worker(conf={}, app="examples.account_sync", concurrency=4) as worker:
        yield worker.ready()


def test_account_sync_runs_every_call_in_its_turn(sync_worker):
    _, *rows, summary = run_example("account_sync.py").splitlines()

    assert summary == "5 calls, 5 synced, 0 overlaps within an account"
    times: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        _, account, _, start, _, end, _, _, _ = row.split()
        times.setdefault(account, []).append((float(start), float(end)))
    assert {account: len(runs) for account, runs in times.items()} == {"anna": 3, "ben": 2}
    for runs in times.values():
        runs.sort()
        for (_, end), (start, _) in pairwise(runs):
            assert start >= end
    assert "deferred for" in sync_worker.log()


# -- fenced_ledger.py ------------------------------------------------------------------------


def test_fenced_ledger_refuses_the_stale_write(tmp_path, monkeypatch):
    ledger = tmp_path / "ledger.sqlite"
    monkeypatch.setenv("LEDGER", str(ledger))

    out = run_example("fenced_ledger.py")

    first, second = map(int, re.findall(r"has the lock, fence (\d+), and reads 0$", out, re.M))
    assert first < second
    assert "second  writes 10: accepted" in out
    assert "first   writes 100: REFUSED by the database" in out
    assert "first   asks for its lock, which is lost" in out
    with contextlib.closing(sqlite3.connect(ledger)) as db:
        rows = db.execute("SELECT name, balance, fence FROM accounts").fetchall()
    assert rows == [("anna", 10, second)]


# -- marketplace.py --------------------------------------------------------------------------


def test_marketplace_buys_without_retries_under_the_lock():
    out = run_example("marketplace.py", "0.5")

    tallies = re.findall(r"(\d+) listed, (\d+) bought, (\d+) retries", out)
    (_, _, retried), (listed, bought, retried_locked) = [tuple(map(int, each)) for each in tallies]
    assert retried > 0
    assert retried_locked == 0
    assert 0 < bought <= listed
