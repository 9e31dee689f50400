"""What is in here needs no server and no process: to ask for one is an error."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from celery import Celery, bootsteps
from celery.result import AsyncResult

from celery_redislock.worker import start


def ends_a_result() -> bool:
    """Whether a result of Celery's is finalized: garbage that another tier's test left."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is AsyncResult.__del__.__code__:
            return True
        frame = frame.f_back
    return False


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever the code does with the error, the test fails."""
    # Threads of other tiers' tests may still run, and go on.
    others = set(threading.enumerate()) - {threading.current_thread()}
    asked: list[str] = []

    def guard(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def refuse(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() in others or ends_a_result():
                return real(*args, **kwargs)
            asked.append(f"{owner.__name__}.{name}{args[1:]}")
            raise AssertionError("a unit test has no server and no process: see tests/contract")

        monkeypatch.setattr(owner, name, refuse)

    guard(os, "fork")
    guard(subprocess.Popen, "__init__")
    guard(socket.socket, "connect")
    guard(socket.socket, "connect_ex")
    yield
    assert asked == []


@pytest.fixture
def app(make_app: Callable[..., Celery]) -> Celery:
    """With a broker in memory; its lock server is named and never asked."""
    return make_app()


@pytest.fixture
def start_worker_of() -> Callable[[Celery], None]:
    """What a worker's start does before its pool; the lock server is not asked: the worker has
    ended, so the background work that it begins does nothing.
    """
    ended = SimpleNamespace(state=bootsteps.TERMINATE)

    class Worker(SimpleNamespace):
        """One that can be referred to weakly."""

    def begin(app: Celery) -> None:
        start._on_worker_init(sender=Worker(app=app, blueprint=ended))

    return begin
