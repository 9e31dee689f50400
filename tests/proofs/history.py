"""What happened, as everybody concerned wrote it down: one file, one line of JSON an event.

Each line is one `write` to a file that was opened to append: whole, in the order of writing, not
dependent on the servers that are being faulted, and still there when its writer is killed a moment
later. What is written of each kind: the table in README.md.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
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
        """What was written since this was last asked. For one reader."""
        with self.path.open("rb") as file:
            file.seek(self._read_to)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read_to += len(whole)
        return list(map(_parse, whole.splitlines()))

    def events(self, *kinds: str) -> list[Event]:
        """What was written so far, of these kinds, or all."""
        return list(read(self.path, *kinds))

    def close(self) -> None:
        os.close(self._fd)


def read(path: str | Path, *kinds: str) -> Iterator[Event]:
    """The events of a history, of these kinds, or all, as they were written."""
    whole = Path(path).read_bytes()
    openings = tuple(f'{{"kind": "{kind}",'.encode() for kind in kinds)
    for line in whole[: whole.rfind(b"\n") + 1].splitlines():
        if not kinds or line.startswith(openings):
            yield _parse(line)


def _parse(line: bytes) -> Event:
    fields = json.loads(line)
    return Event(fields.pop("kind"), fields.pop("at"), fields)
