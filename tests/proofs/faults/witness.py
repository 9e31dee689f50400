"""Listens to what a worker's processes and the lock server say to one another, and writes it down.

It hears each command and reply where redis-py's connections pass them on. There it also

* stops a process at a step between two of them, until a fault has struck there;
* gives the server a room that has less patience with messages that do not come, so that a case in
  which one is lost is short;
* gives it scripts that are broken on purpose, see `broken`.

A fault arms a step with a file; the first process that comes to the step takes the file away,
writes down that it is there, and stands still until the fault lets it go on, or has killed it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kombu
from redis.connection import AbstractConnection

from tests.proofs.history import Event, History
from tests.proofs.wire import Call, call_in, commands_in, fence_in, name_of, offer_in, packed
from tests.support.waiting import eventually

#: Every step at which a process can be stopped, and what it has just done there.
STEPS = {
    "parking": "it is about to put its task into the room",
    "parked": "its task is in the room; the message is not acknowledged late, nobody was told",
    "settling": "the body is over, and its lock is not given back",
    "offered": "it was told who is next, and has not published that one's message",
    "published": "it has published the message of the one that is next",
    "asking": "it has got a message of the room, and has not asked for the lock",
    "taken": "one of the room has the lock and has left the room; its body has not begun",
    "replacing": "it is about to store that one was replaced",
    "replaced": "it has stored that, and not said so",
    "gave up": "one that waited long enough has left the room; its next policy has not acted",
}
#: Seconds for which a process stands still if nobody lets it go on.
AT_MOST = 20.0

#: Seconds for which a free lock is kept for a task whose message is under way, and after which the
#: message is published again.
KEPT_FOR = 1.5
#: The same while tasks wait in pool slots, as the script has it.
BESIDE_WAITERS = 1.0
#: Seconds after which a task whose message does not come loses its place in the order.
GOES_LAST_AFTER = 5.0
#: What room.lua says, and what its text is given here, in milliseconds.
_SPANS = {
    "KEPT_FOR = 5000 ": KEPT_FOR,
    "BESIDE_WAITERS = 1000 ": BESIDE_WAITERS,
    "LONGEST_CHANCE = 40000 ": 6.0,
    "GOES_LAST_AFTER = 60000 ": GOES_LAST_AFTER,
}


# -- steps, as a fault sees them --------------------------------------------------------------


def _file(path: Path, step: str, lock: str, kind: str) -> Path:
    return path.with_name(f"{path.name}.{step.replace(' ', '_')}.{lock}.{kind}")


@contextlib.contextmanager
def stop_at(history: History, step: str, lock: str = "any") -> Iterator[Step]:
    """The next process that comes to this step, with this lock, stands still there meanwhile."""
    assert step in STEPS, step
    here = Step(history, step, lock)
    here.armed.touch()
    try:
        yield here
    finally:
        here.armed.unlink(missing_ok=True)
        here.let_go()


class Step:
    """A step at which one process is to stop.

    Attributes:
        armed: the file that nobody has taken away yet.
    """

    def __init__(self, history: History, step: str, lock: str) -> None:
        self._history, self._step, self._lock = history, step, lock
        self._since = time.monotonic()
        self.armed = _file(history.path, step, lock, "armed")

    def reached(self, timeout: float = 30.0) -> Event:
        """The process that is there; waits for it."""

        def there() -> list[Event]:
            steps = self._history.events("step")
            return [
                e
                for e in steps
                if (e.name, e.armed_for) == (self._step, self._lock) and e.at > self._since
            ]

        return eventually(there, f"a process is at {self._step!r}", timeout)[-1]

    def let_go(self) -> None:
        """Let it go on."""
        _file(self._history.path, self._step, self._lock, "stopped").unlink(missing_ok=True)


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
        #: Of this process: the locks that it took, the tokens whose bodies are over; the tasks that
        #: it is to publish, and those that it replaced.
        self._took: dict[tuple[str, int], tuple[str, float, float]] = {}
        self._over: set[str] = set()
        self._to_publish: dict[str, str] = {}
        self._replaced: dict[str, str] = {}

    def begin(self) -> None:
        """Listen from now on."""
        send, read = AbstractConnection.send_packed_command, AbstractConnection.read_response
        publish = kombu.Producer.publish

        def sends(connection: Any, command: Any, *args: Any, **kwargs: Any) -> Any:
            data = command if isinstance(command, bytes) else b"".join(command)
            waits = connection.__dict__.setdefault("witnessed", deque())
            waits.clear()
            if b"$7\r\nEVALSHA" in data or b"$4\r\nEVAL" in data:
                command, calls = self._sends(data)
                waits.extend((each, time.monotonic()) for each in calls)
            elif self._replaced and b"celery-task-meta-" in data:
                waits.extend(self._stores(data))
            return send(connection, command, *args, **kwargs)

        def reads(connection: Any, *args: Any, **kwargs: Any) -> Any:
            waits = connection.__dict__.get("witnessed")
            call, sent_at = waits.popleft() if waits else (None, 0.0)
            reply = read(connection, *args, **kwargs)
            if isinstance(call, Call):
                self._hears(call, reply, sent_at)
            elif call is not None:
                self._step("replaced", call)
            return reply

        def publishes(producer: Any, *args: Any, **kwargs: Any) -> Any:
            result = publish(producer, *args, **kwargs)
            lock = self._to_publish.pop((kwargs.get("headers") or {}).get("id"), None)
            if lock is not None:
                self._step("published", lock)
            return result

        AbstractConnection.send_packed_command = sends
        AbstractConnection.read_response = reads
        kombu.Producer.publish = publishes

    def lock_of(self, key: str, fence: int) -> tuple[str, float, float]:
        """Of a lock that this process took: the token; when it was asked for, and until when it was
        this token's then.
        """
        return self._took.get((key, fence), ("", 0.0, 0.0))

    def body_is_over(self, token: str) -> None:
        self._over.add(token)

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
        name, at = _question(call), time.monotonic()
        again = name in self._asked
        self._asked.setdefault(name, at)
        lock = name_of(call.keys[0]) if call.keys else ""
        if call.script == "acquire":
            if call.arg(12):
                self._step("asking", lock)
            self._write("asks", again=again, token=call.token, **self._who(call, call.arg(4)))
        elif call.script == "park":
            self._step("parking", lock)
            if not again:
                self._write("parks", **self._parking(call))
        elif call.script == "settle":
            if call.token in self._over:
                self._step("settling", lock)
            if call.arg(12):
                self._write("out", entry=call.arg(12), id=_id(call.arg(12)), key=call.keys[0])
        elif call.script == "look":
            for member in call.args[3:]:
                self._write("passed over", member=member, key=call.keys[0])

    def _stores(self, data: bytes) -> Iterator[tuple[str | None, float]]:
        """A result is stored; perhaps that one was replaced."""
        for command in commands_in(data):
            about = [part for part in command if part.startswith(b"celery-task-meta-")]
            task_id = about[0].decode().partition("-meta-")[2] if about else ""
            stores = command[0] in (b"SET", b"SETEX")
            lock = self._replaced.pop(task_id, None) if stores else None
            if lock is not None:
                self._step("replacing", lock)
            yield lock, 0.0

    # -- what is answered -----------------------------------------------------------------

    def _hears(self, call: Call, reply: Any, sent_at: float) -> None:
        asked = self._asked.pop(_question(call), sent_at)
        if reply is None and call.script in ("acquire", "settle"):
            # The case is not plain, and nothing was done: it asks again, by the whole script.
            self._asked[_question(call)] = asked
            return
        lock = name_of(call.keys[0]) if call.keys else ""
        if call.script == "acquire":
            self._hears_of_acquire(call, reply, asked, sent_at)
        elif call.script == "extend" and reply[0] >= 1:
            until = sent_at + int(call.arg(2)) / 1000
            self._write("beat", token=call.token, sent=sent_at, until=until)
        elif call.script == "park":
            self._hears_of_park(call, reply, asked)
        offer = offer_in(call, reply)
        if call.script == "settle" and call.arg(12):
            self._step("gave up", lock)
        if offer is not None:
            task_id, about = _id(offer.entry), offer._asdict() | {"key": call.keys[0]}
            self._write("offered", id=task_id, asked=asked, **about)
            self._to_publish[task_id] = lock
            self._step("offered", lock)
        if call.script == "park" and reply[0] == b"parked":
            self._step("parked", lock)
        if call.script == "acquire" and call.arg(12) and fence_in(reply):
            self._step("taken", lock)

    def _hears_of_acquire(self, call: Call, reply: Any, asked: float, sent_at: float) -> None:
        fence, who = fence_in(reply), self._who(call, call.arg(4))
        self._write(
            "took" if fence else "refused", token=call.token, fence=fence, asked=asked, **who
        )
        if fence:
            # What was granted may be an earlier question, of which the answer was lost.
            right = sent_at + int(call.arg(2)) / 1000
            self._took[call.keys[0], fence] = call.token, asked, right

    def _hears_of_park(self, call: Call, reply: Any, asked: float) -> None:
        said, *more = reply
        if said == b"notes":  # nothing was done: it asks again
            self._asked[_question(call)] = asked
            return
        pairs = more[0] if said in (b"parked", b"ask") else []
        replaced = [entry.decode() for entry in pairs[::2]]
        self._replaced.update({_id(each): name_of(call.keys[0]) for each in replaced})
        self._write(
            "parked" if said == b"parked" else "not parked",
            said=said.decode(),
            in_front=call.arg(6) == "1",
            replaces=bool(call.arg(11)),
            replaced=replaced,
            asked=asked,
            **self._parking(call),
        )

    # -- writing --------------------------------------------------------------------------

    def _write(self, kind: str, **fields: Any) -> None:
        self._history.write(kind, pid=os.getpid(), main=self._main, **fields)

    @staticmethod
    def _who(call: Call, entry: str) -> dict[str, Any]:
        about = {"id": _id(entry), "entry": entry, "key": call.keys[0]}
        if call.script == "acquire":
            about |= {"reserved": bool(call.arg(10)), "waits": call.arg(7) not in ("", "try")}
        return about

    def _parking(self, call: Call) -> dict[str, Any]:
        slot = call.arg(1).startswith("=")
        quiet = [int(each) / 1000 for each in call.args[15:17] if each]
        about = {"newest": call.arg(1) if slot else "", "quiet": quiet or None}
        return {**about, **self._who(call, call.arg(3))}

    def _step(self, name: str, lock: str) -> None:
        """Here is that step."""
        for armed_for in (lock, "any"):
            armed, stopped = (
                _file(self._history.path, name, armed_for, kind) for kind in ("armed", "stopped")
            )
            try:
                os.rename(armed, stopped)
            except FileNotFoundError:
                continue
            self._write("step", name=name, armed_for=armed_for)
            give_up = time.monotonic() + AT_MOST
            while stopped.exists() and time.monotonic() < give_up:
                time.sleep(0.005)


def _question(call: Call) -> tuple[str, str]:
    """What is the same when it is asked again: who asks for what."""
    if call.script == "acquire":
        return call.script, call.token
    if call.script == "park":
        return call.script, f"{call.keys[0]} {call.arg(3)}"
    return call.script, f"{call.keys[:1]} {call.args[:1]}"


def _id(entry: str) -> str:
    """The id of the task in the id of an entry."""
    return entry.rpartition(":")[0]


def _sha(script: bytes) -> bytes:
    return hashlib.sha1(script, usedforsecurity=False).hexdigest().encode()
