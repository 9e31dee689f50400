"""Real `celery worker` and `celery beat` processes."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery import Celery

from .template import NO_BYTECODE, Forked, Template, suits
from .waiting import eventually

if TYPE_CHECKING:
    from typing_extensions import Self

ROOT = Path(__file__).parents[2]
APP = "tests.support.tasks"
#: The one of this process, made when it is first needed.
template = functools.cache(Template)
#: What this process has started and not closed yet.
running: dict[int, Process] = {}


class Process:
    """A `celery` command with its log in a file. It runs from when it is made: enter it at once.

    Args:
        arguments: the command's.
        conf: the configuration of its app.
        app: its app.
        package: a folder with another copy of celery_redislock, to be used instead of ours.
    """

    def __init__(
        self, *arguments: str, conf: dict[str, Any], app: str = APP, package: Path | None = None
    ) -> None:
        # A worker that is killed leaves its pool's files where temporary files go.
        self._folder = tempfile.TemporaryDirectory(prefix="redislock-", ignore_cleanup_errors=True)
        self.log_path = Path(self._folder.name) / "log"
        self.popen: Forked | subprocess.Popen[bytes]
        environment = {
            **os.environ,
            "TEST_CONF": json.dumps(conf),
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": self._folder.name,
        }
        environment.pop(NO_BYTECODE, None)
        if package is not None:
            environment["PYTHONPATH"] = f"{package}{os.pathsep}{ROOT}"
        command = ("-A", app, *arguments)
        if suits(arguments, environment):
            log, command = self.log_path, ("-m", "celery", *command)
            self.popen = template().start(*command, environment=environment, out=log, err=log)
        else:
            with self.log_path.open("wb") as log:
                self.popen = subprocess.Popen(
                    [sys.executable, "-m", "celery", *command],
                    cwd=package or ROOT,
                    env=environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
        running[self.pid] = self

    @property
    def pid(self) -> int:
        return self.popen.pid

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def signal(self, signum: int) -> None:
        self.popen.send_signal(signum)

    def wait(self, timeout: float = 30.0) -> int:
        return self.popen.wait(timeout)

    def end_cold(self, timeout: float = 60.0) -> None:
        """A cold shutdown. A prefork worker that Celery lets hang is killed, as supervisors do.

        Celery stops the pool in the signal's handler. If a job was half written then, nobody writes
        the rest: the pool's process waits for it, and the worker for a result.
        """
        self.signal(signal.SIGQUIT)
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired:
            eventually(lambda: not is_running(self.pid) or self._hangs(), "it ends, or hangs")
            if is_running(self.pid):
                self.kill()
            self.wait()

    def _hangs(self) -> bool:
        main, *pool = [self._stacks(pid) for pid in (self.pid, *children_of(self.pid))]
        return "in on_cold_shutdown" in main and all("in _recv" in each for each in pool)

    def _stacks(self, pid: int) -> str:
        """The stacks of all threads of a process that the template forked, or that it forked."""
        before = len(self.log())
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR2)
        # The main thread's comes last, and ends so. There is none while a process is taken down.
        ends = ("in _run_module_as_main", "<no Python frame>")
        eventually(
            lambda: not is_running(pid) or any(end in self.log()[before:] for end in ends),
            "it wrote its stacks, or has ended",
        )
        return self.log()[before:]

    def kill(self) -> None:
        """Kill the process and whatever it started, as a machine that loses its power."""
        os.killpg(self.pid, signal.SIGKILL)
        self.popen.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process and whatever it started; leave nothing behind."""
        if "COVERAGE_PROCESS_CONFIG" in os.environ:  # `make coverage`: what it ran is still to save
            for signum, seconds in ((signal.SIGTERM, 3), (signal.SIGQUIT, 15)):
                self.popen.send_signal(signum)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.popen.wait(seconds)
        with contextlib.suppress(ProcessLookupError):
            self.kill()
        self.popen.wait()
        self._folder.cleanup()
        running.pop(self.pid, None)


class Worker(Process):
    """A worker. Ready when it is constructed and `ready` has returned."""

    def __init__(
        self,
        *arguments: str,
        conf: dict[str, Any],
        pool: str = "prefork",
        concurrency: int = 2,
        queues: str = "celery",
        app: str = APP,
        package: Path | None = None,
    ) -> None:
        self.node = f"w{uuid.uuid4().hex[:8]}@test"
        super().__init__(
            "worker",
            *("-P", pool, "-c", str(concurrency), "-n", self.node, "-Q", queues),
            *("-l", "INFO", "--without-mingle", "--without-gossip"),
            *arguments,
            conf=conf,
            app=app,
            package=package,
        )

    def ready(self) -> Worker:
        def is_ready() -> bool:
            log = self.log()
            if not is_running(self.pid):
                raise AssertionError(f"the worker ended at its start:\n{self.log()}")
            return f"{self.node} ready." in log

        eventually(is_ready, f"{self.node} is ready", 60)
        return self

    def children(self) -> list[int]:
        """The pids of its pool's processes."""
        return children_of(self.pid)


def make_app(conf: dict[str, Any]) -> Celery:
    """The sender's app: other process, no task code. What only tests' workers know is left out.

    A result of its that outlives the server, in a failed test's traceback say, is not to look for
    it for twenty seconds when it is collected.
    """
    app = Celery("sender", set_as_current=False)
    app.conf.result_backend_transport_options = {"retry_policy": {"max_retries": 1}}
    app.conf.update({name: value for name, value in conf.items() if not name.startswith("test_")})
    return app


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    return state_of(pid) not in (None, "Z")


def state_of(pid: int) -> str | None:
    """The kernel's letter for the process, such as "T" for a stopped one; None if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return stat.rpartition(")")[2].split()[0]


def children_of(pid: int) -> list[int]:
    """The pids of what any of its threads has started."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, path.read_text().split())
    return found
