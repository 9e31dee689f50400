"""The Lua scripts, with their included parts, and the commands that call them."""

from __future__ import annotations

import hashlib
import pkgutil
import re
from functools import cache, lru_cache
from typing import Any, Final

from ..protocol.exchange import Call
from .connections import pack

#: A script that we leave on a server that does not tell its id. Since Redis 7 the server knows it
#: until it restarts, and no replica does. For older servers, whose replicas may, it is no mark.
MARK: Final = "return redis.REDIS_VERSION_NUM and '%s'"


@cache  # a script is read at its first use: a process that only sends tasks needs none
def text_of(name: str) -> str:
    """The text of a script of `scripts/`."""
    return _with_parts(name, set())


def _with_parts(name: str, known: set[str]) -> str:
    """The text of a script, or of a part, without the parts that are known. What a block of the
    text includes is known only there.
    """

    def part(found: re.Match[str]) -> str:
        indent, name = found.groups()
        return "" if name in known else _with_parts(name, {*known} if indent else known)

    known.add(name)
    return re.sub(r"(?m)^( *)-- include (\w+)\.lua$", part, _source(name))


@cache
def sha_of(name: str) -> str:
    return hashlib.sha1(text_of(name).encode(), usedforsecurity=False).hexdigest()


def packed(call: Call[Any]) -> bytes:
    """The packed command of a call whose script the server knows."""
    keys, args = call.keys, call.args
    if not call.recurs:
        return pack(("EVALSHA", sha_of(call.script), len(keys), *keys, *args))
    count = 3 + len(keys) + len(args)
    return b"*%d\r\n%b%b" % (count, _packed_head(call.script, keys), pack(args, head=False))


def packed_text(call: Call[Any]) -> bytes:
    """The packed command of a call that makes the script known to the server."""
    return pack(("EVAL", text_of(call.script), len(call.keys), *call.keys, *call.args))


def packed_mark(mark: str, is_known: bool) -> bytes:
    """The command whose reply is this mark if the server knows it, or that makes it known."""
    text = MARK % mark
    if not is_known:
        return pack(("EVAL", text, 0))
    return pack(("EVALSHA", hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), 0))


@lru_cache(maxsize=128)
def _packed_head(script: str, keys: tuple[str, ...]) -> bytes:
    """The start of a packed call of this script with these keys."""
    return pack(("EVALSHA", sha_of(script), len(keys), *keys), head=False)


def _source(name: str) -> str:
    # importlib.resources would take as long to import as the rest of this module.
    data = pkgutil.get_data("celery_redislock", f"scripts/{name}.lua")
    assert data is not None
    return data.decode()
