"""Who holds a lock: the record that is its value, as `scripts/values.lua` and `scripts/records.lua`
have it too. Its token proves ownership; its other fields are for people.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import socket
import string
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import cache
from json.encoder import encode_basestring_ascii
from operator import attrgetter
from types import NoneType
from typing import Any, Final

#: The longest text from elsewhere that we log or list, in characters.
LONGEST: Final = 1000
#: The longest label, and the longest text that a run says of itself, in characters. The label is
#: stored with each holder and each waiting task.
LONGEST_LABEL: Final = 100


def cut(text: str, most: int = LONGEST) -> str:
    """The text, visibly cut if it is longer than this many characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def one_line(text: str) -> str:
    """The text in one line, cut if it is very long: we trust neither arguments nor ids."""
    return escaped(cut(text))


def escaped(text: str) -> str:
    """The text without characters that could end its line, move the cursor or reverse it."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def label_text(text: str) -> str:
    """A lock's label, or what a run says of itself, as it is stored: in one line, and cut."""
    return cut(one_line(text[: LONGEST_LABEL + 1]), LONGEST_LABEL)


_KINDS: Final[dict[str, Any]] = {"bool": bool, "int": int, "str": str, "float": (int, float)}


def types_of(cls: type[Any]) -> dict[str, Any]:
    """The types that each field of this dataclass may have, for `isinstance`."""
    kinds = {each.name: str(each.type).partition(" | ") for each in dataclasses.fields(cls)}
    return {
        name: (_KINDS[kind], NoneType) if or_none else _KINDS[kind]
        for name, (kind, or_none, _) in kinds.items()
    }


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """A lock's holder, as it recorded itself. Fields that it did not record are None.

    Attributes:
        task: the task's name, or None for a `RedisLock`.
        task_id: the task's id.
        attempt: the task's `retries` when it took the lock.
        node: the worker's node name, or the host's name.
        pid: the id of the process.
        acquired_at: Unix time in seconds, by the Redis server's clock.
        fence: the fencing token of the holder's acquisition.
        ttl: seconds until the lock expires if the holder dies now; None if it never expires. A lock
            of ours always does.
        held_for_retry: no attempt is running; the lock is kept for the task's next attempt.
        cooling_down: the run has ended; the lock is kept until the pause after it is over.
        queued: the task is not running yet; its message waits in the queue.
        replaced_by: the id of the task that waits for this run to end (`Replace`); or None.
        label: the lock's name for people, by `lock_label`, or of a `RedisLock`; or None.
        description: what the run's body says of itself, such as "page 3 of 40"; None if it says
            nothing, or has ended.
    """

    task: str | None = None
    task_id: str | None = None
    attempt: int = 0
    node: str | None = None
    pid: int | None = None
    acquired_at: float | None = None
    fence: int | None = None
    ttl: float | None = None
    held_for_retry: bool = False
    cooling_down: bool = False
    queued: bool = False
    replaced_by: str | None = None
    label: str | None = None
    description: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain data, for `from_dict`."""
        return dict(zip(_TYPES, _values(self), strict=True))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Holder:
        """Build a holder from plain data. Unknown fields are ignored. If a known field has a type
        that we never record, the data is not ours, and only the ttl is known.
        """
        fields = {}
        for name, types in _TYPES.items():
            if name in data:
                if not isinstance(data[name], types):
                    return cls(ttl=data.get("ttl"))
                fields[name] = data[name]
        holder = cls(**fields)
        if holder.acquired_at is None or 0 <= holder.acquired_at <= _LAST_TIME:
            return holder
        return cls(ttl=data.get("ttl"))

    def __str__(self) -> str:
        return one_line(self._text())

    def _text(self) -> str:
        if self.task_id is None and self.pid is None:
            return self.task or "a foreign value"
        who = f"{self.task or 'RedisLock'}[{self.task_id}]" if self.task_id else "RedisLock"
        where = f" on {self.node} pid {self.pid}" if self.pid is not None else ""
        if self.label is not None:
            who += f" ({self.label})"
            # Outside of tasks a label tells more than the pid, and replaces it.
            where = where if self.task_id else f" on {self.node}"
        text = who + where
        if self.acquired_at is not None:
            since = datetime.fromtimestamp(self.acquired_at, timezone.utc)
            text += f" since {since.isoformat(timespec='milliseconds')}"
        if self.cooling_down:
            return f"{text}, which has ended and is followed by a pause"
        if self.queued:
            return f"{text}, waiting in the queue"
        if self.replaced_by is not None:
            return f"{text}, to be replaced by {self.replaced_by}"
        if self.held_for_retry:
            return f"{text}, kept for its retry"
        return f"{text}: {self.description}" if self.description else text


_TYPES: Final = types_of(Holder)
_values: Final = attrgetter(*_TYPES)
#: The version of the records that we write. A record without one is of version 1.
VERSION: Final = 2
#: The text of a record between the token and the task's name.
_VERSION_AND_TASK: Final = f'","v":{VERSION},"task":'
#: Characters that `_without_quotes` does not escape: scripts copy them as they are.
_PLAIN: Final = frozenset(f"{string.ascii_letters}{string.digits}-_.:@ ")
_LONGEST_BREAKER: Final = 100
#: The end of 2999: Windows can show no later time than the year 3000.
_LAST_TIME: Final = 32503679999

logger = logging.getLogger("celery_redislock")  # not from `log`, which imports this module
_newer_was_told = False


def parse(
    value: bytes | None, ttl: float | None, record: dict[str, Any] | None = None
) -> Holder | None:
    """The holder that a lock's value, or its `record`, tells; None if nobody holds the lock, or it
    is reserved for a waiter. It has no fields if the value is not ours, and only task, id and label
    if a newer release wrote it.
    """
    if value is None:
        return None
    record = record or _record(value)
    if record is None:
        return Holder(ttl=ttl)
    if record.get("v") != VERSION and _is_newer(record):
        return _named(record, ttl)
    if record.get("reserved"):
        return None
    flags = {
        "held_for_retry": bool(record.get("held")),
        "cooling_down": bool(record.get("cooling")),
        "queued": bool(record.get("queued")),
    }
    by = record.get("by")
    successor = None if by is None else _successor(by)
    replaced_by = successor and successor.task_id
    known = {**record, "ttl": ttl, **flags, "replaced_by": replaced_by}
    if any(flags.values()):
        known["description"] = None  # it is of a run that has ended
    return Holder.from_dict(known)


def successor_text(task: str, task_id: str) -> str:
    """A task and its id as JSON. The scripts find the end of it by its four quotes."""
    return f'["{_without_quotes(task)}","{_without_quotes(task_id)}"]'


def loaded(text: bytes | str) -> Any:
    """What this JSON says; None if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _without_quotes(text: str) -> str:
    if _PLAIN.issuperset(text):
        return text
    units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H").tolist()
    return "".join(chr(unit) if chr(unit) in _PLAIN else f"\\u{unit:04x}" for unit in units)


