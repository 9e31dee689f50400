"""Runs a group of tests in a process of its own, on servers of its own."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support.servers import RedisServer

from .compare import Outcome, outcomes
from .suites import FOLDER, PLAIN, Suite, Way

#: Seconds for one test, and for a group.
PER_TEST, PER_GROUP = 240, 1800
#: Slots of the worker that Celery's integration tests start: it has one of its own accord.
SLOTS = 4


class Run(NamedTuple):
    """What came out of a group.

    Attributes:
        found: each test's outcome.
        met: for each test how many locks were acquired, and what became of duplicates.
        seconds: how long it took.
        told: the end of what pytest printed.
    """

    found: Mapping[str, Outcome]
    met: Mapping[str, Mapping[str, int]]
    seconds: float
    told: str


class Stage:
    """Servers for one group at a time: one for the tests, and one for the locks."""

    def __init__(self, tests: RedisServer, locks: RedisServer) -> None:
        self._tests, self._locks = tests, locks

    def run(self, suite: Suite, way: Way, tests: str) -> Run:
        for server in self._tests, self._locks:
            with server.client() as client:
                client.flushall()
        began = time.monotonic()
        results = FOLDER / "results" / re.sub(r"[^\w.]+", "-", f"{way.name} {tests}")[:150]
        results.parent.mkdir(exist_ok=True)
        results.write_bytes(b"")
        # Its own copy of the tests: some write into their folder, and groups run side by side.
        with tempfile.TemporaryDirectory(prefix="redislock-foreign-") as folder:
            copy = shutil.copytree(suite.folder, Path(folder, suite.folder.name))
            told = _pytest(way, tests, copy, self._environment(way, results))
        found = outcomes(results.read_text(encoding="utf-8").splitlines())
        met: dict[str, dict[str, int]] = {}
        with self._locks.client() as client:
            for name, n in client.hgetall("guard:met").items():
                outcome, _, test = name.partition("|")
                met.setdefault(test, {})[outcome] = int(n)
        return Run(found, met, time.monotonic() - began, told)

    def _environment(self, way: Way, results: Path) -> Mapping[str, str]:
        return {
            **os.environ,
            **way.environment,
            # Many of these tests use pickle, which Celery refuses to root.
            **({} if os.getuid() else {"C_FORCE_ROOT": "yes"}),
            # One test starts `celery`.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            # The plugins, and nothing else of ours.
            "PYTHONPATH": f"{Path(__file__).parent}{os.pathsep}.",
            "FOREIGN_RESULTS": str(results),
            "GUARD_SLOTS": str(SLOTS),
            "GUARD_URL": self._locks.url,
            "TEST_BROKER": f"{self._tests.url}/0",
            "TEST_BACKEND": f"{self._tests.url}/1",
            "REDIS_HOST": "127.0.0.1",
            "REDIS_PORT": str(self._tests.port),
        }


def _pytest(way: Way, tests: str, folder: Path, environment: Mapping[str, str]) -> str:
    """Run pytest, and return the end of what it prints."""
    options = ["-p", "redislock_reports", "-p", "redislock_guard", "-p", "no:cacheprovider"]
    options += ["--continue-on-collection-errors", f"--timeout={PER_TEST}"]
    if way == PLAIN:
        options += ["-p", "no:celery_redislock_pytest"]
    with tempfile.TemporaryFile() as printed:  # no pipe: a process that is left would hold it open
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", *options, tests],
            cwd=folder,
            env=dict(environment),
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(PER_GROUP)
        except subprocess.TimeoutExpired:
            return f"it did not end in {PER_GROUP} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        printed.seek(0)
        return printed.read().decode(errors="replace").strip()[-4000:]


@contextlib.contextmanager
def stage() -> Iterator[Stage]:
    with RedisServer() as tests, RedisServer() as locks:
        yield Stage(tests, locks)
