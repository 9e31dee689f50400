"""The Lua scripts, with what they include."""

from __future__ import annotations

import hashlib
import pkgutil
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any


class Script:
    """A script of `scripts/`, read when it is first used: a sender of tasks needs none."""

    def __init__(self, name: str) -> None:
        self._name = name

    @cached_property
    def text(self) -> str:
        own = _source(self._name)
        return re.sub(r"(?m)^-- include (\w+)\.lua$", lambda found: _source(found[1]), own)

    @cached_property
    def sha(self) -> str:
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def call(self, keys: Sequence[str], arguments: Sequence[Any]) -> tuple[Any, ...]:
        """The command that calls it, if the server knows it."""
        return ("EVALSHA", self.sha, len(keys), *keys, *arguments)

    def text_call(self, keys: Sequence[str], arguments: Sequence[Any]) -> tuple[Any, ...]:
        """The command that calls it, and has the server know it."""
        return ("EVAL", self.text, len(keys), *keys, *arguments)


def _source(name: str) -> str:
    # importlib.resources would take as long to import as the rest of this module.
    data = pkgutil.get_data(__package__, f"scripts/{name}.lua")
    assert data is not None
    return data.decode()


ACQUIRE, EXTEND, SETTLE, HOLD, BREAK = map(Script, ("acquire", "extend", "settle", "hold", "break"))
PARK, LOOK, RECEIVED, RESERVE = map(Script, ("park", "look", "received", "reserve"))
DROP, PUT_BACK = map(Script, ("drop", "put_back"))
