"""Stops a worker's process between two steps of the library, until a fault has struck there.

A fault arms a step with a file; the first process that comes to the step takes the file away,
writes down that it is there, and stands still until the fault lets it go on, or has killed it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from celery_redislock.lock.lease import Lease
from celery_redislock.servers.server import Server
from celery_redislock.tasks import room
from celery_redislock.tasks.asking import Asking
from celery_redislock.tasks.run import Run

from .history import History

#: Every step at which a process can be stopped, and what it has just done there.
STEPS = {
    "parking": "it is about to put its task into the room",
    "parked": "its task is in the room; the message is not acknowledged late, nobody was told",
    "settling": "the body is over, and its lock is not given back",
    "offered": "it was told who is next, and has not published that one's message",
    "published": "it has published the message of the one that is next",
    "asking": "it has got a message of the room, and has not asked for the lock",
    "taken": "one of the room has the lock and has left the room; its body has not begun",
    "replacing": "it is about to store that one was replaced",
    "replaced": "it has stored that, and not said so",
    "gave up": "one that waited long enough has left the room; its next policy has not acted",
}
#: Seconds for which a process stands still if nobody lets it go on.
AT_MOST = 20.0
LOOK_EVERY = 0.005

_history: History | None = None
_main = 0


def arm(history: History, name: str) -> Path:
    """Have the next process that comes to this step stop there. Returns what disarms it."""
    armed = _file(history.path, name, "armed")
    armed.touch()
    return armed


def let_go(history: History, name: str) -> None:
    """Let the process that stopped go on."""
    _file(history.path, name, "stopped").unlink(missing_ok=True)


def step(name: str) -> None:
    """Here is that step."""
    assert name in STEPS, name
    if _history is None:
        return
    armed, stopped = (_file(_history.path, name, kind) for kind in ("armed", "stopped"))
    try:
        os.rename(armed, stopped)
    except FileNotFoundError:
        return
    _history.write("step", name=name, pid=os.getpid(), main=_main)
    give_up = time.monotonic() + AT_MOST
    while stopped.exists() and time.monotonic() < give_up:
        time.sleep(LOOK_EVERY)


def _file(path: Path, name: str, kind: str) -> Path:
    return path.with_name(f"{path.name}.{name.replace(' ', '_')}.{kind}")


def witness(history: History, main: int) -> None:
    """Have this process, and those that it forks, come to the steps. What the server said of a
    room is a step of the witness that writes it down.
    """
    global _history, _main
    _history, _main = history, main
    Server.run = _before(Server.run, "parking", _asks("park"))  # type: ignore[method-assign]
    Lease.release = _before(Lease.release, "settling")  # type: ignore[method-assign]
    room._send = _after(room._send, "published")
    room.store_skipped = _before(_after(room.store_skipped, "replaced"), "replacing")
    Asking.ask = _before(Asking.ask, "asking", _is_parked)  # type: ignore[method-assign]
    Run._run = _before(Run._run, "taken", _is_parked)  # type: ignore[method-assign]


def _always(*args: Any) -> bool:
    return True


def _is_parked(run: Run, *args: Any) -> bool:
    return run.delivery is not None and run.delivery.parked


def _asks(script: str) -> Callable[..., bool]:
    """Whether that is what a server is asked."""
    return lambda server, call: call.script == script


def _before(
    function: Callable[..., Any], name: str, where: Callable[..., bool] = _always
) -> Callable[..., Any]:
    @wraps(function)
    def stepping(*args: Any, **kwargs: Any) -> Any:
        if where(*args):
            step(name)
        return function(*args, **kwargs)

    return stepping


def _after(
    function: Callable[..., Any], name: str, where: Callable[..., bool] = _always
) -> Callable[..., Any]:
    @wraps(function)
    def stepping(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if where(*args):
            step(name)
        return result

    return stepping
