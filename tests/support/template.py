"""A process that has imported what many programs need, and forks one of them whenever it is asked.

Importing takes most of their start, and the suite starts them by the hundred. Here that is done
once for each process of pytest's. What is forked runs and exits as `python` with these arguments
does. A worker finds nothing of celery_redislock imported. Pools of greenlets patch what Celery
imports as its first step, and another PYTHONPATH may hide a package: what has either is started as
anybody starts it.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: Of workers. Not `celery.worker.consumer`: it takes over what an app may patch before it is
#: imported.
WORKERS = (
    *("celery.apps.beat", "celery.apps.worker", "celery.backends.redis", "celery.bin.amqp"),
    *("celery.bin.beat", "celery.bin.worker", "click_plugins", "click_repl", "celery.app.control"),
    *("celery.concurrency.prefork", "celery.concurrency.solo", "celery.concurrency.thread"),
    *("celery.fixups.django", "celery.worker.components", "celery.worker.strategy"),
    *("kombu.transport.pyamqp", "kombu.transport.redis", "redis.sentinel"),
)
#: Where it is set, each would compile anew what it imports: most of its start.
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
#: Where Python looked for modules when this process began, apart from its own places.
IMPORTED_FROM = os.environ.get("PYTHONPATH")


def suits(arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether such a worker may be forked from what this process has imported."""
    path = environment.get("PYTHONPATH") == IMPORTED_FROM
    return path and {"gevent", "eventlet"}.isdisjoint(arguments)


class Forked:
    """A forked program, with the members of `subprocess.Popen` that its callers use."""

    def __init__(self, template: Template, pid: int) -> None:
        self._template = template
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            self.returncode = self._template.ask(poll=self.pid)
        return self.returncode

    def wait(self, timeout: float = float("inf")) -> int:
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = end - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired("python", timeout)
            self._await_exit(left)
        return code

    def _await_exit(self, most: float) -> None:
        # It is not our child; a file descriptor of any process tells when that exits.
        with open(os.pidfd_open(self.pid), "rb", buffering=0) as exited:
            select.select([exited], [], [], None if most == float("inf") else most)

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)


class Template:
    """The process that forks, as its client sees it. Threads may share it.

    Args:
        modules: what it has imported.
    """

    def __init__(self, modules: Sequence[str] = WORKERS) -> None:
        ours, theirs = socket.socketpair()
        self._lock = threading.Lock()
        self._file = ours.makefile("rw")
        ours.close()
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-u", "-m", __name__, str(theirs.fileno()), *modules],
                cwd=Path(__file__).parents[2],
                env={name: value for name, value in os.environ.items() if name != NO_BYTECODE},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        atexit.register(self.close)

    def ask(self, **request: Any) -> Any:
        with self._lock:
            self._file.write(json.dumps(request) + "\n")
            self._file.flush()
            return json.loads(self._file.readline())

    def start(
        self, *arguments: str, environment: Mapping[str, str], out: Path, err: Path
    ) -> Forked:
        """Fork `python` with these arguments (`-m MODULE`, `-c TEXT` or a file, and its own), in a
        session of its own.
        """
        outputs = [str(out), str(err)]
        pid = self.ask(arguments=arguments, environment={**environment}, outputs=outputs)
        return Forked(self, pid)

    def close(self) -> None:
        self._file.close()
        self._popen.wait()


def serve(requests: Any) -> dict[str, Any] | None:
    """Fork for each request. Returns in what is forked, with the request; else None at the end."""
    for line in requests:
        request = json.loads(line)
        if "poll" in request:
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            parent, child = os.pipe()
            answer = os.fork()
            if not answer:
                os.close(parent)
                os.setsid()
                return {**request, "fd": child}
            os.close(child)
            os.read(parent, 1)  # its end, once it has a session of its own
            os.close(parent)
        requests.write(json.dumps(answer) + "\n")
        requests.flush()
    return None


def become(request: dict[str, Any]) -> None:
    """Be the program that was asked for, and run it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream, path in enumerate(request["outputs"], 1):
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, stream)
        os.close(log)
    os.close(request["fd"])
    faulthandler.register(signal.SIGUSR2, all_threads=True)  # `Process.end_cold` asks for stacks
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None
    if (path := os.environ.get("PYTHONPATH")) != IMPORTED_FROM:
        sys.path[1:1] = (path or "").split(os.pathsep)
    kind, *arguments = request["arguments"]
    sys.argv = [kind, *arguments]
    if kind == "-m":
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *arguments[1:]]
        sys.modules["__main__"] = module = types.ModuleType("__main__")
        exec(compile(arguments[0], "<string>", "exec"), vars(module))
    else:
        sys.path[0] = str(Path(kind).parent)
        runpy.run_path(kind, run_name="__main__")


def main() -> None:
    with socket.socket(fileno=int(sys.argv[1])) as connection, connection.makefile("rw") as file:
        for name in sys.argv[2:]:
            importlib.import_module(name)
        gc.freeze()  # what is collected is written to, and so copied
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # pytest ends it
        request = serve(file)
    if request is not None:
        become(request)


if __name__ == "__main__":
    main()
