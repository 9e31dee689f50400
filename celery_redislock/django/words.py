"""How the admin says who holds a lock."""

from __future__ import annotations

from datetime import datetime, timezone

from django.utils import formats
from django.utils import timezone as django_timezone

from ..inspection.locks import Found
from ..inspection.states import RUNNING, kept_for, state_of_holder
from ..protocol.holders import Holder, one_line


def said(holder: Holder) -> str:
    """The label or the task's id, since when, and on which node."""
    who = holder.label or holder.task_id or ("RedisLock" if holder.pid else "a foreign value")
    parts = [who, _state(holder)]
    if holder.acquired_at is not None:
        parts.append(f"since {_local(holder.acquired_at)}")
    if holder.node is not None:
        parts.append(f"on {holder.node}")
    return one_line(", ".join(filter(None, parts)))


def said_of_slot(found: Found) -> str:
    """The same of a slot, as the confirmation page names it."""
    if found.state == "foreign":
        return "a value that is not a lock of ours, which stays"
    if found.holder is None:
        return "a task that waits for it, and is about to have it"
    return said(found.holder)


def _state(holder: Holder) -> str:
    why = kept_for(holder)
    if why is not None:
        return f"kept for {why}"
    state = state_of_holder(holder)
    return "" if state in RUNNING else state


def _local(seconds: float) -> str:
    """The time as the project writes times."""
    then = datetime.fromtimestamp(seconds, timezone.utc)
    return str(formats.date_format(django_timezone.localtime(then), "DATETIME_FORMAT"))
