"""The marks of runs that go on without the lock that they have lost, for operators. Does no I/O.

Each lock has them in the hash `lost:<name>`, which no script reads:
    fence of the run's acquisition -> <ms until which the mark counts>|<the lock's value, and why>
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from .holders import Holder, cut, loaded, parse

#: Seconds for which a mark counts, if the run's process does not write it anew.
MARK_LIVES: Final = 15.0


class Lost(NamedTuple):
    """A run that goes on without its lock."""

    holder: Holder  # with the fence of its acquisition
    why: str  # it lost the lock; "" if not known


def mark_text(value: str, why: str, now: float) -> str:
    """The mark of a run whose lock had this stored value; `now` is by the server's clock."""
    return f'{(now + MARK_LIVES) * 1000:.0f}|{value[:-1]},"lost":{json.dumps(why)}}}'


def marks_in(reply: Any, now: float) -> list[Lost]:
    """The runs in a reply to HGETALL, in the order of their acquisitions."""
    return sorted(_marks(reply, now), key=lambda each: each.holder.fence or 0)


def _marks(reply: Any, now: float) -> Iterator[Lost]:
    flat: Sequence[bytes] = reply if isinstance(reply, list) else ()
    for text in flat[1::2]:
        until, _, value = text.partition(b"|")
        if re.fullmatch(rb"\d{1,16}", until) and int(until) > now * 1000:
            holder = parse(value, None)
            if holder is not None and holder.fence is not None:
                yield Lost(holder, _why(value))


def _why(value: bytes) -> str:
    record = loaded(value)
    why = record.get("lost") if isinstance(record, dict) else None
    return cut(why) if isinstance(why, str) else ""
