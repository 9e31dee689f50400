"""What is in a waiting room, as text: ids, entries, and those that were replaced. Pure.

The scripts write it and read it, too: see `scripts/entries.lua`.
"""

from __future__ import annotations

import json
import re


def id_of(task_id: str, nesting: int, attempt: int) -> str:
    """What an attempt of a task is called, in a room and where it is noted that it has run."""
    return f"{task_id}:{nesting}.{attempt}"


def task_id_of(entry_id: str) -> str:
    """The id of the task whose attempt this is."""
    return entry_id.rpartition(":")[0]


def parked_of(entry: str) -> str:
    """What was parked: an entry without the head that the scripts put before it."""
    return entry.split("|", 2)[-1]


def arrived_at(entry: str) -> float | None:
    """Unix time of the task's arrival, by the lock server's clock; None if that is not known."""
    found = re.match(r"[^|]*\|[^|]*@(\d+)\|", entry)
    return int(found[1]) / 1000 if found else None


def ended_of(text: str) -> tuple[str, str]:
    """Of one that was replaced: the id of the task that did, and what was parked."""
    successor, entry = json.loads(text)
    return successor, parked_of(entry)
