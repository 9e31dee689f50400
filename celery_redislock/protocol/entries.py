"""The texts in a waiting room, as `scripts/entries.lua` has them, too. Does no I/O."""

from __future__ import annotations

import json
import re
from typing import Final

from .holders import loaded

#: See `id_of`.
ENTRY_ID: Final = "%s:%d.%d"


def id_of(task_id: str, nesting: int, attempt: int) -> str:
    """The id of a task's attempt, in a waiting room and in the key of its done note."""
    return ENTRY_ID % (task_id, nesting, attempt)


def slot_of(task: str) -> str:
    """The pending slot of the task with this name: its member in a waiting room."""
    return f"={task}"


#: How a pending slot begins. So may an id that a sender chose, but that has no `quiet_until`.
PENDING: Final = b"="


def id_in(state: object, member: bytes) -> str:
    """The id of the entry behind this member of a room, from its state as Redis has it."""
    text = state if isinstance(state, bytes) else b""
    return (text.split(b"|", 3)[3:] or [member])[0].decode(errors="replace")


def quiet_until(state: object) -> float | None:
    """Unix time until which a pending slot waits for quiet (`Debounce`), by its state; or None."""
    head = re.match(rb"(\d{1,16})\|\d+\|", state if isinstance(state, bytes) else b"")
    return int(head[1]) / 1000 if head else None


def is_passed_over(state: object) -> bool:
    """Whether those who looked last at the entry with this state could not publish it."""
    return isinstance(state, bytes) and state.startswith(b"1|")


def task_id_of(entry_id: str) -> str:
    """The id of the task in an entry's id."""
    return entry_id.rpartition(":")[0]


def parts_of(entry_id: str) -> tuple[str, int, int]:
    """The task's id, its replacements and its attempt; of what is no entry's id, only the text."""
    parts = re.fullmatch(r"(?s)(.*):([0-9]{1,9})\.([0-9]{1,9})", entry_id)
    return (parts[1], int(parts[2]), int(parts[3])) if parts else (entry_id, 0, 0)


def parked_of(entry: str) -> str:
    """The parked message: an entry without the head that the scripts add."""
    return entry.split("|", 2)[-1]


def task_of(parked: str) -> str | None:
    """The name of the parked task, even if the rest cannot be read; None if not known."""
    record = loaded(parked)
    task = record.get("task") if isinstance(record, dict) else None
    return task if isinstance(task, str) else None


def arrived_at(entry: str) -> float | None:
    """Unix time of the task's arrival, by the lock server's clock; None if that is not known."""
    head = re.match(r"\d*\|(\d{1,16}(\.\d{1,3})?)\|", entry)
    return float(head[1]) / 1000 if head else None


def ended_of(text: str) -> tuple[str, str]:
    """Of a replaced entry: the id of the task that replaced it, and the parked message."""
    successor, entry, *_ = json.loads(text)
    return successor, parked_of(entry)
