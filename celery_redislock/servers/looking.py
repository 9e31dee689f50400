"""Reads what is in a lock server, for people. Changes nothing there."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from redis.exceptions import NoPermissionError, ResponseError

from ..errors import LockUnavailable
from ..protocol.claims import Stored
from ..protocol.clock import clock
from ..protocol.entries import id_in, is_passed_over
from ..protocol.keys import LockKeys
from ..protocol.lost import Lost, marks_in
from ..protocol.rooms import UNTAKEN_AFTER, pairs_in
from .restarts import info
from .rights import Rights
from .server import LOOKING_TTL, Server
from .talk import said_of

#: Keys that one step of a scan looks at: well below a millisecond of the server's time.
SCAN_COUNT: Final = 500
#: The types of keys that are no broker's queue.
NO_QUEUES: Final = ("string", "hash", "set", "zset")


class Room(NamedTuple):
    """What is in a waiting room.

    Attributes:
        now: the server's time in Unix seconds.
        total: how many wait.
        entries: the first that wait: members and stored entries.
        sent: for each of these, the Unix time of its first publication, if it is under way.
        passed_over: for each of these, whether no worker that has looked can publish it.
        untaken: how many no worker takes.
    """

    now: float
    total: int
    entries: list[tuple[str, str]]
    sent: list[float | None]
    passed_over: list[bool]
    untaken: int


class Looking:
    """Reads what is in one server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def scan(self, pattern: str) -> Iterator[list[bytes]]:
        """All keys that match, step by step; some perhaps twice. Uses `SCAN`, never `KEYS`. Looks
        at one Redis server after the other.

        Raises:
            LockUnavailable: the server did not answer, or does not allow it.
        """
        for shard in self._server.shards().values():
            cursor = b"0"
            while True:
                ((cursor, keys),) = shard.replies(
                    [("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)]
                )
                yield keys
                if cursor == b"0":
                    break

    def sample(self, ttl: float = LOOKING_TTL) -> list[bytes]:
        """Some of the keys of one Redis server, but for lists and streams, which may be queues of
        any name. Empty if this user may not look.

        Raises:
            LockUnavailable: the server did not answer.
        """
        rights, asked = Rights(self._server), [("SCAN", "0")]
        # Who may not, is not to be in the server's log of denials.
        allowed = rights.may(asked) or rights.may_queue(asked)
        if not allowed or not all(allowed):
            return []
        commands = [("SCAN", 0, "COUNT", SCAN_COUNT, "TYPE", each) for each in NO_QUEUES]
        pages = self._server.replies(commands, ttl, errors=True)
        return [key for page in pages if not isinstance(page, ResponseError) for key in page[1]]

    def stored(self, keys: Sequence[bytes | str]) -> tuple[float, list[Stored]]:
        """What is stored under these keys, and the server's time in Unix seconds.

        Raises:
            LockUnavailable: the server did not answer, or does not allow it.
        """
        commands = [(what, key) for key in keys for what in ("GET", "PTTL")]
        now, *replies = self._server.replies([("TIME",), *commands], wrong_type=True)
        all_stored = [
            Stored(value is not None, None if isinstance(value, ResponseError) else value, left)
            for value, left in zip(replies[::2], replies[1::2], strict=True)
        ]
        return unix_time(now), all_stored

    def lengths(self, lists: Sequence[bytes | str], sets: Sequence[bytes | str]) -> list[int]:
        """The lengths of these lists and sorted sets; 0 for a key of another type.

        Raises:
            LockUnavailable: the server did not answer, or does not allow it.
        """
        commands = [
            *(("LLEN", key) for key in lists),
            *(("ZCARD", key) for key in sets),
        ]
        replies = self._server.replies(commands, wrong_type=True)
        return [count_in(reply) for reply in replies]

    def room(self, keys: LockKeys, most: int) -> Room:
        """The first entries of a waiting room.

        Raises:
            LockUnavailable: the server did not answer, or does not allow it.
        """
        commands: list[tuple[str | int, ...]] = [
            *(("LLEN", keys.room), ("LRANGE", keys.room, 0, most - 1)),
        ]
        now, *replies = self._server.replies([("TIME",), *commands], wrong_type=True)
        total, ids = [None if isinstance(reply, ResponseError) else reply for reply in replies]
        now, members = unix_time(now), ids or []
        wanted = [
            *(("HGET", keys.entries, each) for each in members),
            *(("ZSCORE", keys.sent, each) for each in members),
            *(("HGET", keys.entries, b"#" + each) for each in members),
        ]
        count, *found = self._server.replies(
            [untaken_command(keys.sent, now), *wanted], wrong_type=True
        )
        texts, scores, states = (found[n * len(members) : (n + 1) * len(members)] for n in range(3))
        texts = [text if isinstance(text, bytes) else b"" for text in texts]
        passed_over = [is_passed_over(each) for each in states]
        flat = [part for pair in zip(members, texts, strict=True) for part in pair]
        return Room(
            now=now,
            total=total or 0,
            entries=list(pairs_in(flat)),
            sent=[
                float(score) / 1000 if isinstance(score, bytes) and not is_passed else None
                for score, is_passed in zip(scores, passed_over, strict=True)
            ],
            passed_over=passed_over,
            untaken=count_in(count),
        )

    def untaken(self, sent: Sequence[bytes | str]) -> list[int]:
        """How many tasks no worker takes, for each of these `sent` keys: they were first published
        more than `UNTAKEN_AFTER` ago.

        Raises:
            LockUnavailable: the server did not answer, or does not allow it.
        """
        (now,) = self._server.replies([("TIME",)])
        commands = [untaken_command(key, unix_time(now)) for key in sent]
        replies = self._server.replies(commands, wrong_type=True)
        return [count_in(reply) for reply in replies]

    def lost(self, keys: Sequence[bytes | str]) -> tuple[float, list[list[Lost]]]:
        """The server's time in Unix seconds, and for each of these keys the runs that go on without
        their lock.

        Raises:
            LockUnavailable: the server did not answer, or does not allow it.
        """
        commands = [("HGETALL", key) for key in keys]
        at, *replies = self._server.replies([("TIME",), *commands], wrong_type=True)
        return unix_time(at), [marks_in(reply, unix_time(at)) for reply in replies]

    def members(self, rooms: Sequence[LockKeys], most: int) -> list[list[str] | None]:
        """For each of these waiting rooms, the entry ids of all who wait; None if they are more
        than `most`.

        Raises:
            LockUnavailable: the server did not answer, or does not allow it.
        """
        commands = [("LRANGE", keys.room, 0, most) for keys in rooms]
        replies = self._server.replies(commands, wrong_type=True)
        all_members = [each if isinstance(each, list) else [] for each in replies]
        short = [members if len(members) <= most else [] for members in all_members]
        # A pending slot is not called by the id of the entry in it.
        wanted = [
            ("HGET", keys.entries, b"#" + member)
            for keys, members in zip(rooms, short, strict=True)
            for member in members
        ]
        states = iter(self._server.replies(wanted, wrong_type=True))
        ids = [[id_in(next(states), member) for member in members] for members in short]
        return [
            found if len(members) <= most else None
            for found, members in zip(ids, all_members, strict=True)
        ]

    def heads(self, rooms: Sequence[LockKeys]) -> tuple[float, list[tuple[int, str, str]]]:
        """The server's time in Unix seconds, and for each of these waiting rooms how many wait, and
        the id and the entry of the first one, "" if they are lost.

        Raises:
            LockUnavailable: the server did not answer, or does not allow it.
        """
        commands = [
            command
            for keys in rooms
            for command in (("LLEN", keys.room), ("LRANGE", keys.room, 0, 0))
        ]
        now, *replies = self._server.replies([("TIME",), *commands], wrong_type=True)
        lengths = [each if isinstance(each, int) else 0 for each in replies[::2]]
        firsts = [each[0] if each and isinstance(each, list) else b"" for each in replies[1::2]]
        entries = self.entries(list(zip(rooms, firsts, strict=True)))
        ids = [each.decode(errors="replace") for each in firsts]
        return unix_time(now), list(zip(lengths, ids, entries, strict=True))

    def entries(self, wanted: Sequence[tuple[LockKeys, bytes | str]]) -> list[str]:
        """The stored entries with these rooms and ids; "" for an entry that is lost.

        Raises:
            LockUnavailable: the server did not answer, or does not allow it.
        """
        asked = [("HGET", keys.entries, entry_id) for keys, entry_id in wanted]
        return [
            each.decode(errors="replace") if isinstance(each, bytes) else ""
            for each in self._server.replies(asked, wrong_type=True)
        ]

    def server_info(self) -> dict[str, str]:
        """The reply to INFO, as a dict.

        Raises:
            LockUnavailable: the server did not answer, or does not allow it.
        """
        (reply,) = self._server.replies([("INFO",)])
        return info(reply)

    def server_config(self, *names: str) -> dict[str, str]:
        """These settings of the server, without those that it refuses to tell.

        Raises:
            LockUnavailable: the server did not answer.
        """
        commands = [("CONFIG", "GET", name) for name in names]
        replies = self._server.replies(commands, errors=True)
        pairs = [reply for reply in replies if not isinstance(reply, ResponseError)]
        return {name: value for pair in pairs for name, value in pairs_in(pair)}

    def reach(self) -> None:
        """Return if the server answers, even if it only says that this user may not use TIME.

        Raises:
            LockUnavailable: the server does not answer.
        """
        try:
            self.round_trips(1)
        except LockUnavailable as exc:
            if not isinstance(exc.__cause__, NoPermissionError):
                raise

    def away(self) -> dict[str, str]:
        """What is wrong with some of the Redis servers among which the keys are divided, by their
        hosts and ports, and with hash slots that none of them has.

        Raises:
            LockUnavailable: none of them can be asked.
        """
        wrong: dict[str, str] = {}
        shards = self._server.without(()).shards()
        for name, shard in shards.items():
            try:
                Looking(shard).reach()
            except LockUnavailable as exc:
                if len(wrong) == len(shards) - 1:
                    raise
                wrong[name] = said_of(exc)
        uncovered = self._server.uncovered()
        if uncovered:
            wrong[f"{uncovered} hash slots"] = "have no node"
        return wrong

    def round_trips(self, count: int) -> tuple[list[float], float]:
        """The seconds that each of this many round trips took, and the server's clock minus ours.

        Raises:
            LockUnavailable: the server did not answer.
        """
        took, ahead = [], 0.0
        for _ in range(count):
            before, began = time.time(), clock()
            (now,) = self._server.replies([("TIME",)])
            took.append(clock() - began)
            if took[-1] == min(took):
                ahead = unix_time(now) - before - took[-1] / 2
        return took, ahead

    def eviction_policy(self, ttl: float) -> str | None:
        """The server's `maxmemory-policy` if it has a memory limit, else None.

        Raises:
            LockUnavailable: the server did not answer, or does not tell.
        """
        (reply,) = self._server.replies([("INFO", "memory")], ttl)
        fields = info(reply)
        if fields.get("maxmemory", "0") == "0":
            return None
        return fields.get("maxmemory_policy")


def unix_time(time_reply: Sequence[bytes]) -> float:
    """The reply to TIME in Unix seconds."""
    seconds, micros = time_reply
    return int(seconds) + int(micros) / 1e6


def count_in(reply: Any) -> int:
    """The number in a reply; 0 for a key of another type."""
    return 0 if isinstance(reply, ResponseError) else int(reply)


def untaken_command(sent: bytes | str, now: float) -> tuple[str | bytes | int, ...]:
    """The command that counts the tasks that no worker takes."""
    return "ZCOUNT", sent, "-inf", int((now - UNTAKEN_AFTER) * 1000)
