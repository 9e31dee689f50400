"""Connections that fail fast, unlike redis-py's own: their timeouts come from a lock's ttl."""

from __future__ import annotations

import contextlib
import copy
import inspect
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import redis
import redis.asyncio as aio
import redis.asyncio.sentinel as aio_sentinel
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry
from redis.sentinel import (
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)

from ..protocol.clock import clock
from ..protocol.platform import at_fork, notice_fork

try:
    from hiredis import pack_command
except ImportError:
    pack_command = None

#: Seconds for which a used connection counts as alive. If it is not, the next exchange fails.
TRUSTED: Final = 0.5

#: Seconds after which a connection that nobody uses is closed. Firewalls and load balancers forget
#: idle ones without a word, seldom in less than a minute. It stays open if only a broken connection
#: tells of a restart.
IDLE_FOR: Final = 30.0

#: Makes a connection pool, given a timeout in seconds, and what to call with each new connection.
PoolFactory = Callable[[float, Callable[[Any], None]], redis.ConnectionPool]


#: redis-py's classes of connections that block their thread, and those for asyncio.
KINDS: Final[dict[Any, Any]] = {
    redis.Connection: aio.Connection,
    redis.SSLConnection: aio.SSLConnection,
    redis.UnixDomainSocketConnection: aio.UnixDomainSocketConnection,
    SentinelManagedConnection: aio_sentinel.SentinelManagedConnection,
    SentinelManagedSSLConnection: aio_sentinel.SentinelManagedSSLConnection,
}


def unused(connection: Any) -> None:
    """For a pool that opens no connection: nobody calls this."""


def pools_like(client: Any) -> PoolFactory:
    """A factory of pools for this client's server: its own pool's timeouts do not fit a lock."""
    return pools_with_options_of(client)()


def pools_with_options_of(client: Any) -> Callable[..., PoolFactory]:
    """A maker of factories of pools with this client's options, which does not keep the client."""
    pool: Any = getattr(client, "connection_pool", client)
    kind = _blocking(pool.connection_class)
    # Without what belongs to the client, and what only valkey-py knows.
    unfit = {"connection_pool", "parser_class", "decode_responses", "event_dispatcher"}
    known = options_of(kind) - unfit
    kwargs = {
        name: value
        for name, value in pool.connection_kwargs.items()
        if name in known
        and not (name.startswith(("_", "lib_", "orig_", "redis_connect")) or "maint" in name)
    }
    service = getattr(pool, "service_name", None)
    manager = pool.sentinel_manager if service is not None else None

    def pools(**instead: Any) -> PoolFactory:
        def make(timeout: float, on_connect: Callable[[Any], None]) -> redis.ConnectionPool:
            fitted = {**kwargs, **instead, **fit(timeout, on_connect), "connection_class": kind}
            if service is not None:
                return SentinelConnectionPool(service, _sentinel_like(manager, timeout), **fitted)
            return redis.ConnectionPool(**fitted)

        return make

    return pools


def options_of(kind: Any) -> set[str]:
    """What the constructor of a class of connections takes."""
    return {name for each in kind.__mro__ for name in inspect.signature(each.__init__).parameters}


def _blocking(kind: Any) -> Any:
    """redis-py's class of connections like these, which may be for asyncio, or valkey-py's."""
    names = {each.__name__: each for each in KINDS}
    for each in kind.__mro__:
        module = each.__module__
        if module.startswith(("redis.asyncio.", "valkey.")) and each.__name__ in names:
            return names[each.__name__]
    return kind


def _sentinel_like(manager: Any, timeout: float) -> Any:
    options = [each.connection_pool.connection_kwargs for each in manager.sentinels]
    hosts = [(each.get("host", "localhost"), each.get("port", 26379)) for each in options]
    made = sentinel_of(hosts, manager.sentinel_kwargs, timeout)
    if not isinstance(manager, Sentinel):
        made.min_other_sentinels = manager.min_other_sentinels
        return made
    copied = copy.copy(manager)
    copied.sentinels = made.sentinels
    return copied


def explained(error: Exception, pool: redis.ConnectionPool) -> Exception:
    """The error of a new connection of this pool, with what it may mean if only one side speaks
    TLS: a server waits for the rest of a greeting in TLS, and ends a connection without it.
    """
    kind = pool.connection_class
    if issubclass(kind, redis.SSLConnection):
        hint = "the URL asks for TLS: does this port speak it?"
        is_likely = type(error) is RedisTimeoutError
    else:
        hint = "the URL does not ask for TLS: does this port want it?"
        is_met = type(error) is RedisConnectionError and " connecting to" not in str(error)
        is_read = "max number of clients" in str(error)
        is_likely = is_met and not (is_read or issubclass(kind, redis.UnixDomainSocketConnection))
    return type(error)(f"{error}; {hint}") if is_likely else error


