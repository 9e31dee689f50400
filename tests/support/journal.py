"""What ran when, as the bodies themselves tell it: the tests' only witness of overlaps."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from typing import Any

import redis

from .waiting import eventually


@dataclass(frozen=True)
class Entry:
    """One line of the journal. `at` is on the machine's monotonic clock, the same for all."""

    event: str
    label: str
    task_id: str
    retries: int
    pid: int
    at: float
    data: Any = None


class Journal:
    """A list in Redis that task bodies write to."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def write(self, event: str, label: str, request: Any, data: Any = None) -> None:
        entry = Entry(
            event, label, request.id, request.retries, os.getpid(), time.monotonic(), data
        )
        self._client.rpush(f"journal:{label}", json.dumps(asdict(entry)))

    def let_go(self, task_id: str) -> None:
        """Let a task go on that stands in `await_go`."""
        self._client.rpush(f"go:{task_id}", "")

    def await_go(self, task_id: str) -> None:
        """Stand still until a test says so."""
        eventually(lambda: self._client.lpop(f"go:{task_id}") is not None, "it may go on", 60)

    def read(self, label: str, event: str | None = None) -> list[Entry]:
        entries = [
            Entry(**json.loads(line)) for line in self._client.lrange(f"journal:{label}", 0, -1)
        ]
        return [entry for entry in entries if event in (None, entry.event)]

    def await_start(self, label: str, task_id: str) -> Entry:
        """Wait until this task runs, whoever ran before under the label."""
        return eventually(
            lambda: [entry for entry in self.read(label, "start") if entry.task_id == task_id],
            "it runs",
        )[0]

    def count(self, label: str, event: str) -> int:
        return len(self.read(label, event))

    def kill(self, entry: Entry) -> None:
        """Kill this run's process. It counts as dead from now: the next run may begin at once."""
        at = time.monotonic()
        os.kill(entry.pid, signal.SIGKILL)
        self.killed(entry, at)

    def killed(self, entry: Entry, at: float | None = None) -> None:
        """Write down that this run's process is dead since this time; None: as far as we know."""
        at = time.monotonic() if at is None else at
        end = Entry("killed", entry.label, entry.task_id, entry.retries, entry.pid, at)
        self._client.rpush(f"journal:{entry.label}", json.dumps(asdict(end)))

    def overlaps(self, label: str) -> list[tuple[Entry, Entry]]:
        """Pairs of a run and another one that started before the first had ended.

        A run that was killed writes no end: see `killed`.
        """
        found = []
        running: dict[tuple[str, int], Entry] = {}
        for entry in sorted(self.read(label), key=lambda e: e.at):
            run = (entry.task_id, entry.retries)
            if entry.event == "start":
                found += [(other, entry) for other in running.values()]
                running[run] = entry
            elif entry.event in ("end", "killed"):
                running.pop(run, None)
        return found
