"""Watches a case from outside: follows the history, the processes, and the locks of the dead."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from typing import Any

import redis

from tests.proofs.history import Event, History

#: Seconds between two looks.
LOOK_EVERY = 0.01
#: Seconds between two looks for locks without an expiry.
SCAN_EVERY = 0.5
#: How late this process wakes where nothing is wrong, in seconds.
PUNCTUAL = 0.005
LOCKS = "redislock:*:lock*:*"
#: Ends of a body, and of a conflict, after which nothing more comes of a message.
_ENDS = ("returned", "raised", "rejected")
_CONFLICTS = ("skipped", "skipped with a result", "raised", "already done", "replaced")


class Watcher:
    """A thread that keeps the present state of a case, and writes down what only it can see:
    `dead` (a process ended), `freed` (a dead holder's lock is free), `revived` (it is not, any
    more), `immortal` (a lock has no expiry), `late` (the machine was, for so many seconds).

    Attributes:
        dead: the processes that are gone.
        late: for how many seconds the machine was late so far.
    """

    def __init__(self, history: History, locks: Any, ttl: float) -> None:
        self.dead: set[int] = set()
        self.late = 0.0
        self._history = history
        self._locks = locks
        self._ttl = ttl
        self._seen = 0
        self._inside: dict[str, Event] = {}
        self._open: set[str] = set()
        self._runs: dict[str, str] = {}
        self._acked_by: dict[str, int | None] = {}
        self._parked: set[str] = set()
        self._busy_at = 0.0
        self._pids: dict[int, int] = {}
        self._poll = select.poll()
        #: (key, token) of a dead holder -> when it was found to be free.
        self._graves: dict[tuple[str, str], float | None] = {}
        self._client: redis.Redis | None = None
        self._scan_at = 0.0
        self._mutex = threading.Lock()
        self._end = threading.Event()
        self._threads = [
            threading.Thread(target=run, name="watcher", daemon=True)
            for run in (self._run, self._note_lateness)
        ]

    def __enter__(self) -> Watcher:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()
        for fd in self._pids:
            os.close(fd)

    # -- what there is now ----------------------------------------------------------------

    def inside(self) -> list[Event]:
        """The bodies that are inside, by their starts."""
        return [e for e in list(self._inside.values()) if not {e.pid, e.main} & self.dead]

    def open(self) -> set[str]:
        """The ids of messages of which something may still come."""
        return set(self._open)

    def idle(self) -> float:
        """Seconds since anything was written but signs of life."""
        return time.monotonic() - self._busy_at

    def holder_died(self, task_id: str) -> bool:
        """Whether the worker that acknowledged this message, and nobody got since, is dead."""
        return self._acked_by.get(task_id) in self.dead

    def waits(self, task_id: str) -> bool:
        """Whether this one was put into a waiting room, and was not seen to leave it."""
        return task_id in self._parked

    def graves(self) -> bool:
        """Whether a dead holder's lock is not yet seen to be free."""
        return any(freed is None for freed in list(self._graves.values()))

    def watch(self, pid: int) -> None:
        """Write down when this process ends."""
        with self._mutex:
            if pid in self.dead or pid in self._pids.values():
                return
            try:
                fd = os.pidfd_open(pid)
            except ProcessLookupError:
                self._bury(pid)
                return
            self._pids[fd] = pid
            self._poll.register(fd, select.POLLIN)

    # -- looking --------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._end.wait(LOOK_EVERY):
            for event in self._history.new():
                self._see(event)
            self._look_at_processes()
            self._look_at_graves()
            self._look_for_immortals()

    def _note_lateness(self) -> None:
        """What the machine was late for is nobody's: it stood still, or its cores are crowded,
        and then the bench's processes wait for a core as often as this thread.
        """
        due = time.monotonic() + LOOK_EVERY
        while not self._end.wait(LOOK_EVERY):
            if (now := time.monotonic()) - due > PUNCTUAL:
                self._history.write("late", at=now, seconds=now - due)
                self.late += now - due
            due = time.monotonic() + LOOK_EVERY

    def _see(self, event: Event) -> None:
        if event.kind in ("alive", "late"):
            return
        self._busy_at = max(self._busy_at, event.at)
        if event.kind == "start":
            self._inside[event.run] = event
            self._runs[event.run] = event.id
            for pid in {event.pid, event.main}:
                self.watch(pid)
        elif event.kind == "end":
            self._inside.pop(event.run, None)
            if event.outcome in _ENDS:
                self._open.discard(self._runs.get(event.run, ""))
        elif event.kind == "sent":
            self._open.add(event.id)
        elif event.kind == "conflict" and event.outcome in _CONFLICTS:
            self._open.discard(event.id)
        elif event.kind in ("parked", "replaces"):
            if event.kind == "parked":
                self._parked.add(event.id)
            for entry in event.replaced:
                self._open.discard(entry.rpartition(":")[0])
        elif event.kind in ("took", "out"):
            self._parked.discard(event.id)
        elif event.kind in ("revoked", "failed", "stored"):
            self._open.discard(event.id)
        elif event.kind == "received":
            self._acked_by[event.id] = None
        elif event.kind == "acked":
            self._acked_by[event.id] = event.main

    def _look_at_processes(self) -> None:
        for fd, _ in self._poll.poll(0):
            with self._mutex:
                pid = self._pids.pop(fd)
                self._poll.unregister(fd)
                os.close(fd)
                self._bury(pid)

    def _bury(self, pid: int) -> None:
        self.dead.add(pid)
        self._history.write("dead", pids=[pid])
        for start in list(self._inside.values()):
            if pid in (start.pid, start.main) and start.token:
                self._graves.setdefault((start.key, start.token), None)

    def _look_at_graves(self) -> None:
        recently = time.monotonic() - 2 * self._ttl
        for (key, token), freed_at in list(self._graves.items()):
            if freed_at is not None and freed_at < recently:
                continue
            # It may be any of those that may hold it at once.
            slots = [key.replace(":lock:", f":{slot}:") for slot in ("lock", "lock2")]
            values = self._ask(lambda client, slots=slots: client.mget(slots))
            if values is _NO_ANSWER:
                return
            value = next((v for v in values if v is not None and f'"{token}"' in v), None)
            held = value is not None
            if not held and freed_at is None:
                self._graves[key, token] = time.monotonic()
                self._history.write("freed", key=key, token=token)
            elif held and freed_at is not None:
                del self._graves[key, token]
                self._history.write("revived", key=key, token=token, value=value)

    def _look_for_immortals(self) -> None:
        if time.monotonic() < self._scan_at + SCAN_EVERY:
            return
        self._scan_at = time.monotonic()

        def immortal(client: redis.Redis) -> list[str]:
            return [key for key in client.scan_iter(LOCKS, count=1000) if client.pttl(key) == -1]

        found = self._ask(immortal)
        if found is not _NO_ANSWER:
            for key in found:
                self._history.write("immortal", key=key)

    def _ask(self, question: Any) -> Any:
        """The lock server's answer, asked directly and not by way of the proxy."""
        try:
            if self._client is None:
                self._client = self._locks.client(timeout=0.5)
            return question(self._client)
        except Exception:  # a sentinel that is just failing over says so in many ways
            with contextlib.suppress(Exception):
                if self._client is not None:
                    self._client.close()
            self._client = None
            return _NO_ANSWER


_NO_ANSWER = object()
