"""A connection of redis-py's asyncio client, for one exchange at a time."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import select
import socket
from functools import partial
from typing import Any, Final, TypeVar

from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import SentinelConnectionPool

from ..protocol.clock import clock
from .connections import KINDS, PoolFactory, options_of, unused
from .restarts import ServerWatch
from .talk import Talk
from .threads import in_thread

T = TypeVar("T")

#: Seconds by which a timer is late if the loop stood still. A reply may have come meanwhile.
STOOD_STILL: Final = 0.05
#: Seconds after which certificates are read again: they may have been renewed.
TLS_FOR: Final = 30.0


class Wires:
    """Makes connections like those of a pool that blocks its threads."""

    def __init__(self, pools: PoolFactory, watch: ServerWatch) -> None:
        self.pool: Any = pools(1.0, unused)
        self._watch = watch
        self._tls: Any = None
        self._tls_since = -math.inf
        kind = self.pool.connection_class
        kwargs = self.pool.connection_kwargs
        self._of_sentinel = isinstance(self.pool, SentinelConnectionPool)
        if self._of_sentinel:
            kind = SSLConnection if issubclass(kind, SSLConnection) else Connection
            kwargs = {name: kwargs[name] for name in kwargs if name != "connection_pool"}
        self._kind: Any = KINDS.get(kind)
        self._kwargs = {
            **kwargs,
            "socket_timeout": None,  # see `Wire.hold`
            "socket_connect_timeout": None,  # see `_made_in_time`
            "retry": Retry(NoBackoff(), 0),
            "redis_connect_func": None,
        }

    @property
    def can_be_made(self) -> bool:
        """Whether asyncio has such connections, with all of their options."""
        return self._kind is not None and not {*self._kwargs} - options_of(self._kind)

    async def make(self, timeout: float) -> Wire:
        """A new connection, made within so many seconds."""
        try:
            return await self._made_in_time(timeout)
        except AuthenticationError:
            if self._kwargs.get("credential_provider") is None:
                raise
        # A token has expired just now: ask the provider again.
        return await self._made_in_time(timeout)

    async def _made_in_time(self, timeout: float) -> Wire:
        """A new connection, within so many seconds in which the loop was not blocked."""
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(self._made(timeout))
        try:
            for _ in range(2):
                due = loop.time() + timeout
                await asyncio.wait({task}, timeout=timeout)
                if task.done():
                    return task.result()
                if loop.time() <= due + STOOD_STILL:
                    break
            raise RedisTimeoutError("no connection within the time")
        except BaseException:
            if not task.cancel() and not task.cancelled() and task.exception() is None:
                task.result().close()  # it was made just when we were cancelled
            raise

    async def _made(self, timeout: float) -> Wire:
        where = {}
        if self._of_sentinel:
            found = await in_thread(self.pool.get_master_address)
            where = dict(zip(("host", "port"), found, strict=True))
        wire = Wire(self._kind(**self._kwargs, **where))
        self._share_tls(wire.connection)
        try:
            await wire.connect()
            await wire.hold(self._watch.meet(wire.connection), timeout)
        except BaseException:
            wire.close()
            raise
        return wire

    def _share_tls(self, connection: Any) -> None:
        """Read the certificates once for many connections: it takes tens of milliseconds."""
        own = getattr(connection, "ssl_context", None)
        if own is None:
            return
        if clock() > self._tls_since + TLS_FOR:
            self._tls, self._tls_since = own, clock()
        connection.ssl_context = self._tls


class Wire:
    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._pid = os.getpid()
        self._timer: asyncio.TimerHandle | None = None
        self._is_late = False
        self.used_at = clock()  # when an exchange ended last

    @property
    def is_ours(self) -> bool:
        """Whether we have not closed it, nor inherited it in a fork."""
        writer = self.connection._writer
        return writer is not None and not writer.is_closing() and self._pid == os.getpid()

    @property
    def is_open(self) -> bool:
        """Whether the server, as far as is seen, has not closed it, nor sent anything unasked."""
        if not self.is_ours:
            return False
        reader = self.connection._reader
        if reader.at_eof() or reader.exception() is not None:
            return False
        # What the loop has not read yet, because it was busy with others.
        return not _is_readable(self.connection._writer.get_extra_info("socket").fileno())

    async def connect(self) -> None:
        """Connect it; its host is looked up in a thread of ours: the loop's may all be at work."""
        *others, last = await _addresses_of(self.connection)
        for address in others:
            with contextlib.suppress(RedisConnectionError):
                await self._connect_to(address)
                return
        await self._connect_to(last)

    async def _connect_to(self, address: str | None) -> None:
        connection = self.connection
        if address is not None:
            connection._connection_arguments = partial(_arguments, connection, address)
        await connection.connect()

    async def hold(self, talk: Talk[T], timeout: float) -> T:
        """The result of an exchange whose every answer must come within so many seconds. redis-py's
        own timeout would cancel the read also if only the loop stood still: ours waits once more.
        """
        connection = self.connection
        try:
            data, count, kept_back = next(talk)
            while count:
                self._start_timer(kept_back + timeout)
                await connection.send_packed_command([data])
                replies = []
                for _ in range(count):
                    try:
                        reply = await connection.read_response(disconnect_on_error=False)
                    except ResponseError as exc:
                        reply = exc
                    replies.append(reply)
                self._stop_timer()
                data, count, kept_back = talk.send(replies)
            self.close()
            talk.send([])
            raise AssertionError("an exchange that has left its connection must end")
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        except (RedisError, OSError) as exc:
            if self._is_late:
                raise RedisTimeoutError("the server did not answer in time") from exc
            raise
        finally:
            self._stop_timer()

    def end_with(self, command: bytes) -> None:
        """Send a last command, behind those that are not answered, and close the connection. The
        server carries out all of them, or none if it did not get the first.
        """
        if self.is_ours:
            self.connection._writer.write(command)
        self.close()

    def close(self) -> None:
        """Close the connection, once all is sent. redis-py's own method must be awaited."""
        self._stop_timer()
        connection = self.connection
        writer, connection._writer, connection._reader = connection._writer, None, None
        connection._parser.on_disconnect()
        # What a fork has inherited is its parent's, and so is the socket.
        if writer is not None and self._pid == os.getpid():
            with contextlib.suppress(RuntimeError):  # its loop is closed
                writer.close()

    def _start_timer(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        self._timer = loop.call_at(due, self._give_up, loop, due, seconds)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self, loop: asyncio.AbstractEventLoop, due: float, seconds: float) -> None:
        if loop.time() > due + STOOD_STILL:
            self._start_timer(seconds)
            return
        self._is_late = True
        self.connection._writer.transport.abort()  # the read ends with an error


def _is_readable(descriptor: int) -> bool:
    """Whether a socket has something to read, be it only its end."""
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([descriptor], [], [], 0)[0])
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


async def _addresses_of(connection: Any) -> list[str | None]:
    """The addresses of this connection's host; None if it is an address, or there is no host."""
    host = getattr(connection, "host", None)
    if host is None:
        return [None]
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError, ValueError):
            socket.inet_pton(family, host)
            return [None]
    look_up = partial(socket.getaddrinfo, host, connection.port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in await in_thread(look_up)]


def _arguments(connection: Any, address: str) -> dict[str, Any]:
    """What redis-py passes to asyncio, with this address; TLS still checks the host's name."""
    arguments = dict(type(connection)._connection_arguments(connection), host=address)
    if arguments.get("ssl"):
        arguments["server_hostname"] = connection.host
    return arguments
