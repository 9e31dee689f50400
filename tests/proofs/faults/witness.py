"""Listens to what a worker's processes and the lock server say to one another, and writes it down.

It hears each command and reply where redis-py's connections pass them on. There it also

* gives the server a room that has less patience with messages that do not come, so that a case in
  which one is lost is short;
* gives it scripts that are broken on purpose, see `broken`.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import deque
from typing import Any

from redis.connection import AbstractConnection

from tests.proofs.history import History
from tests.proofs.wire import Call, call_in, commands_in, fence_in, offer_in, packed

#: Seconds for which a free lock is kept for a task whose message is under way, and after which the
#: message is published again.
KEPT_FOR = 1.5
#: What room.lua says, and what its text is given here, in milliseconds.
_SPANS = {
    "KEPT_FOR = 5000 ": KEPT_FOR,
    "BESIDE_WAITERS = 1000 ": 1.0,
    "LONGEST_CHANCE = 40000 ": 6.0,
    "GOES_LAST_AFTER = 60000 ": 5.0,
}


# -- the witness in a worker's process --------------------------------------------------------


class Witness:
    """Hears everything that this process, and those that it forks, say to the lock server.

    Args:
        history: where it is written.
        main: the worker's main process.
        broken: Lua code by script: it begins the script in the lock server.
    """

    def __init__(self, history: History, main: int, broken: dict[str, str]) -> None:
        self._history, self._main, self._broken = history, main, broken
        #: What a script is called by the package, and by the server, which has another text.
        self._shas: dict[bytes, bytes] = {}
        #: When each question was first asked that has not been answered.
        self._asked: dict[tuple[str, str], float] = {}
        #: Of this process: the locks that it took.
        self._took: dict[tuple[str, int], tuple[str, float, float]] = {}

    def begin(self) -> None:
        """Listen from now on."""
        send, read = AbstractConnection.send_packed_command, AbstractConnection.read_response

        def sends(connection: Any, command: Any, *args: Any, **kwargs: Any) -> Any:
            data = command if isinstance(command, bytes) else b"".join(command)
            waits = connection.__dict__.setdefault("witnessed", deque())
            waits.clear()
            if b"$7\r\nEVALSHA" in data or b"$4\r\nEVAL" in data:
                command, calls = self._sends(data)
                waits.extend((each, time.monotonic()) for each in calls)
            return send(connection, command, *args, **kwargs)

        def reads(connection: Any, *args: Any, **kwargs: Any) -> Any:
            waits = connection.__dict__.get("witnessed")
            call, sent_at = waits.popleft() if waits else (None, 0.0)
            reply = read(connection, *args, **kwargs)
            if isinstance(call, Call):
                self._hears(call, reply, sent_at)
            return reply

        AbstractConnection.send_packed_command = sends
        AbstractConnection.read_response = reads

    def lock_of(self, key: str, fence: int) -> tuple[str, float, float]:
        """Of a lock that this process took: the token; when it was asked for, and until when it was
        this token's then.
        """
        return self._took.get((key, fence), ("", 0.0, 0.0))

    # -- what is sent ---------------------------------------------------------------------

    def _sends(self, data: bytes) -> tuple[list[bytes], list[Call | None]]:
        calls, commands = [], []
        for command in commands_in(data):
            call = call_in(command)
            if call is not None:
                command[:2] = self._as_the_server_knows_it(call, *command[:2])
                self._asks(call)
            calls.append(call)
            commands.append(packed(command))
        return commands, calls

    def _as_the_server_knows_it(self, call: Call, how: bytes, script: bytes) -> list[bytes]:
        if how == b"EVALSHA":
            return [how, self._shas.get(script, script)]
        text = script.decode()
        if "local LONGEST_CHANCE" in text:
            for span, seconds in _SPANS.items():
                assert text.count(f"local {span}") == 1, f"the script has changed: {span}"
                text = text.replace(span, f"{span.partition('=')[0]}= {seconds * 1000:.0f} ")
        text = self._broken.get(call.script, "") + text
        self._shas[_sha(script)] = _sha(text.encode())
        return [how, text.encode()]

    def _asks(self, call: Call) -> None:
        self._asked.setdefault(_question(call), time.monotonic())
        if call.script == "acquire":
            self._write("asks", token=call.token, **self._who(call, call.arg(4)))
        elif call.script == "settle" and call.arg(12):
            self._write("out", entry=call.arg(12), id=_id(call.arg(12)), key=call.keys[0])

    # -- what is answered -----------------------------------------------------------------

    def _hears(self, call: Call, reply: Any, sent_at: float) -> None:
        asked = self._asked.pop(_question(call), sent_at)
        if reply is None and call.script in ("acquire", "settle"):
            # The case is not plain, and nothing was done: it asks again, by the whole script.
            self._asked[_question(call)] = asked
            return
        if call.script == "acquire":
            self._hears_of_acquire(call, reply, asked, sent_at)
        elif call.script == "extend" and reply[0] >= 1:
            until = sent_at + int(call.arg(2)) / 1000
            self._write("beat", token=call.token, sent=sent_at, until=until)
        elif call.script == "park":
            self._hears_of_park(call, reply)
        offer = offer_in(call, reply)
        if offer is not None:
            self._write("offered", id=_id(offer.entry), since=offer.since, key=call.keys[0])

    def _hears_of_acquire(self, call: Call, reply: Any, asked: float, sent_at: float) -> None:
        fence, who = fence_in(reply), self._who(call, call.arg(4))
        self._write(
            "took" if fence else "refused", token=call.token, fence=fence, asked=asked, **who
        )
        if fence:
            # What was granted may be an earlier question, of which the answer was lost.
            right = sent_at + int(call.arg(2)) / 1000
            self._took[call.keys[0], fence] = call.token, asked, right

    def _hears_of_park(self, call: Call, reply: Any) -> None:
        said, *more = reply
        if said in (b"parked", b"ask"):
            replaced = [entry.decode() for entry in more[0][::2]]
            kind = "parked" if said == b"parked" else "replaces"
            self._write(kind, replaced=replaced, **self._who(call, call.arg(3)))

    # -- writing --------------------------------------------------------------------------

    def _write(self, kind: str, **fields: Any) -> None:
        self._history.write(kind, pid=os.getpid(), main=self._main, **fields)

    @staticmethod
    def _who(call: Call, entry: str) -> dict[str, Any]:
        return {"id": _id(entry), "entry": entry, "key": call.keys[0]}


def _question(call: Call) -> tuple[str, str]:
    """What is the same when it is asked again: who asks for what."""
    if call.script == "acquire":
        return call.script, call.token
    return call.script, f"{call.keys[:1]} {call.args[:1]}"


def _id(entry: str) -> str:
    """The id of the task in the id of an entry."""
    return entry.rpartition(":")[0]


def _sha(script: bytes) -> bytes:
    return hashlib.sha1(script, usedforsecurity=False).hexdigest().encode()