def checkout(pool: redis.ConnectionPool) -> Any:
    """Take a connection from the pool, and connect it."""
    try:
        try:
            return _connected(pool)
        except redis.AuthenticationError:
            if pool.connection_kwargs.get("credential_provider") is None:
                raise
            return _connected(pool)  # a token has expired just now: ask the provider again
    except (redis.RedisError, OSError):
        raise
    except BaseException:
        # The handshake was interrupted. redis-py puts the connection back as it is, and its next
        # user would read replies to somebody else's commands.
        pool.disconnect(inuse_connections=False)
        raise


def _connected(pool: redis.ConnectionPool) -> Any:
    return pool.get_connection("EVALSHA") if _WANTS_COMMAND else pool.get_connection()


class Connections:
    """A pool's connections; taking one from redis-py's pool costs as much as an exchange."""

    def __init__(
        self,
        make_pool: Callable[[], redis.ConnectionPool],
        may_close: Callable[[], bool] = lambda: True,
    ) -> None:
        self._make_pool = make_pool
        self._may_close = may_close
        self._is_closed = False
        self._reset()
        _all_connections.add(self)

    def _reset(self) -> None:
        self.pool = self._make_pool()
        # Taking and putting back are one operation each, so no fork can leave a mutex locked.
        self._idle: list[tuple[Any, float]] = []

    def take(self) -> Any:
        """Take a connection that nobody else uses. It is connected."""
        try:
            connection, used_at = self._idle.pop()
        except IndexError:
            notice_fork()
            return checkout(self.pool)
        is_fresh = clock() - used_at < TRUSTED
        # Not one of this process's parent; and only one to the server that the sentinels now call
        # the master.
        if is_fresh and connection.pid == os.getpid() and self.pool.owns_connection(connection):
            return connection
        notice_fork()
        self.pool.release(connection)
        return checkout(self.pool)

    def put_back(self, connection: Any) -> float:
        """Put back a connection whose exchange is complete. Returns the time, on `clock`."""
        now = clock()
        if self._is_closed:
            self.drop(connection)
            return now
        self._idle.append((connection, now))
        try:
            if self._idle[0][1] < now - IDLE_FOR and self._may_close():
                self.drop(self._idle.pop(0)[0])
        except IndexError:
            pass  # other threads have taken them
        return now

    def drop(self, connection: Any) -> None:
        """Close a connection: its exchange was cut short, or its server must no longer be used."""
        connection.disconnect()
        self.pool.release(connection)

    def close_idle(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self.drop(self._idle.pop()[0])
        self.pool.disconnect(inuse_connections=False)

    def close(self) -> None:
        """Close all connections, those that are in use as soon as they are put back."""
        self._is_closed = True
        self.close_idle()


_all_connections: Final[weakref.WeakSet[Connections]] = weakref.WeakSet()


def _reset_after_fork() -> None:
    """In a forked child: begin anew, since what it has inherited is its parent's, mutexes too."""
    for connections in list(_all_connections):
        connections._reset()


at_fork(after_in_child=_reset_after_fork)

#: redis-py 5.0 needs the name of a command; later versions warn of one.
_WANTS_COMMAND: Final = (
    inspect.signature(redis.ConnectionPool.get_connection).parameters["command_name"].default
    is inspect.Parameter.empty
)


def pack(arguments: Sequence[str | int | bytes], head: bool = True) -> bytes:
    """A command, or without `head` a part of one, as sent; half surrogate pairs are escaped."""
    if pack_command is not None:
        try:
            packed: bytes = pack_command(tuple(arguments))
        except UnicodeEncodeError:
            words = (each if isinstance(each, bytes) else _encoded(each) for each in arguments)
            packed = pack_command(tuple(words))
        return packed if head else packed[packed.index(b"\n") + 1 :]
    parts = [b"*%d\r\n" % len(arguments)] if head else []
    for argument in arguments:
        data = argument
        if not isinstance(data, bytes):  # not `_encoded`: this is done for each word
            data = str(data).encode("utf-8", "backslashreplace")
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def _encoded(word: str | int) -> bytes:
    return str(word).encode("utf-8", "backslashreplace")


def _impatient(timeout: float) -> dict[str, Any]:
    return {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        # Each thread or greenlet that asks or waits needs a connection; redis-py 8 stops at 100.
        "max_connections": 2**31,
    }


def fit(timeout: float, on_connect: Callable[[Any], None]) -> dict[str, Any]:
    """The options of every connection of ours."""
    return {
        **_impatient(timeout),
        "retry_on_timeout": False,
        "health_check_interval": 0,
        "decode_responses": False,
        "encoding": "utf-8",
        "encoding_errors": "strict",
        "protocol": 2,
        "redis_connect_func": on_connect,
    }


def sentinel_of(
    hosts: list[tuple[str, int]], kwargs: Mapping[str, Any], timeout: float
) -> Sentinel:
    return Sentinel(hosts, sentinel_kwargs={**kwargs, **_impatient(timeout)})
