"""A server: connections, one exchange on one of them, and trying again.

Whatever goes wrong here is raised as `LockUnavailable`: busy, lost and broken stay three things.
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
from ..protocol.clock import clock
from .connections import Connections, PoolFactory, pack
from .lua import Script
from .restarts import HeldOff, ServerWatch

T = TypeVar("T")

#: The most seconds that an acquire or release tries to reach the server.
MAX_TRYING: Final = 2.0
#: The ttl if a lock's own is not known: it says how long the server may take to answer.
UNKNOWN_TTL: Final = 6.0
#: The same for people, who can wait longer than a worker.
LOOKING_TTL: Final = 12.0


def patience(ttl: float) -> float:
    """Seconds within which the last try to reach the server must begin, to end within ttl / 3."""
    return min(ttl / 3 - operation_timeout(ttl), MAX_TRYING)


@lru_cache
def operation_timeout(ttl: float) -> float:
    """Seconds that one command may take: far below ttl / 3, in steps, to share connections."""
    return min(max(math.ceil(ttl / 12 * 20) / 20, 0.1), 1.0)


class Server:
    """A Redis server, and the ways to ask it.

    Args:
        pools: makes connection pools to the server.

    Attributes:
        watch: knows whether the server came back empty.
    """

    def __init__(self, pools: PoolFactory) -> None:
        self._make_pool = pools
        self._connections: dict[tuple[str, float], Connections] = {}
        self.watch = ServerWatch()

    def connection(self, key: str, ttl: float, purpose: str = "main") -> Exchange:
        """A connection to ask about this lock, as long as its ttl allows."""
        return Exchange(self, key, ttl, purpose)

    def connections(self, purpose: str, timeout: float) -> Connections:
        """The connections with this timeout for this purpose."""
        found = self._connections.get((purpose, timeout))
        if found is None:
            # No mutex: one that another thread holds at a fork stays locked in the child.
            made = Connections(partial(self._make_pool, timeout, self.watch.on_connect))
            found = self._connections.setdefault((purpose, timeout), made)
        return found

    def close(self) -> None:
        """Close every connection."""
        closing, self._connections = list(self._connections.values()), {}
        for connections in closing:
            connections.disconnect()

    def script(
        self,
        ttl: float,
        script: Script,
        keys: tuple[str, ...],
        arguments: tuple[Any, ...],
        purpose: str = "main",
    ) -> Any:
        """Call a script until the server answers, within bounds. Returns the reply."""
        _, reply = self.persist(self.once, ttl, script, keys, arguments, False, purpose)
        return reply

    def once(
        self,
        ttl: float,
        script: Script,
        keys: tuple[str, ...],
        arguments: tuple[Any, ...],
        takes: bool = False,
        purpose: str = "main",
    ) -> tuple[float, Any]:
        """Call a script once. Returns when it was sent, on `clock`, and the reply.

        Raises:
            LockUnavailable: the server did not answer.
            HeldOff: the script takes a new lock, and the server has just come back.
        """
        with self.connection(keys[0], ttl, purpose) as connection:
            if takes:
                self.watch.admit(ttl)
            sent_at = clock()
            return sent_at, self.call(connection, script, keys, arguments)

    def call(
        self, connection: Any, script: Script, keys: tuple[str, ...], arguments: tuple[Any, ...]
    ) -> Any:
        try:
            connection.send_packed_command([script.packed(keys, arguments)])
            return connection.read_response()
        except NoScriptError:
            connection.send_packed_command([script.packed_text(keys, arguments)])
            return connection.read_response()

    def call_all(
        self,
        connection: Any,
        script: Script,
        calls: Sequence[tuple[tuple[str, ...], tuple[Any, ...]]],
    ) -> list[Any]:
        """The replies to these calls of a script, and the errors among them, in one round trip."""
        commands = [script.packed(*call) for call in calls]
        connection.send_packed_command([b"".join(commands)])
        replies = [read(connection) for _ in calls]
        again = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if again:
            commands = [commands[i] for i in again]
            commands[0] = script.packed_text(*calls[again[0]])  # makes it known for the others
            connection.send_packed_command([b"".join(commands)])
            for i in again:
                replies[i] = read(connection)
        return replies

    def call_when_woken(
        self,
        connection: Any,
        wake: str,
        seconds: float,
        ttl: float,
        script: Script,
        keys: tuple[str, ...],
        arguments: tuple[Any, ...],
    ) -> tuple[Any, Any]:
        """Block on a wake list, and call the script then. Both are sent together.

        Args:
            connection: to this server.
            wake: the list's key.
            seconds: the longest block.
            ttl: seconds, which say how long the server may take to answer after the block.
            script: the script.
            keys: its keys.
            arguments: its arguments.

        Returns:
            The list's reply or `ResponseError`, and the script's reply.
        """
        block = pack(("BLPOP", wake, f"{seconds:.3f}"))
        connection.send_packed_command([block + script.packed(keys, arguments)])
        if not connection.can_read(seconds + operation_timeout(ttl)):
            raise RedisTimeoutError("the server did not end a wait in time")
        slept, reply = read(connection), read(connection)
        if isinstance(reply, NoScriptError):
            return None, self.call(connection, script, keys, arguments)
        if isinstance(reply, ResponseError):
            raise reply
        return slept, reply

    def persist(self, call: Callable[..., T], ttl: float, *arguments: Any) -> T:
        """Try until the server answers, or until the patience that the ttl allows is over."""
        began = clock()
        pause = 0.02
        while True:
            try:
                return call(ttl, *arguments)
            except LockUnavailable as exc:
                give_up = began + patience(ttl)
                if not transient(exc.__cause__) or clock() + pause >= give_up:
                    raise
            time.sleep(pause)
            pause = min(pause * 2, 0.5)

    def ask(
        self,
        commands: Sequence[Sequence[Any]],
        key: str = "",
        ttl: float = LOOKING_TTL,
        *,
        errors: bool = False,
        wrong_type: bool = False,
    ) -> list[Any]:
        """The replies to these commands, in one round trip.

        Args:
            commands: the commands.
            key: the lock that they are about, or "".
            ttl: seconds, which say how long the server may take to answer.
            errors: return a refusal as a `ResponseError` among the replies, do not raise it.
            wrong_type: the same, only for keys of another type.
        """
        if not commands:
            return []
        with self.connection(key, ttl) as connection:
            connection.send_packed_command([b"".join(map(pack, commands))])
            replies = [read(connection) for _ in commands]
            for reply in replies:
                if not isinstance(reply, ResponseError) or errors:
                    continue
                if not wrong_type or not str(reply).startswith("WRONGTYPE"):
                    raise reply
        return replies


class Exchange:
    """A connection for one exchange. If the exchange is interrupted, the connection is closed:
    an unread reply must never be taken for the reply to the next command.

    Not a generator: the garbage collector ends an interrupted one at any time, which would take the
    pool's lock, and this very thread may hold it.
    """

    __slots__ = ("_connection", "_connections", "_key", "_watch")

    def __init__(self, server: Server, key: str, ttl: float, purpose: str) -> None:
        self._key = key
        self._watch = server.watch
        self._connections = server.connections(purpose, operation_timeout(ttl))

    def __enter__(self) -> Any:
        try:
            self._connection = self._connections.take()
        except (RedisError, OSError) as exc:
            raise self._unavailable(exc) from exc
        return self._connection

    def __exit__(self, kind: Any, exc: BaseException | None, traceback: Any) -> None:
        if exc is None:
            self._watch.answered(self._connections.put_back(self._connection))
            return
        # Leave a server that is not the master: its name may lead to another one by now.
        is_answer = isinstance(exc, ResponseError) and not is_not_master(exc)
        if is_answer or isinstance(exc, HeldOff):
            self._connections.put_back(self._connection)
        else:
            self._connections.drop(self._connection)
        if isinstance(exc, RedisError | OSError):
            raise self._unavailable(exc) from exc

    def _unavailable(self, exc: Exception) -> LockUnavailable:
        self._watch.failed(exc)
        return LockUnavailable(self._key, None, f"{type(exc).__name__}: {exc}")


def read(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as exc:
        return exc


def is_not_master(error: Any) -> bool:
    """Whether a server says that it is not the master any more, or not yet."""
    if isinstance(error, MasterDownError | ReadOnlyError):
        return True
    # How Redis 6 says it if a script wants to write.
    return isinstance(error, ResponseError) and "-READONLY " in str(error)


def transient(error: BaseException | None) -> bool:
    """Whether another try may help: the server is away, loading, or not yet the master."""
    if isinstance(error, ResponseError):
        return is_not_master(error) or str(error).startswith("BUSY ")
    return isinstance(error, RedisConnectionError | RedisTimeoutError | OSError)
