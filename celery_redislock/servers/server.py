"""What every lock server does; an outage is `LockUnavailable`, never a busy or lost lock."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from ..errors import LockUnavailable
from ..protocol.clock import clock
from ..protocol.exchange import Call, Query
from .restarts import HeldOff
from .talk import Begin, make_call, operation_timeout, replies_to, transient

T = TypeVar("T")
Commands: TypeAlias = Sequence[Sequence[Any]]

#: The most seconds for which an acquire or release tries to reach the server.
MAX_TRYING: Final = 2.0
#: The ttl for requests of people, who can wait longer for an answer than a worker.
LOOKING_TTL: Final = 12.0


class Server(ABC):
    """A lock server: `Node` is one Redis server, `Cluster` the nodes of a Redis Cluster, `Quorum`
    independent servers.

    `ttl` is in seconds, and determines how long a server may take to answer, and how long to try.
    `purpose` names the connections to use: a caller that blocks, or must not be late, has its own.
    """

    min_replicas: int  # that must confirm that a lock was taken

    def run(
        self,
        call: Call[T],
        *,
        once: bool = False,
        hold_off: float | None = None,
        purpose: str = "main",
    ) -> T:
        """The answer to a call. Tries again until the server answers, within bounds. After a
        failure a lock may be taken nevertheless: release it.

        If the call takes a new lock, `hold_off` is the seconds that the caller can wait for the end
        of a restarted server's hold-off; None for all of it, a third of the ttl.
        """
        replicas = (self.min_replicas,) if call.takes and self.min_replicas else ()
        began, tries = clock(), None
        # Not by `_persist`: one call fewer here, for each run.
        key, ttl = call.keys[0], call.ttl
        while True:
            try:
                sent_at, reply = self.exchange(key, ttl, purpose, make_call, call, *replicas)
                return call.read(reply, sent_at)
            except (HeldOff, LockUnavailable) as exc:
                tries = tries or Tries(self, key, ttl, once, hold_off, began)
                time.sleep(tries.pause_after(exc))

    def attempt(self, call: Call[T], purpose: str = "main") -> T:
        """One try of `run`. Raises `HeldOff` as it is."""
        replicas = (self.min_replicas,) if call.takes and self.min_replicas else ()
        key, ttl = call.keys[0], call.ttl
        sent_at, reply = self.exchange(key, ttl, purpose, make_call, call, *replicas)
        return call.read(reply, sent_at)

    @abstractmethod
    def run_all(
        self, calls: Sequence[Call[T]], *, ttl: float, purpose: str = "main"
    ) -> list[T | LockUnavailable]:
        """The answers to these calls of one script, in one try; raises if nobody can be asked."""

    @abstractmethod
    def block(self, call: Call[T], wake: str, seconds: float) -> T:
        """Block on the list `wake`, then make a call. Both are sent at once."""

    def ask(self, query: Query[T], *, once: bool = False) -> T:
        """The answer to a query. Tries again until the server answers, within bounds."""
        key, ttl = query.key, query.ttl
        replies = self._persist(
            *(Tries(self, key, ttl, once, 0.0), self.exchange),
            *(key, ttl, "main", replies_to, query.commands, False, True),
        )
        return query.read(replies)

    def replies(
        self,
        commands: Commands,
        ttl: float = LOOKING_TTL,
        *,
        errors: bool = False,
        allows_wrong_type: bool = False,
    ) -> list[Any]:
        """The replies to these commands, in one round trip to each server. The second word of a
        command is its key, if it has one. With `errors` a refusal is a `ResponseError` among the
        replies, with `allows_wrong_type` only that for a key of another type.
        """
        return self._replies(commands, ttl, errors, allows_wrong_type) if commands else []

    @abstractmethod
    def _replies(
        self, commands: Commands, ttl: float, errors: bool, allows_wrong_type: bool
    ) -> list[Any]:
        """See `replies`."""

    @abstractmethod
    def primaries(self) -> dict[str, Server]:
        """All Redis servers that take writes, by their hosts and ports; by "" if there is one."""

    def shards(self) -> dict[str, Server]:
        """The servers that have all keys, by host and port, or ""; raises if one is gone."""
        return {"": self}

    @property
    def outage(self) -> tuple[float, float] | None:
        """When a server was away last, as far as this process knows, on `clock`; None if never."""
        return None

    def together(self, keys: Sequence[str], ttl: float) -> list[list[str]]:
        """These keys in groups: one group for each Redis server."""
        return [list(keys)]

    def joint(self, keys: Sequence[str]) -> list[list[str]]:
        """These keys in groups of which one command may name all: in a cluster each by itself."""
        (reply,) = self.replies([("EXISTS", keys[0], keys[-1])], errors=True)
        return [list(keys)] if isinstance(reply, int) else [[key] for key in keys]

    def exchange(self, key: str, ttl: float, purpose: str, begin: Begin[T], *args: Any) -> T:
        """Have one exchange about this key, or "", on a connection of its own: `begin`, see `talk`,
        is given the `ServerWatch` and these arguments. If it is interrupted, the connection is
        closed: an unread reply must never be taken for the reply to the next command. A quorum has
        none.
        """
        raise NotImplementedError

    @abstractmethod
    def close(self) -> None:
        """Close every connection."""

    def _persist(self, tries: Tries, attempt: Callable[..., T], *args: Any) -> T:
        """Repeat an attempt, with these arguments, until it succeeds, within bounds. See `run`."""
        while True:
            try:
                return attempt(*args)
            except (HeldOff, LockUnavailable) as exc:
                pause = tries.pause_after(exc)
            time.sleep(pause)

    def may_answer_later(self, failure: LockUnavailable) -> bool:
        """Whether another try may help."""
        return transient(failure.__cause__)


class Tries:
    """How long to try to reach a lock server. See `Server.run`."""

    def __init__(
        self,
        server: Server,
        key: str,
        ttl: float,
        once: bool,
        hold_off: float | None,
        began: float | None = None,
    ) -> None:
        self._server, self._key, self._ttl, self._once = server, key, ttl, once
        self._began, self._pause = clock() if began is None else began, 0.02
        self._give_up = self._began + (ttl / 3 + 1 if hold_off is None else hold_off)

    def pause_after(self, failure: HeldOff | LockUnavailable) -> float:
        """Seconds until the next try. Raises the failure if there is none."""
        if isinstance(failure, HeldOff):
            if clock() + failure.seconds > self._give_up:
                raise failure.for_users(self._key) from None
            self._began, self._pause = clock() + failure.seconds, 0.02
            return failure.seconds
        pause, self._pause = self._pause, min(self._pause * 2, 0.5)
        # The last try must begin in time to end within ttl / 3.
        latest = min(self._ttl / 3 - operation_timeout(self._ttl), MAX_TRYING)
        is_late = clock() >= self._began + latest - pause
        if self._once or is_late or not self._server.may_answer_later(failure):
            raise failure
        return pause