def successor_of(text: bytes) -> Holder | None:
    """The task that replaces the holder, from a lock's value or a `successor_text`."""
    data = loaded(text)
    return _successor(data.get("by") if isinstance(data, dict) else data)


def _successor(by: Any) -> Holder | None:
    if not isinstance(by, list) or len(by) != 2:
        return None
    task, task_id = by
    if not isinstance(task, str) or not isinstance(task_id, str):
        return None
    return Holder(task=cut(task), task_id=cut(task_id))


def description_text(text: str) -> str:
    """What a body says of itself, as JSON. The scripts find the end of it by its two quotes."""
    return f'"{_without_quotes(label_text(text))}"'


def breaker_text(by: str) -> str:
    """Who breaks a lock, as JSON. The scripts find the end of it by its two quotes."""
    return f'"{_without_quotes(one_line(by[:_LONGEST_BREAKER]))}"'


def breaker_of(text: bytes) -> str:
    """Who broke a lock, from a `breaker_text`; "" if not known."""
    return by if isinstance(by := loaded(text), str) else ""


def last_breaker(marks: bytes) -> str | None:
    """Who broke a lock last, from the text that `break.lua` collects; None if not known."""
    last = re.search(rb',"by":("[^"]*")$', marks)
    return (breaker_of(last[1]) or None) if last else None


def user_here() -> str:
    """The user and the host of this process, such as "anna@host"."""
    import getpass  # only when an operator breaks a lock: its imports take time

    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user may have no name
        user = f"uid {os.getuid()}" if hasattr(os, "getuid") else "a user without a name"
    return f"{user}@{_host()}"


def read(value: bytes, ttl: float | None) -> tuple[dict[str, Any] | None, Holder | None]:
    """What `decode` and `parse` tell of a value."""
    record = _record(value)
    holder = parse(value, ttl, record)
    if record is not None and _is_newer(record):
        return {"token": record["token"], "v": record["v"]}, holder
    return record, holder


def decode(value: bytes) -> dict[str, Any] | None:
    """The fields of a lock's value, or None if it is not ours; a newer one's token and version."""
    return read(value, None)[0]


