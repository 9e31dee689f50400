"""Holds: by one, an operator keeps new runs from locks for a while. Does no I/O.

`scripts/holds.lua` says how the scripts carry holds out. A hold is stored once for people, see
`keys.holds_key`, and once for each bucket that may have such locks.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final

from . import holders
from .claims import to_ms
from .exchange import Call, Query
from .holders import Holder, cut, one_line

#: The longest reason, in characters.
LONGEST_REASON: Final = 200
#: The most stars of a glob: a script tries all ways in which they can match.
MOST_STARS: Final = 3
_GLOB: Final = re.compile(r"[*?[]")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Hold:
    """A hold: no new run gets the locks that it names until it ends.

    Attributes:
        task: the task whose locks are held, or a glob of tasks; None if a lock is named.
        lock: the name of the lock, or a glob of names; None if a task is named.
        by: who holds them.
        why: the reason; "" if none was given.
        since: when this began, as Unix time by the lock server's clock.
        ends_at: when it ends.
    """

    task: str | None
    lock: str | None
    by: str
    why: str
    since: float
    ends_at: float

    @property
    def target(self) -> str:
        """What is held, in words: "task shop.sync" or "lock customer:5"."""
        return target_of(self.task, self.lock)

    @property
    def is_of_one_lock(self) -> bool:
        """Whether it is of one lock, and not of all that match."""
        return self.lock is not None and not is_glob(self.lock)

    def keeps(self, task: str, name: str) -> bool:
        """Whether it keeps this task, "" for a `RedisLock`, from the lock with this name."""
        text, glob = (name, self.lock) if self.task is None else (task, self.task)
        return glob is not None and (text == glob or fnmatchcase(text, glob))

    @property
    def holder(self) -> Holder:
        """The hold as whoever meets it sees it."""
        return Holder(node=self.by, description=self.why, acquired_at=self.since, on_hold=True)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain data."""
        return dataclasses.asdict(self)


def is_glob(text: str) -> bool:
    """Whether the text has characters that stand for others."""
    return _GLOB.search(text) is not None


def target_of(task: str | None, lock: str | None) -> str:
    return f"task {task}" if lock is None else f"lock {lock}"


def hold(
    key: str, ttl: float, task: str | None, lock: str | None, seconds: float, by: str, why: str
) -> Call[Hold | None]:
    """Hold locks: those of a task, or those with a name.

    Args:
        key: the key of all holds, or of a bucket's.
        ttl: seconds; they determine how long the server may take to answer.
        task: the task or a glob of tasks; or None.
        lock: the lock's name or a glob of names; or None.
        seconds: for how long.
        by: who holds them.
        why: the reason.
    """
    reason = cut(one_line(why), LONGEST_REASON)
    fields = {"node": one_line(by), "pid": os.getpid(), "description": reason}
    value = f"{opening_of(task, lock)}{json.dumps(fields)[1:]}"
    how = (to_ms(seconds), lua_pattern(lock), lua_pattern(task), value)
    return _hold(key, ttl, target_of(task, lock), how)


def end(key: str, ttl: float, task: str | None, lock: str | None) -> Call[Hold | None]:
    """End a hold. The answer is the hold, or None if there was none.

    Args:
        key: the key of all holds, or of a bucket's.
        ttl: see `hold`.
        task: the task or the glob that is held; or None.
        lock: the lock's name or the glob that is held; or None.
    """
    return _hold(key, ttl, target_of(task, lock), (0, "", "", ""))


def _hold(key: str, ttl: float, target: str, how: tuple[Any, ...]) -> Call[Hold | None]:
    return Call("hold", (key,), (target, *how), partial(_hold_answer, target), ttl)


def opening_of(task: str | None, lock: str | None) -> str:
    """How the value begins that such a hold has in a lock."""
    return f'{{"token":"","hold":{json.dumps(target_of(task, lock))},'


def all_holds(key: str) -> Query[list[Hold]]:
    """All holds that have not ended, from this key; the first that ends comes first."""
    return Query([("TIME",), ("HGETALL", key)], _holds_at, key)


def _holds_at(replies: list[Any]) -> list[Hold]:
    (seconds, micros), reply = replies
    return holds_in(reply, int(seconds) + int(micros) / 1e6)


def holds_in(replies: Sequence[Any], now: float) -> list[Hold]:
    """The holds that have not ended, from a flat reply; the first that ends comes first."""
    pairs = zip(replies[::2], replies[1::2], strict=True)
    found = (_hold_in(target.decode(errors="replace"), text) for target, text in pairs)
    return sorted(
        (each for each in found if each is not None and each.ends_at > now),
        key=lambda each: each.ends_at,
    )


def _hold_answer(target: str, reply: Any, sent_at: float) -> Hold | None:
    return _hold_in(target, reply)


def _hold_in(target: str, text: bytes) -> Hold | None:
    try:
        ends_ms, _, _, value = json.loads(text)
        holder = holders.parse(value.encode(), None)
    except (ValueError, TypeError, AttributeError):
        return None
    kind, _, what = target.partition(" ")
    if holder is None or holder.acquired_at is None or kind not in ("task", "lock"):
        return None
    return Hold(
        task=what if kind == "task" else None,
        lock=what if kind == "lock" else None,
        by=holder.node or "",
        why=holder.description or "",
        since=holder.acquired_at,
        ends_at=ends_ms / 1000,
    )


def lua_pattern(glob: str | None) -> str:
    """The glob as a pattern of Lua that matches a whole text; "" for None.

    Raises:
        ValueError: the glob has too many stars.
    """
    if glob is None:
        return ""
    if glob.count("*") > MOST_STARS:
        raise ValueError(f"a hold's glob may have {MOST_STARS} stars, and {glob!r} has more")
    parts = re.findall(r"\[!?\]?[^\]]*\]|.", glob, re.DOTALL)
    return f"^{''.join(map(_part_as_pattern, parts))}$"


def _part_as_pattern(part: str) -> str:
    if part in ("*", "?"):
        return ".*" if part == "*" else "."
    if len(part) > 1:
        inside = part[1:-1]
        no = "^" if inside.startswith("!") else ""
        chars = re.sub(r"([%^\]\[])", r"%\1", inside.removeprefix("!"))
        return f"[{no}{chars}]"
    return part if part.isalnum() or not part.isascii() else f"%{part}"
