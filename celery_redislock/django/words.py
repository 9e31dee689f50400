"""How the admin says who holds a lock."""

from __future__ import annotations

from datetime import datetime, timezone

from django.utils import formats
from django.utils import timezone as django_timezone

from ..inspection.locks import Found
from ..protocol.holders import one_line


def said(found: Found) -> str:
    """Who has this slot: the label or the task's id, the state, since when, and on which node."""
    holder = found.holder
    if found.state == "foreign":
        return "a value that is not a lock of ours, which stays"
    if holder is None:
        return "a task that waits for it, and is about to have it"
    since = "" if holder.acquired_at is None else f"since {_local(holder.acquired_at)}"
    suspension = found.suspension
    if suspension is not None and found.state == "suspended":
        until = f"until {_local(suspension.ends_at)}"
        parts = [f"suspended by {suspension.by}", until, suspension.why]
    else:
        who = holder.label or holder.task_id or "RedisLock"
        where = "" if holder.node is None else f"on {holder.node}"
        parts = [who, "" if found.in_words == "held" else found.in_words, since, where]
    return one_line(", ".join(filter(None, parts)))


def _local(seconds: float) -> str:
    """The time as the project writes times."""
    then = datetime.fromtimestamp(seconds, timezone.utc)
    return str(formats.date_format(django_timezone.localtime(then), "DATETIME_FORMAT"))
