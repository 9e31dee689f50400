"""Looking at a server, for people: it changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

from redis.exceptions import NoPermissionError, ResponseError

from ..errors import LockUnavailable
from . import parked, wire
from .claims import Stored
from .clock import clock
from .keys import LockKeys
from .restarts import info
from .server import Server

#: How many keys one step of a scan looks at: well below a millisecond of the server's time.
SCAN_COUNT: Final = 500


class Looking:
    """What is in one server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def scan(self, pattern: str) -> Iterator[list[bytes]]:
        """All keys that match, by and by; some perhaps twice. Never `KEYS`.

        Raises:
            LockUnavailable: the server did not answer, or does not allow it.
        """
        cursor = b"0"
        while True:
            ((cursor, keys),) = self._server.ask(
                [("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)]
            )
            yield keys
            if cursor == b"0":
                return

    def stored(self, keys: Sequence[bytes | str]) -> tuple[float, list[Stored]]:
        """What is stored under these keys, and the server's time in Unix seconds.

        Raises:
            LockUnavailable: the server did not answer, or does not allow it.
        """
        commands = [(what, key) for key in keys for what in ("GET", "PTTL")]
        (seconds, micros), *replies = self._server.ask([("TIME",), *commands], wrong_type=True)
        found = [
            Stored(value is not None, None if isinstance(value, ResponseError) else value, left)
            for value, left in zip(replies[::2], replies[1::2], strict=True)
        ]
        return int(seconds) + int(micros) / 1e6, found

    def lengths(
        self,
        lists: Sequence[bytes | str],
        sets: Sequence[bytes | str],
        hashes: Sequence[bytes | str] = (),
    ) -> list[int]:
        """How long these lists, sorted sets and hashes are; 0 for what is of another type.

        Raises:
            LockUnavailable: the server did not answer, or does not allow it.
        """
        commands = [
            *(("LLEN", key) for key in lists),
            *(("ZCARD", key) for key in sets),
            *(("HLEN", key) for key in hashes),
        ]
        replies = self._server.ask(commands, wrong_type=True)
        return [0 if isinstance(reply, ResponseError) else int(reply) for reply in replies]

    def waiting(self, keys: LockKeys, most: int) -> list[tuple[str, str]]:
        """The first of those in the waiting room: ids and what was parked.

        Raises:
            LockUnavailable: the server did not answer, or does not allow it.
        """
        (ids,) = self._server.ask([("LRANGE", keys.room, 0, most - 1)])
        entries = self._server.ask([("HGET", keys.entries, each) for each in ids])
        return [
            (
                each.decode(errors="replace"),
                parked.parked_of((entry or b"").decode(errors="replace")),
            )
            for each, entry in zip(ids, entries, strict=True)
        ]

    def set_aside(self, asides: Sequence[bytes | str], most: int) -> list[list[tuple[str, str]]]:
        """About so many of the entries that were set aside, for each of these keys: ids, and what
        was parked.

        Raises:
            LockUnavailable: the server did not answer, or does not allow it.
        """
        commands = [("HSCAN", key, 0, "COUNT", most) for key in asides]
        replies = self._server.ask(commands, wrong_type=True)
        return [
            [] if isinstance(reply, ResponseError) else wire.entries_of(reply[1])
            for reply in replies
        ]

    def all_set_aside(self, keys: LockKeys) -> dict[str, str]:
        """All entries of a lock that were set aside: by their ids, what was parked.

        Raises:
            LockUnavailable: the server did not answer, or does not allow it.
        """
        found: dict[str, str] = {}
        cursor = b"0"
        while True:
            commands = [("HSCAN", keys.aside, cursor, "COUNT", SCAN_COUNT)]
            ((cursor, flat),) = self._server.ask(commands, keys.lock)
            found.update(wire.entries_of(flat))
            if cursor == b"0":
                return found

    def server_info(self) -> dict[str, str]:
        """What the server says of itself.

        Raises:
            LockUnavailable: the server did not answer, or does not allow it.
        """
        (reply,) = self._server.ask([("INFO",)])
        return info(reply)

    def server_config(self, *names: str) -> dict[str, str]:
        """These of the server's settings; nothing if it does not tell.

        Raises:
            LockUnavailable: the server did not answer.
        """
        commands = [("CONFIG", "GET", name) for name in names]
        replies = self._server.ask(commands, errors=True)
        pairs = [reply for reply in replies if not isinstance(reply, ResponseError)]
        return {name: value for pair in pairs for name, value in wire.pairs(pair)}

    def may(self, commands: Sequence[Sequence[str]]) -> list[bool] | None:
        """Whether this user may run each of these commands, none of which is run.

        Returns:
            None if the server cannot say: it is older than Redis 7, or does not allow scripts.

        Raises:
            LockUnavailable: the server did not answer.
        """
        script = "return redis.acl_check_cmd and redis.acl_check_cmd(unpack(ARGV)) and 1 or 0"
        known = "return redis.acl_check_cmd and 1 or 0"
        (can_say,) = self._server.ask([("EVAL", known, 0)], errors=True)
        if can_say != 1:
            return None
        replies = self._server.ask(
            [("EVAL", script, 0, *command) for command in commands], errors=True
        )
        # An error: the server does not know the command.
        return [reply == 1 for reply in replies]

    def reach(self) -> None:
        """Return if the server answers, be it that it denies this user even to ask for its time.

        Raises:
            LockUnavailable: it does not.
        """
        try:
            self.round_trips(1)
        except LockUnavailable as exc:
            if not isinstance(exc.__cause__, NoPermissionError):
                raise

    def denied(self, commands: Sequence[Sequence[str]]) -> list[bool]:
        """Whether the server denies this user each of these commands. They are run, so they must
        be such that change nothing.

        Raises:
            LockUnavailable: the server did not answer.
        """
        replies = self._server.ask(commands, errors=True)
        return [isinstance(reply, NoPermissionError) for reply in replies]

    def round_trips(self, count: int) -> tuple[list[float], float]:
        """How many seconds each of so many round trips took, and the server's clock less ours.

        Raises:
            LockUnavailable: the server did not answer.
        """
        took, ahead = [], 0.0
        for _ in range(count):
            before, began = time.time(), clock()
            ((seconds, micros),) = self._server.ask([("TIME",)])
            took.append(clock() - began)
            if took[-1] == min(took):
                ahead = int(seconds) + int(micros) / 1e6 - before - took[-1] / 2
        return took, ahead

    def eviction_policy(self, ttl: float) -> str | None:
        """The server's `maxmemory-policy` if it has a memory limit, else None.

        Raises:
            LockUnavailable: the server did not answer, or does not tell.
        """
        with self._server.connection("", ttl) as connection:
            connection.send_command("INFO", "memory")
            fields = info(connection.read_response())
        if fields.get("maxmemory", "0") == "0":
            return None
        return fields.get("maxmemory_policy")
