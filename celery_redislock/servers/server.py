"""The driver of one Redis server: carries calls and queries, and tries again within bounds.

Raises every failure as `LockUnavailable`: an outage must not look like a busy lock or a lost one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Final, TypeVar

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import (
    MasterDownError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..errors import LockUnavailable
from ..protocol.claims import Busy
from ..protocol.clock import clock
from ..protocol.exchange import Call, Query
from .connections import Connections, PoolFactory, pack
from .restarts import HeldOff, ServerWatch
from .scripts import packed, packed_text

T = TypeVar("T")

#: The most seconds for which an acquire or release tries to reach the server.
MAX_TRYING: Final = 2.0
#: The ttl for requests of people, who can wait longer for an answer than a worker.
LOOKING_TTL: Final = 12.0


def patience(ttl: float) -> float:
    """Seconds within which the last try to reach the server must begin, to end within ttl / 3."""
    return min(ttl / 3 - operation_timeout(ttl), MAX_TRYING)


@lru_cache
def operation_timeout(ttl: float) -> float:
    """Seconds that one command may take: far below ttl / 3, and in steps, to share connections."""
    return min(max(math.ceil(ttl / 12 * 20) / 20, 0.1), 1.0)


class Server:
    """A Redis server.

    Args:
        pools: makes connection pools to the server.

    Attributes:
        watch: knows whether the server came back empty.
    """

    def __init__(self, pools: PoolFactory) -> None:
        self._make_pool = pools
        self._connections: dict[tuple[str, float], Connections] = {}
        self.watch = ServerWatch()

    # -- requests -------------------------------------------------------------------------

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
            LockUnavailable: the server did not answer in time, or has just come back.
        """
        while True:
            sent_at, reply = self._persist(
                call.keys[0], call.ttl, purpose, once, hold_off, self._call, call
            )
            wider = call.wider and call.wider(reply)
            if not wider:
                return call.read(reply, sent_at)
            call = wider

    def run_all(
        self, calls: Sequence[Call[T]], *, ttl: float, purpose: str = "main"
    ) -> list[T | LockUnavailable]:
        """The answers to these calls of one script, in one round trip. Tries once.

        Args:
            calls: the calls.
            ttl: seconds; they determine how long the server may take to answer.
            purpose: see `run`.

        Raises:
            LockUnavailable: the server could not be asked at all.
        """
        sent_at, replies = self.exchange(calls[0].keys[0], ttl, purpose, self._call_all, calls)
        return [
            LockUnavailable(call.keys[0], None, str(reply))
            if isinstance(reply, Exception)
            else call.read(reply, sent_at)
            for call, reply in zip(calls, replies, strict=True)
        ]

    def block(self, call: Call[T], wake: str, seconds: float) -> T:
        """Block on a list, then make a call. Both are sent together.

        Args:
            call: the call.
            wake: the list's key.
            seconds: the longest block.

        Raises:
            LockUnavailable: the server did not answer in time, or has just come back.
        """
        try:
            answer: T = self.exchange(
                call.keys[0], call.ttl, "wait", self._block, call, wake, seconds
            )
            return answer
        except HeldOff as exc:
            raise exc.for_users(call.keys[0]) from None

    def ask(self, query: Query[T], *, once: bool = False) -> T:
        """The answer to a query. Tries again until the server answers, within bounds.

        Raises:
            LockUnavailable: the server did not answer in time, or does not allow it.
        """
        answer: T = self._persist(query.key, query.ttl, "main", once, 0.0, self._query, query)
        return answer

    def replies(
        self,
        commands: Sequence[Sequence[Any]],
        ttl: float = LOOKING_TTL,
        *,
        errors: bool = False,
        wrong_type: bool = False,
    ) -> list[Any]:
        """The replies to these commands, in one round trip.

        Args:
            commands: the commands.
            ttl: seconds; they determine how long the server may take to answer.
            errors: return a refusal as a `ResponseError` among the replies, do not raise it.
            wrong_type: the same, but only for keys of another type.

        Raises:
            LockUnavailable: the server did not answer, or refuses one of the commands.
        """
        if not commands:
            return []
        return self.exchange("", ttl, "main", _replies, commands, errors, wrong_type)

    def _persist(
        self,
        key: str,
        ttl: float,
        purpose: str,
        once: bool,
        hold_off: float | None,
        talk: Callable[..., T],
        *args: Any,
    ) -> T:
        """Repeat an exchange until the server answers, within bounds. See `run`."""
        began, pause = clock(), 0.02
        give_up = began + (ttl / 3 + 1 if hold_off is None else hold_off)
        while True:
            try:
                return self.exchange(key, ttl, purpose, talk, *args)
            except HeldOff as exc:
                if clock() + exc.seconds > give_up:
                    raise exc.for_users(key) from None
                time.sleep(exc.seconds)
                began, pause = clock(), 0.02
                continue
            except LockUnavailable as exc:
                if once or not self._tries_again(exc, began + patience(ttl) - pause):
                    raise
            time.sleep(pause)
            pause = min(pause * 2, 0.5)

    # -- one exchange ---------------------------------------------------------------------

    def exchange(self, key: str, ttl: float, purpose: str, talk: Callable[..., T], *args: Any) -> T:
        """Have one exchange, on a connection of its own. If it is interrupted, the connection is
        closed: an unread reply must never be taken for the reply to the next command.
        """
        timeout = operation_timeout(ttl)
        connections = self._connections.get((purpose, timeout))
        if connections is None:
            connections = self._new_connections(purpose, timeout)
        try:
            connection = connections.take()
        except (RedisError, OSError) as exc:
            raise self._unavailable(key, exc) from exc
        try:
            result = talk(connection, *args)
        except BaseException as exc:
            # Leave a server that is not the master: its name may lead to another server by now.
            is_answer = isinstance(exc, ResponseError) and not is_not_master(exc)
            if is_answer or isinstance(exc, HeldOff):
                connections.put_back(connection)
            else:
                connections.drop(connection)
            if isinstance(exc, RedisError | OSError):
                raise self._unavailable(key, exc) from exc
            raise
        self.watch.last_contact = connections.put_back(connection)
        return result

    def _unavailable(self, key: str, exc: Exception) -> LockUnavailable:
        self.watch.failed(exc)
        return LockUnavailable(key, None, f"{type(exc).__name__}: {exc}")

    def _tries_again(self, exc: LockUnavailable, until: float) -> bool:
        """Whether another try may help, and there is time for it."""
        return transient(exc.__cause__) and clock() < until

    def _call(self, connection: Any, call: Call[Any]) -> tuple[float, Any]:
        """When the call was sent, on `clock`, and the reply."""
        if call.takes and self.watch.changed_at is not None:
            self.watch.admit(call.ttl)
        sent_at = clock()
        try:
            connection.send_packed_command([packed(call)])
            return sent_at, connection.read_response()
        except NoScriptError:
            connection.send_packed_command([packed_text(call)])
            return sent_at, connection.read_response()

    def _call_all(self, connection: Any, calls: Sequence[Call[Any]]) -> tuple[float, list[Any]]:
        sent_at = clock()
        connection.send_packed_command([b"".join(map(packed, calls))])
        replies = [read(connection) for _ in calls]
        again = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if again:
            commands = [packed(calls[i]) for i in again]
            commands[0] = packed_text(calls[again[0]])  # the server then knows it for the others
            connection.send_packed_command([b"".join(commands)])
            for i in again:
                replies[i] = read(connection)
        if any(is_not_master(reply) for reply in replies):
            connection.disconnect()
        return sent_at, replies

    def _block(self, connection: Any, call: Call[T], wake: str, seconds: float) -> T:
        self.watch.admit(call.ttl)
        sent_at = clock()
        block = pack(("BLPOP", wake, f"{seconds:.3f}"))
        connection.send_packed_command([block + packed(call)])
        if not connection.can_read(seconds + operation_timeout(call.ttl)):
            raise RedisTimeoutError("the server did not end a wait in time")
        slept, reply = read(connection), read(connection)
        if isinstance(reply, NoScriptError):
            slept, (_, reply) = None, self._call(connection, call)
        if isinstance(reply, ResponseError):
            raise reply
        answer = call.read(reply, sent_at)
        if isinstance(slept, ResponseError) and isinstance(answer, Busy):
            raise slept  # there was no sleep: the caller must not ask again at once
        # Another thread may have noticed a new server meanwhile.
        self.watch.admit(call.ttl)
        return answer

    def _query(self, connection: Any, query: Query[T]) -> T:
        return query.read(_replies(connection, query.commands, wrong_type=True))

    # -- connections ----------------------------------------------------------------------

    def _new_connections(self, purpose: str, timeout: float) -> Connections:
        # No mutex: one that another thread holds at a fork stays locked in the child.
        made = Connections(partial(self._make_pool, timeout, self.watch.on_connect))
        return self._connections.setdefault((purpose, timeout), made)

    def close(self) -> None:
        """Close every connection."""
        closing, self._connections = list(self._connections.values()), {}
        for connections in closing:
            connections.disconnect()


def _replies(
    connection: Any,
    commands: Sequence[Sequence[Any]],
    errors: bool = False,
    wrong_type: bool = False,
) -> list[Any]:
    connection.send_packed_command([b"".join(map(pack, commands))])
    replies = [read(connection) for _ in commands]
    for reply in replies:
        if not isinstance(reply, ResponseError) or errors:
            continue
        if not wrong_type or not str(reply).startswith("WRONGTYPE"):
            raise reply
    return replies


def read(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as exc:
        return exc


def is_not_master(error: Any) -> bool:
    """Whether this is a server's reply that it is not the master any more, or not yet."""
    if isinstance(error, MasterDownError | ReadOnlyError):
        return True
    # Redis 6 says this if a script wants to write.
    return isinstance(error, ResponseError) and "-READONLY " in str(error)


def transient(error: BaseException | None) -> bool:
    """Whether another try may help: the server is away, loading, or not yet the master."""
    if isinstance(error, ResponseError):
        return is_not_master(error) or str(error).startswith("BUSY ")
    return isinstance(error, RedisConnectionError | RedisTimeoutError | OSError)
