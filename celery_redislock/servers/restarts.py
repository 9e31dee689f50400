"""Notices that a server restarted or was replaced, and may have forgotten locks."""

from __future__ import annotations

import weakref
from collections.abc import Generator
from typing import Any, Final

from redis.crc import REDIS_CLUSTER_HASH_SLOTS
from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    NoPermissionError,
    NoScriptError,
    ResponseError,
)

from ..errors import LockUnavailable
from ..protocol.clock import clock
from ..protocol.tokens import new_token
from .connections import pack
from .scripts import packed_mark

#: A restarted node of a cluster refuses all requests for two seconds, and longer if other nodes are
#: missing. Nobody tells since when it works: we take it for so many seconds after its start.
JOINING: Final = 60.0


class ServerWatch:
    """Notices that another server answers than before, which has forgotten locks. Their holders
    take them again within ttl / 3. Until then nobody may take a new one: a client-side form of the
    delayed restart in https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
    """

    def __init__(self, in_cluster: bool = False) -> None:
        self._in_cluster = in_cluster
        self._run_id: str | None = None
        #: The mark by which a server is known that does not tell its id; None if there is none.
        self._mark: str | None = None
        self._takes_marks = True
        #: When the server answered last, on `clock`, and whether the last contact failed.
        self.last_contact, self.is_broken = 0.0, False
        self.changed_at: float | None = None  # when the server came back, on `clock`
        self.outage: tuple[float, float] | None = None  # see `Server.outage`
        self._connected: weakref.WeakSet[Any] = weakref.WeakSet()

    def meet(self, connection: Any) -> Generator[tuple[bytes, int, float], list[Any], None]:
        """Learn which server a new connection leads to. An exchange, as those in `talk`."""
        (reply,) = yield pack(("INFO", "server")), 1, 0.0
        fields = _fields(reply)
        # Valkey has another name for it.
        mode = fields.get("redis_mode") or fields.get("server_mode")
        if mode == "sentinel":
            raise Unusable(
                "this is a sentinel, which keeps no locks; a URL that begins with"
                " redis+sentinel:// asks it where the server is"
            )
        if mode == "cluster" and not self._in_cluster:
            (reply,) = yield pack(("CLUSTER", "SLOTS")), 1, 0.0
            if not _has_all_slots(reply):
                raise Unusable(
                    "this is one node of a Redis Cluster, and has not all of its locks; the URL of"
                    " a Redis Cluster begins with redis+cluster://"
                )
        run_id, uptime = fields.get("run_id"), float(fields.get("uptime_in_seconds", 0))
        # The uptime may be a second too long: it is the difference of two whole numbers.
        late = 1.0
        if self._in_cluster and run_id is not None and self._came_back(run_id):
            # Holders take their locks again when it works, so the hold-off begins then.
            (reply,) = yield pack(("CLUSTER", "INFO")), 1, 0.0
            if _fields(reply).get("cluster_state") == "fail":
                raise ClusterDownError("the cluster is down")
            late += JOINING
        now = clock()
        started_at, known = now - max(uptime - late, 0.0), self.changed_at
        if run_id is None:
            is_same, mark = yield from self._ask_for_mark()
            # If it cannot be told: after a broken connection it may be another server.
            may_be_other = self.is_broken or connection in self._connected
            if is_same is False or (is_same is None and may_be_other):
                self.changed_at = clock()
            self._mark = mark
        elif self._run_id is None:
            # Our first contact with a server. If it was away before, it may have forgotten locks.
            if self.is_broken:
                self.changed_at = started_at
        elif run_id != self._run_id:
            # A server younger than our last contact was restarted; an older one was promoted, at an
            # unknown time.
            restarted = uptime < now - self.last_contact
            self.changed_at = started_at if restarted else now
        if self.is_broken or self.changed_at != known:
            self.outage = (self.last_contact, now)
        self._connected.add(connection)
        self._run_id = run_id
        self.is_broken = False
        self.last_contact = now

    def _ask_for_mark(
        self,
    ) -> Generator[tuple[bytes, int, float], list[Any], tuple[bool | None, str | None]]:
        """Whether it is the server that has our mark, None if nobody can tell; and its mark now."""
        known, is_same = self._mark, None
        if known is not None:
            (reply,) = yield packed_mark(known, is_known=True), 1, 0.0
            if isinstance(reply, bytes):
                return True, known
            if isinstance(reply, NoPermissionError):
                return None, None
            if not isinstance(reply, NoScriptError):
                raise reply
            is_same = False
        if not self._takes_marks:
            return is_same, None
        mark = new_token()  # a new one: forked processes know the last one, too
        (reply,) = yield packed_mark(mark, is_known=False), 1, 0.0
        self._takes_marks = reply is not None
        return is_same, mark if isinstance(reply, bytes) else None

    def tells_id(self) -> bool:
        """Whether a restart of the server is noticed by more than a connection that breaks."""
        return self._run_id is not None or self._mark is not None

    def _came_back(self, run_id: str) -> bool:
        return self.is_broken if self._run_id is None else run_id != self._run_id

    def failed(self, error: BaseException) -> None:
        self.is_broken = self.is_broken or not isinstance(error, ResponseError)
        if isinstance(error, BusyLoadingError):
            self.changed_at = clock()

    def admit(self, ttl: float) -> None:
        """Raise `HeldOff` if no new lock with this ttl may be taken yet."""
        if self.changed_at is None:
            return
        left = self.changed_at + ttl / 3 - clock()
        if left > 0:
            raise HeldOff(left)


def _has_all_slots(reply: Any) -> bool:
    """Whether one node has all of a cluster's hash slots, as the reply to CLUSTER SLOTS says."""
    if isinstance(reply, ResponseError):
        return True  # we may not ask; requests will be told where their slot is
    count = sum(last + 1 - first for first, last, *_ in reply)
    return count == REDIS_CLUSTER_HASH_SLOTS and len({tuple(each[2][:2]) for each in reply}) == 1


def _fields(reply: Any) -> dict[str, str]:
    """What a reply says; nothing if it is a refusal: an ACL may deny the command."""
    return {} if isinstance(reply, ResponseError) else info(reply)


def info(reply: bytes) -> dict[str, str]:
    return dict(line.split(":", 1) for line in reply.decode().splitlines() if ":" in line)


class Unusable(ResponseError):
    """A server answers, but cannot keep the locks, or not all of them. The text says why."""


class HeldOff(Exception):
    """A server came back, and for this many seconds nobody may take a new lock there."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def for_users(self, key: str) -> LockUnavailable:
        why = f"the server may have restarted or failed over: no new locks for {self.seconds:.1f} s"
        return LockUnavailable(key, None, why)