def is_of_task(value: bytes, ids: Sequence[Any]) -> bool:
    """Whether a lock's value, of any version, names one of these tasks."""
    task_id = (_record(value) or {}).get("task_id")
    return bool(task_id) and task_id in ids


def _is_newer(record: Mapping[str, Any]) -> bool:
    """Whether a newer release than this one wrote the record. Warns once in a process."""
    global _newer_was_told  # one warning for all apps: it is about what is installed
    version = record.get("v")
    if not isinstance(version, int | float) or not version > VERSION:
        return False
    if not _newer_was_told:
        _newer_was_told = True
        logger.warning(
            "redislock: a newer celery-redislock holds the lock of %s: its record is of version %s,"
            " and this release reads up to version %d. The lock counts as held. Upgrade this"
            " process",
            _named(record, None), version, VERSION,
        )  # fmt: skip
    return True


def _named(record: Mapping[str, Any], ttl: float | None) -> Holder:
    names = (record.get(name) for name in ("task", "task_id", "label"))
    task, task_id, label = (name if isinstance(name, str) else None for name in names)
    return Holder(task=task, task_id=task_id, label=label, ttl=ttl)


def _record(value: bytes) -> dict[str, Any] | None:
    record = loaded(value)
    if not isinstance(record, dict) or not isinstance(record.get("token"), str):
        return None
    if len(value) > LONGEST:  # ours are shorter, unless a task has an extremely long name or id
        return {name: cut(each) if isinstance(each, str) else each for name, each in record.items()}
    return record


#: See `opening_of`.
OPENING: Final = '{"token":"%s"'


def opening_of(token: str) -> str:
    """How a value with this token begins."""
    return OPENING % token


def encode(
    token: str,
    *,
    ttl_ms: int,
    task: str | None = None,
    task_id: str | None = None,
    attempt: int = 0,
    nesting: int = 0,
    node: str | None = None,
    queued: bool = False,
    queue: str | None = None,
    arrived: float | None = None,
    age: float | None = None,
    receipt: str = "",
    label: str | None = None,
) -> str:
    """A lock's value: the scripts compare its opening, and add fields before the closing brace."""
    # This does not use `json`, which takes three times as long: this is done for each run.
    # The sender of the message chooses the id: it may be no text.
    id_text = encode_basestring_ascii(task_id) if isinstance(task_id, str) else _text(task_id)
    task_text = "null" if task is None else encode_basestring_ascii(task)
    value = (
        f'{{"token":"{token}{_VERSION_AND_TASK}{task_text}'
        f',"task_id":{id_text}'
        f',"attempt":{attempt:d},"nesting":{nesting:d}'
        f',"node":{encode_basestring_ascii(node or _host())}'
        f',"pid":{os.getpid()},"ttl_ms":{ttl_ms:d}'
    )
    if queued:
        value += ',"queued":true'
    if queue is not None:
        value += f',"queue":{_text(queue)}'
    if arrived is not None:
        value += f',"arrived_ms":{arrived * 1000:.3f}'
    elif age is not None:
        value += f',"age_ms":{age * 1000:.3f}'
    if receipt:
        value += f',"receipt":"{receipt}"'
    if label is not None:
        value += f',"label":{_text(label)}'
    return value + "}"


def acquired(value: str, fence: int) -> str:
    """The value as `acquire.lua` stored it, with a fence that is the time of the acquisition."""
    seconds, micros = divmod(fence, 1_000_000)
    return f'{value[:-1]},"fence":{fence},"acquired_at":{seconds}.{micros:06d}}}'


def _text(value: Any) -> str:
    if value is None:
        return "null"
    return encode_basestring_ascii(value) if isinstance(value, str) else json.dumps(value)


def held_for_retry(value: str) -> str:
    """The value of a lock that its holder leaves to the task's next attempt."""
    record = json.loads(value)
    return json.dumps({**record, "token": "", "held": True}, separators=(",", ":"))


def opening_of_held(token: str) -> str:
    """How the value begins of a lock that is kept for the retry of a task whose process died."""
    return f'{opening_of(token)},"held":true'


def kept_in_queue(
    value: str, token: str, *, task: str, attempt: int, nesting: int, label: str | None = None
) -> str:
    """The value of a lock that its holder leaves to its task's next message, under this token."""
    changed = {"token": token, "task": task, "attempt": attempt, "nesting": nesting, "label": label}
    record = {**json.loads(value), **changed, "queued": True}
    if label is None:
        del record["label"]
    return json.dumps(record, separators=(",", ":"))


@cache
def _host() -> str:
    return socket.gethostname()
