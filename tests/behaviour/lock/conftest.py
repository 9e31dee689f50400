"""Python code in processes of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import RedisServer
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[3]


class Script:
    """Python code in a process of its own, given the server's URL and the lock's name."""

    PRELUDE = """
import contextlib, gc, json, os, signal, sys, threading, time
import redis
from celery_redislock import LockLost, LockUnavailable, RedisLock
url, name = sys.argv[1:3]
client = redis.Redis.from_url(url, decode_responses=True)
def say(what): client.rpush("said:" + name, json.dumps([os.getpid(), what]))
"""

    def __init__(self, server: RedisServer, name: str, code: str, prelude: str = "") -> None:
        self._client = server.client()
        self._name = name
        self.popen = subprocess.Popen(
            [sys.executable, "-c", f"{prelude}\n{self.PRELUDE}\n{code}", server.url, name],
            cwd=ROOT,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self.popen.pid

    def said(self) -> list[Any]:
        lines = map(json.loads, self._client.lrange(f"said:{self._name}", 0, -1))
        return [what for pid, what in lines if pid == self.pid]

    def says(self, what: Any, timeout: float = 30.0) -> None:
        eventually(lambda: what in self.said() or self._ended(what), f"it says {what!r}", timeout)

    def _ended(self, what: Any) -> None:
        if self.popen.poll() is not None and what not in (said := self.said()):
            raise AssertionError(f"the script ended with {self.popen.returncode}, and said {said}")

    def signal(self, signum: int) -> None:
        self.popen.send_signal(signum)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.popen.wait()
        self._client.close()


@pytest.fixture
def script(redis_server: RedisServer, label: str) -> Iterator[Callable[..., Script]]:
    """Starts scripts that want this test's lock."""
    started: list[Script] = []

    def start(code: str, **options: Any) -> Script:
        started.append(Script(options.pop("server", redis_server), label, code, **options))
        return started[-1]

    yield start
    for each in started:
        each.close()
