"""What every lock server does, be it one Redis server or several: carries calls and queries, and
tries again within bounds.

Raises every failure as `LockUnavailable`: an outage must not look like a busy lock or a lost one.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
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


def latest_start(ttl: float) -> float:
    """Seconds after the first try by which the last one must begin, to end within ttl / 3."""
    return min(ttl / 3 - operation_timeout(ttl), MAX_TRYING)


class Server(ABC):
    """A lock server: `Node` is one Redis server, `Cluster` the nodes of a Redis Cluster, `Quorum`
    independent servers.

    Attributes:
        min_replicas: how many replicas must confirm that a lock was taken.
    """

    min_replicas: int

    def run(
        self,
        call: Call[T],
        *,
        once: bool = False,
        hold_off: float | None = None,
        purpose: str = "main",
    ) -> T:
        """The answer to a call. Tries again until the server answers, within bounds.

        Args:
            call: the call.
            once: do not try again.
            hold_off: if the call takes a new lock: seconds that the caller can wait for a restarted
                server's hold-off to end; None for the whole hold-off, a third of the ttl.
            purpose: the connections to use: a caller that blocks, or must not be late, has its own.

        Raises:
            LockUnavailable: the server did not answer in time, or has just come back; or too few
                replicas confirmed that the lock was taken. The lock may be taken: release it.
        """
        replicas = (self.min_replicas,) if call.takes and self.min_replicas else ()
        began, tries = clock(), None
        # Not by `_persist`: one call fewer here, see `tests/contract/test_costs.py`.
        key, ttl = call.keys[0], call.ttl
        while True:
            try:
                sent_at, reply = self.exchange(key, ttl, purpose, make_call, call, *replicas)
                return call.read(reply, sent_at)
            except (HeldOff, LockUnavailable) as exc:
                tries = tries or Tries(self, key, ttl, once, hold_off, began)
                time.sleep(tries.pause_after(exc))

    def attempt(self, call: Call[T], purpose: str = "main") -> T:
        """One try of `run`.

        Raises:
            HeldOff, LockUnavailable: it failed.
        """
        replicas = (self.min_replicas,) if call.takes and self.min_replicas else ()
        key, ttl = call.keys[0], call.ttl
        sent_at, reply = self.exchange(key, ttl, purpose, make_call, call, *replicas)
        return call.read(reply, sent_at)

    @abstractmethod
    def run_all(
        self, calls: Sequence[Call[T]], *, ttl: float, purpose: str = "main"
    ) -> list[T | LockUnavailable]:
        """The answers to these calls of one script, in one round trip to each server. Tries once.

        Args:
            calls: the calls.
            ttl: seconds; they determine how long the server may take to answer.
            purpose: see `run`.

        Raises:
            LockUnavailable: the server could not be asked at all.
        """

    @abstractmethod
    def block(self, call: Call[T], wake: str, seconds: float) -> T:
        """Block on a list, then make a call. Both are sent at once.

        Args:
            call: the call.
            wake: the list's key.
            seconds: the longest block.

        Raises:
            LockUnavailable: the server did not answer in time, or has just come back.
        """

    def ask(self, query: Query[T], *, once: bool = False) -> T:
        """The answer to a query. Tries again until the server answers, within bounds."""
        key, ttl = query.key, query.ttl
        replies = self._persist(
            *(key, ttl, once, 0.0, self.exchange),
            *(key, ttl, "main", replies_to, query.commands, False, True),
        )
        return query.read(replies)

    def replies(
        self,
        commands: Commands,
        ttl: float = LOOKING_TTL,
        *,
        errors: bool = False,
        wrong_type: bool = False,
    ) -> list[Any]:
        """The replies to these commands, in one round trip to each server.

        Args:
            commands: the commands. The second word of each is its key, if it has one.
            ttl: seconds; they determine how long the server may take to answer.
            errors: return a refusal as a `ResponseError` among the replies, do not raise it.
            wrong_type: the same, but only for keys of another type.
        """
        return self._replies(commands, ttl, errors, wrong_type) if commands else []

    @abstractmethod
    def _replies(self, commands: Commands, ttl: float, errors: bool, wrong_type: bool) -> list[Any]:
        """See `replies`."""

    @abstractmethod
    def primaries(self) -> dict[str, Server]:
        """All Redis servers that take writes, by their hosts and ports; by "" if there is one."""

    def shards(self) -> dict[str, Server]:
        """The servers that have all keys together, by their hosts and ports; by "" if it is one.

        Raises:
            LockUnavailable: nobody says which ones these are; or they do not have all keys, and
                this is no view `without` some.
        """
        return {"": self}

    @property
    def outage(self) -> tuple[float, float] | None:
        """From when until when the server, or one of several, was away last, on `clock`; None if it
        never was, as far as this process has asked it.
        """
        return None

    def uncovered(self) -> int:
        """How many hash slots no server has. What was in them cannot be read."""
        return 0

    def without(self, names: Collection[str]) -> Server:
        """A view without some of the shards, given by their hosts and ports: for their keys,
        `replies` has a `ResponseError`. Only for looking. It shares the connections.
        """
        return self

    def together(self, keys: Sequence[str], ttl: float) -> list[list[str]]:
        """These keys in groups: one group for each Redis server.

        Args:
            keys: some keys.
            ttl: seconds; they determine how long the server may take to answer.
        """
        return [list(keys)]

    def joint(self, keys: Sequence[str]) -> list[list[str]]:
        """These keys, of many hash slots, in groups of which one command may name all. A node
        of a cluster, which may be reached by itself, refuses a command with keys of two slots.
        """
        (reply,) = self.replies([("EXISTS", keys[0], keys[-1])], errors=True)
        return [list(keys)] if isinstance(reply, int) else [[key] for key in keys]

    @abstractmethod
    def exchange(self, key: str, ttl: float, purpose: str, begin: Begin[T], *args: Any) -> T:
        """Have one exchange, on a connection of its own. If it is interrupted, the connection is
        closed: an unread reply must never be taken for the reply to the next command.

        Args:
            key: the key that the exchange is about; "" for none.
            ttl: seconds; they determine how long the server may take to answer.
            purpose: see `run`.
            begin: begins the exchange, see `talk`. It is given the `ServerWatch`.
            *args: its other arguments.
        """

    @abstractmethod
    def close(self) -> None:
        """Close every connection."""

    def _persist(
        self,
        key: str,
        ttl: float,
        once: bool,
        hold_off: float | None,
        attempt: Callable[..., T],
        *args: Any,
    ) -> T:
        """Repeat an attempt, with these arguments, until it succeeds, within bounds. See `run`."""
        began, tries = clock(), None
        while True:
            try:
                return attempt(*args)
            except (HeldOff, LockUnavailable) as exc:
                tries = tries or Tries(self, key, ttl, once, hold_off, began)
                pause = tries.pause_after(exc)
            time.sleep(pause)

    def may_answer_later(self, failure: LockUnavailable) -> bool:
        """Whether another try may help."""
        return transient(failure.__cause__)


class Tries:
    """How long to try to reach a lock server. See `Server.run`.

    Args:
        server: the server.
        key: the key that the request is about.
        ttl: seconds; they determine how long to try.
        once: do not try again.
        hold_off: seconds to wait for the end of a hold-off; None for a whole one.
        began: when the first try began, on `clock`.
    """

    def __init__(
        self,
        server: Server,
        key: str,
        ttl: float,
        once: bool,
        hold_off: float | None,
        began: float,
    ) -> None:
        self._server, self._key, self._ttl, self._once = server, key, ttl, once
        self._give_up = began + (ttl / 3 + 1 if hold_off is None else hold_off)
        self._began, self._pause = began, 0.02

    def pause_after(self, failure: HeldOff | LockUnavailable) -> float:
        """Seconds until the next try.

        Raises:
            LockUnavailable: there is no next try.
        """
        if isinstance(failure, HeldOff):
            if clock() + failure.seconds > self._give_up:
                raise failure.for_users(self._key) from None
            self._began, self._pause = clock() + failure.seconds, 0.02
            return failure.seconds
        pause, self._pause = self._pause, min(self._pause * 2, 0.5)
        is_late = clock() >= self._began + latest_start(self._ttl) - pause
        if self._once or is_late or not self._server.may_answer_later(failure):
            raise failure
        return pause
