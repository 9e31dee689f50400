"""Looks at a lock server, for people: its keys, its state and its settings. Changes nothing."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from redis.exceptions import NoPermissionError, ResponseError

from ..errors import LockUnavailable
from ..protocol.clock import clock
from ..protocol.rooms import pairs_in
from .restarts import info
from .scripts import MARK
from .server import LOOKING_TTL, Commands, Server

T = TypeVar("T")

#: Keys that one step of a scan looks at: well below a millisecond of the server's time.
SCAN_COUNT: Final = 500
#: The types of keys that are no broker's queue.
NO_QUEUES: Final = ("string", "hash", "set", "zset")


def scan(server: Server, pattern: str) -> Iterator[list[bytes]]:
    """All keys that match, step by step, some perhaps twice; one server after the other."""
    for shard in server.shards().values():
        cursor = b"0"
        while True:
            ((cursor, keys),) = shard.replies(
                [("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)]
            )
            yield keys
            if cursor == b"0":
                break


def sample(server: Server, ttl: float = LOOKING_TTL) -> list[bytes]:
    """Some keys of one Redis server that are no queues; empty if this user may not look."""
    # Trying it puts a user who may not into the server's log of denials.
    if may(server, [("SCAN", "0")]) == [False]:
        return []
    commands = [("SCAN", 0, "COUNT", SCAN_COUNT, "TYPE", each) for each in NO_QUEUES]
    pages = server.replies(commands, ttl, errors=True)
    return [key for page in pages if not isinstance(page, ResponseError) for key in page[1]]


def may(server: Server, commands: Commands) -> list[bool] | None:
    """Whether this user may run each of these; None if the server, before Redis 7, cannot say."""
    script = "return redis.acl_check_cmd and redis.acl_check_cmd(unpack(ARGV)) and 1 or 0"
    known = "return redis.acl_check_cmd and 1 or 0"
    if server.replies([("EVAL", known, 0)], errors=True) != [1]:
        return None
    asked = [("EVAL", script, 0, *command) for command in commands]
    # An error means that the server does not know the command.
    return [reply == 1 for reply in server.replies(asked, errors=True)]


def may_mark(server: Server) -> bool:
    """Whether a restart of the server is noticed though it does not tell its id. See `MARK`."""
    (reply,) = server.replies([("EVAL", MARK % "", 0)], errors=True)
    return isinstance(reply, bytes)


def read(server: Server, commands: Sequence[Sequence[Any]]) -> tuple[float, list[Any]]:
    """The server's time in Unix seconds, and the replies; None for a key of another type."""
    now, *replies = server.replies([("TIME",), *commands], allows_wrong_type=True)
    return unix_time(now), [None if isinstance(each, ResponseError) else each for each in replies]


def in_batches(items: Iterable[T], most: int) -> Iterator[list[T]]:
    """The items in lists of at most this many: what is asked for in one round trip."""
    left = iter(items)
    while batch := [*itertools.islice(left, most)]:
        yield batch


def server_info(server: Server, *sections: str, ttl: float = LOOKING_TTL) -> dict[str, str]:
    """The reply to INFO, as a dict: these sections of it, or what the server thinks fit."""
    (reply,) = server.replies([("INFO", *sections)], ttl)
    return info(reply)


def server_config(server: Server, name: str) -> str | None:
    """The value of this setting; None if the server refuses to tell it."""
    (reply,) = server.replies([("CONFIG", "GET", name)], errors=True)
    return None if isinstance(reply, ResponseError) else dict(pairs_in(reply)).get(name)


def eviction_policy(server: Server, ttl: float) -> str | None:
    """The server's `maxmemory-policy` if it has a memory limit, else None."""
    fields = server_info(server, "memory", ttl=ttl)
    return None if fields.get("maxmemory", "0") == "0" else fields.get("maxmemory_policy")


def reach(server: Server) -> None:
    """Return if the server answers, even if it only says that this user may not use TIME."""
    try:
        round_trips(server, 1)
    except LockUnavailable as exc:
        if not isinstance(exc.__cause__, NoPermissionError):
            raise


def round_trips(server: Server, count: int) -> tuple[list[float], float]:
    """The seconds that each of this many round trips took, and the server's clock minus ours."""
    took, ahead = [], 0.0
    for _ in range(count):
        before, began = time.time(), clock()
        (now,) = server.replies([("TIME",)])
        took.append(clock() - began)
        if took[-1] == min(took):
            ahead = unix_time(now) - before - took[-1] / 2
    return took, ahead


def unix_time(time_reply: Sequence[bytes]) -> float:
    seconds, micros = time_reply
    return int(seconds) + int(micros) / 1e6
