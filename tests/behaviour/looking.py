"""Looking into what the lock server has. The only place here that knows its keys."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import redis

from tests.support.journal import Entry, Journal
from tests.support.workers import ROOT, Worker


class Keys:
    """The keys of a lock by their kinds, such as `keys.room`, as docs/inside/redis.md names them.

    Args:
        lock: the lock's key, as `task.lock_key_for` and `RedisLock.key` tell it.
    """

    def __init__(self, lock: str) -> None:
        self._head, _, self.name = lock.partition(":lock:")
        self.lock, self.rooms = lock, f"{self._head}:rooms"
        #: What the lock is called in `rooms`, if one run may hold it.
        self.lock_id = f"1|{self.name}"

    def __getattr__(self, kind: str) -> str:
        return f"{self._head}:{kind}:{self.name}"


class Room:
    """The waiting room of a lock.

    Args:
        client: a client of the lock server's database, which decodes.
        lock_key: the lock's key, as `task.lock_key_for` tells it.
    """

    def __init__(self, client: redis.Redis, lock_key: str) -> None:
        self._client, keys = client, Keys(lock_key)
        self.key, self._entries = keys.room, keys.entries

    def ids(self) -> list[str]:
        """The ids of the tasks in it, in their order."""
        members = self._client.lrange(self.key, 0, -1)
        states = [self._client.hget(self._entries, f"#{each}") or "" for each in members]
        return [state.rpartition("|")[2].split(":")[0] for state in states]

    def is_empty(self) -> bool:
        return not self._client.exists(self.key)


def listed(app: str, conf: dict[str, Any]) -> list[dict[str, Any]]:
    """What `celery redislock list --json` tells of an app's locks."""
    found: list[dict[str, Any]] = json.loads(redislock(app, conf, "list", "--json").stdout)
    return found


def redislock(app: str, conf: dict[str, Any], *command: str) -> subprocess.CompletedProcess[str]:
    """What this command of `celery redislock` prints, and its status."""
    return celery(app, conf, "redislock", *command)


def celery(app: str, conf: dict[str, Any], *command: str) -> subprocess.CompletedProcess[str]:
    """What this command of `celery` prints, and its status."""
    return subprocess.run(
        [sys.executable, "-m", "celery", "-A", app, *command],
        cwd=ROOT,
        env={**os.environ, "TEST_CONF": json.dumps(conf)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def received(log: str, task_id: str) -> int:
    """How many messages of this task a worker has received, by its log."""
    return log.count(f"[{task_id}] received")


def untaken(log: str, task_id: str) -> list[str]:
    """The lines that say that no worker has taken this task."""
    return [line for line in log.splitlines() if "no worker has taken" in line and task_id in line]


def starts(journal: Journal, label: str, task_id: str) -> int:
    """How often this task's body has begun."""
    return sum(entry.task_id == task_id for entry in journal.read(label, "start"))


def kill_runner(workers: Iterable[Worker], journal: Journal, entry: Entry) -> None:
    """Kill the worker that runs what this entry tells of, and its child that does."""
    (killed,) = [each for each in workers if entry.pid in each.children()]
    killed.signal(signal.SIGKILL)
    journal.kill(entry)
