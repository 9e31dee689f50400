"""Runs short Python programs in processes forked from one that has imported Django, Celery and this
package: importing is most of what they do, and the tests of Django and of the pages run many.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import types
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
IMPORTED = (
    # Not `celery.bin`: by that the checks tell that they run in a `celery` command.
    *("celery.app.trace", "celery.backends.redis", "celery.fixups.django"),
    *("celery_redislock.django", "celery_redislock.operations", "celery_redislock.testing"),
    *("django.contrib.admin", "django.core.management", "django.test", "django.urls"),
    *("kombu.transport.memory", "kombu.transport.redis"),
)


class Programs:
    """The process that forks, as its client sees it. One program runs at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server = subprocess.Popen(
            [sys.executable, "-u", "-m", __name__],
            cwd=ROOT,
            # Else each program would compile anew what it imports beside that.
            env={name: value for name, value in os.environ.items() if name != NO_BYTECODE},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self._server.communicate)

    def run(self, *arguments: str, seconds: int) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as folder, self._lock:
            outputs = [Path(folder, name) for name in ("out", "err")]
            request = {
                "arguments": arguments,
                "environment": dict(os.environ),
                "outputs": [str(path) for path in outputs],
                "seconds": seconds,
            }
            assert self._server.stdin is not None
            assert self._server.stdout is not None
            self._server.stdin.write(json.dumps(request) + "\n")
            self._server.stdin.flush()
            status = int(self._server.stdout.readline())
            out, err = (path.read_text(encoding="utf-8") for path in outputs)
        return subprocess.CompletedProcess(arguments, status, out, err)


_programs = functools.cache(Programs)


def python(*arguments: str, seconds: int = 90) -> subprocess.CompletedProcess[str]:
    """Run `python` with these arguments (`-m MODULE`, `-c TEXT` or a file, and its own) in the root
    folder, in the environment of now. What it started ends with it.

    Args:
        arguments: of the command line.
        seconds: after which it is killed.
    """
    return _programs().run(*arguments, seconds=seconds)


def serve() -> dict[str, Any] | None:
    """Fork for each request. Returns in what is forked, with the request; else None at the end."""
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            os.setsid()
            request: dict[str, Any] = json.loads(line)
            return request
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return None


def become(request: dict[str, Any]) -> None:
    """Be the program that was asked for, and run it."""
    signal.alarm(request["seconds"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream, path in enumerate(request["outputs"], 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), stream)
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None
    sys.path[1:1] = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kind, *arguments = request["arguments"]
    if kind == "-m":
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *arguments[1:]]
        sys.modules["__main__"] = module = types.ModuleType("__main__")
        exec(compile(arguments[0], "<string>", "exec"), vars(module))
    else:
        sys.argv = [kind, *arguments]
        sys.path[0] = str(Path(kind).parent)
        runpy.run_path(kind, run_name="__main__")


def main() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # what is collected is written to, and so copied
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # pytest ends it
    request = serve()
    if request is not None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        become(request)


if __name__ == "__main__":
    main()
