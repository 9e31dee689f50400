"""What happened, as everybody concerned wrote it down: one file, one line of JSON an event.

Each line is one `write` to a file that was opened to append: whole, in order, independent of the
servers that are being faulted, and still there when the writer is killed a moment later.

| kind | who writes it | what it says |
|---|---|---|
| case | stage | what is being run |
| sent, result | load, stage | a message was sent; what the result backend says of it in the end |
| not sent | load | a duplicate, since `existing` stands, of a task that is unique while queued |
| worker | stage | a worker was started |
| place | recorder | where the broker has a message: in a `queue`, in `unacked`, or `nowhere` |
| start, alive, end | body | it is inside, and what it is told of its lock |
| told | body, signal | it knows that it lost its lock |
| beat | the process that extends | until when the lock is this token's |
| released, conflict | signals | the lock was given back; somebody met it, and how that ended |
| received, acked, rejected | worker's main process | of each delivery of a message |
| published | whoever publishes | a message of this task: a retry, or put off |
| stored | where it ran | the result of a run that succeeded is in the backend |
| cancelled | worker's main process | it is to be ended: the broker's connection was lost |
| asks, took, refused | whoever wants a lock | it asks the server, and what it was told |
| parks, parked, not parked | whoever meets a held lock | it is put into the waiting room, or not |
| failed, revoked | Celery's signals | a task ended so |
| offered, passed over | whoever asks about a room | whose message to publish; whose it cannot |
| out | whoever asks about a room | who is to leave it |
| step | a process | it stands between two steps, for a fault to strike it |
| fault, stopped, continued | fault | it begins or ends; processes stand still or go on |
| dead, freed, revived | watcher | a process ended; its lock is free; not any more |
| immortal | watcher | a lock has no expiry |
| late | stage | the machine was late for so many `seconds` until then: support/lateness.py |
| drained, quiet, crashed | stage | all has ended; all locks have; a worker ended on its own |

Faults may write kinds of their own, for whoever reads it.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Event:
    """One line.

    Attributes:
        kind: what happened.
        at: seconds on the machine's monotonic clock, the same for every process.
        fields: the rest; each is also an attribute.
    """

    kind: str
    at: float
    fields: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["fields"][name]
        except KeyError:
            raise AttributeError(f"{self.__dict__.get('kind')} has no {name}") from None

    def get(self, name: str, default: Any = None) -> Any:
        return self.fields.get(name, default)

    def __str__(self) -> str:
        told = " ".join(f"{name}={value}" for name, value in self.fields.items())
        return f"{self.at:.4f} {self.kind} {told}"


class History:
    """The file. Every process has it open for itself, or shares it with the one that forked it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._read_to = 0

    def write(self, kind: str, *, at: float | None = None, **fields: Any) -> None:
        """Write an event down, as of now unless said otherwise."""
        line = {"kind": kind, "at": time.monotonic() if at is None else at, **fields}
        os.write(self._fd, json.dumps(line).encode() + b"\n")

    def new(self) -> list[Event]:
        """What was written since this was last asked, in the order of writing. For one reader."""
        with self.path.open("rb") as file:
            file.seek(self._read_to)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read_to += len(whole)
        return list(map(_parse, whole.splitlines()))

    def events(self, *kinds: str) -> list[Event]:
        """What was written so far, of these kinds, or all, by time."""
        return read(self.path, *kinds)

    def close(self) -> None:
        os.close(self._fd)


def read(path: str | Path, *kinds: str) -> list[Event]:
    """The events of a history that was kept, of these kinds, or all, by time."""
    whole = Path(path).read_bytes()
    lines = whole[: whole.rfind(b"\n") + 1].splitlines()
    if kinds:  # who waits for a step reads it again and again
        openings = tuple(_opening(kind) for kind in kinds)
        lines = [line for line in lines if line.startswith(openings)]
    return sorted(map(_parse, lines), key=lambda event: event.at)


def _opening(kind: str) -> bytes:
    return f'{{"kind": "{kind}",'.encode()


def _parse(line: bytes) -> Event:
    fields = json.loads(line)
    return Event(fields.pop("kind"), fields.pop("at"), fields)
