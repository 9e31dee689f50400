"""The Lua scripts, with their included parts."""

from __future__ import annotations

import hashlib
import pkgutil
import re
from functools import cached_property, lru_cache
from typing import Any

from .connections import pack, pack_parts


class RecurringKeys(tuple[str, ...]):
    """Keys that are likely to be sent again, so they are packed once. Not keys of task attempts."""

    __slots__ = ()


class Script:
    """A script of `scripts/`. Read at first use: a process that only sends tasks needs none."""

    def __init__(self, name: str) -> None:
        self._name = name

    @cached_property
    def text(self) -> str:
        own = _source(self._name)
        return re.sub(r"(?m)^-- include (\w+)\.lua$", lambda found: _source(found[1]), own)

    @cached_property
    def sha(self) -> str:
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def packed(self, keys: tuple[str, ...], arguments: tuple[Any, ...]) -> bytes:
        """The packed command that calls it, if the server knows it."""
        if not isinstance(keys, RecurringKeys):
            return pack(("EVALSHA", self.sha, len(keys), *keys, *arguments))
        count = 3 + len(keys) + len(arguments)
        return b"*%d\r\n%b%b" % (count, _packed_head(self.sha, keys), pack_parts(arguments))

    def packed_text(self, keys: tuple[str, ...], arguments: tuple[Any, ...]) -> bytes:
        """The packed command that calls it and makes it known to the server."""
        return pack(("EVAL", self.text, len(keys), *keys, *arguments))


@lru_cache(maxsize=128)
def _packed_head(sha: str, keys: RecurringKeys) -> bytes:
    """The start of a packed call of this script with these keys."""
    return pack_parts(("EVALSHA", sha, len(keys), *keys))


def _source(name: str) -> str:
    # importlib.resources would take as long to import as the rest of this module.
    data = pkgutil.get_data("celery_redislock", f"scripts/{name}.lua")
    assert data is not None
    return data.decode()


ACQUIRE, EXTEND, SETTLE, HOLD, BREAK = map(Script, ("acquire", "extend", "settle", "hold", "break"))
PARK, LOOK, RECEIVED, RESERVE = map(Script, ("park", "look", "received", "reserve"))
DROP, PUT_BACK, FORGET = map(Script, ("drop", "put_back", "forget"))
TURN_AWAY = Script("turn_away")
