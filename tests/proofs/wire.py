"""What a worker and its lock server say to one another, as it goes over the wire. Pure.

Which keys there are: docs/inside/redis.md. The head of each script says what its keys, arguments
and replies are. A script is known here by the kinds of its first keys.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

SCRIPTS = {
    ("lock", "fence", "waiters"): "acquire",
    ("lock", "fence", "broken"): "extend",
    ("lock", "waiters", "wake"): "settle",
    ("lock", "room", "entries"): "look",
}


def lock_key(name: str, prefix: str = "redislock") -> str:
    """The key of the lock with this name."""
    return f"{prefix}:{{{zlib.crc32(name.encode()) % 1024}}}:lock:{name}"


def kind_of(key: str) -> str:
    """What is in this key, such as "lock2" or "room"."""
    return key.partition("}:")[2].partition(":")[0]


def name_of(key: str) -> str:
    """The name of the lock whose key this is."""
    return key.partition("}:")[2].partition(":")[2]


class Call(NamedTuple):
    """A call of a script: its name as in `SCRIPTS`, or "park", or ""; its keys and arguments."""

    script: str
    keys: Sequence[str]
    args: Sequence[str]

    def arg(self, number: int) -> str:
        """As the script's head numbers them; "" if there are not so many."""
        return self.args[number - 1] if number <= len(self.args) else ""

    @property
    def token(self) -> str:
        """The token with which the first argument opens."""
        return self.args[0].split('"', 4)[3]


class Offer(NamedTuple):
    """Who of a room is to be published now: its entry, and since how many seconds it was."""

    entry: str
    since: float


def commands_in(data: bytes) -> Iterator[list[bytes]]:
    """The commands in what was sent, as far as they are whole."""
    at = 0
    while at < len(data) and data[at : at + 1] == b"*":
        head = data.find(b"\r\n", at)
        count, at, command = int(data[at + 1 : head]), head + 2, []
        for _ in range(count):
            head = data.find(b"\r\n", at)
            if head < 0:
                return
            length = int(data[at + 1 : head])
            command.append(data[head + 2 : head + 2 + length])
            at = head + 2 + length + 2
        if at > len(data):
            return
        yield command


def packed(command: Sequence[bytes]) -> bytes:
    """A command as it is sent."""
    parts = (b"$%d\r\n%b\r\n" % (len(part), part) for part in command)
    return b"*%d\r\n%b" % (len(command), b"".join(parts))


def call_in(command: Sequence[bytes]) -> Call | None:
    """The call of a script that this command is; None if it is another command."""
    if command[0] not in (b"EVAL", b"EVALSHA"):
        return None
    texts = [part.decode(errors="replace") for part in command[2:]]
    count = int(texts[0])
    keys, args = texts[1 : count + 1], texts[count + 1 :]
    script = SCRIPTS.get(tuple(map(kind_of, keys[:3])), "")
    if script == "look" and (len(keys) < 5 or kind_of(keys[4]) != "ended"):
        script = ""
    elif script == "look" and len(keys) > 8 and kind_of(keys[8]) == "done":
        script = "park"
    return Call(script, keys, args)


def fence_in(reply: Any) -> int:
    """The fence in the reply to an acquire; 0 if it is refused."""
    if isinstance(reply, int):
        return reply
    return int(reply[2]) if reply[0] == b"acquired" else 0


def offer_in(call: Call, reply: Any) -> Offer | None:
    """Whose message the caller is to publish."""
    offered: Any = ()
    if call.script == "acquire":
        offered = reply[5:] if isinstance(reply, list) and reply[0] == b"busy" else ()
    elif call.script == "park":
        offered = reply[2] if reply[0] == b"parked" else ()
    elif call.script == "settle":
        offered = reply[2:] if isinstance(reply, list) else ()
    elif call.script == "look":
        offered = reply[1]
    if not offered:
        return None
    return Offer(offered[1].decode(), offered[4] / 1000)
