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

from celery_redislock import _request, _room, _run
from celery_redislock._run import Run

from .history import History

#: Every step at which a process can be stopped, and what it has just done there.
STEPS = {
    "parked": "its task is in the room; the message is not acknowledged late, nobody was told",
    "taken": "the head of the room has the lock and has left the room; its body has not begun",
    "released": "the lock is free, and somebody waits",
    "handed over": "it was told whose turn it is",
    "published": "it has published the one whose turn it is",
    "replacing": "it is about to store that one was replaced",
    "replaced": "it has stored that, and not said so",
    "gave up": "one that waited long enough has left the room; its next policy has not acted",
}
#: Seconds for which a process stands still if nobody lets it go on.
AT_MOST = 5.0
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
    """Have this process, and those that it forks, come to the steps."""
    global _history, _main
    _history, _main = history, main
    _room._publish = _after(_room._publish, "published")
    _room.store_skipped = _before(_after(_room.store_skipped, "replaced"), "replacing")
    for module in (_run, _request):
        module.hand_over = _released(module.hand_over)
    run_body = Run.run_body

    @wraps(run_body)
    def from_the_room(self: Any) -> Any:
        if self.delivery.parked:
            step("taken")
        return run_body(self)

    Run.run_body = from_the_room  # type: ignore[method-assign]


def _released(hand_over: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(hand_over)
    def stepping(app: Any, keys: Any, ttl: float, take_out: str = "") -> Any:
        if not take_out:
            step("released")
        return hand_over(app, keys, ttl, take_out)

    return stepping


def _before(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @wraps(function)
    def stepping(*args: Any, **kwargs: Any) -> Any:
        step(name)
        return function(*args, **kwargs)

    return stepping


def _after(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @wraps(function)
    def stepping(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        step(name)
        return result

    return stepping
