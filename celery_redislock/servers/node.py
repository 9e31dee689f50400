"""The driver of one Redis server. A cluster has one for each node."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..errors import LockUnavailable
from ..protocol.exchange import Call
from .connections import Connections, PoolFactory, explained
from .restarts import HeldOff, ServerWatch
from .server import Commands, Server
from .talk import (
    Begin,
    Talk,
    block,
    ends_connection,
    make_calls,
    may_repeat,
    operation_timeout,
    replies_to,
    unavailable,
)

T = TypeVar("T")


class Node(Server):
    """A Redis server, or a node of a cluster. No command may take longer than `longest` seconds."""

    def __init__(
        self,
        pools: PoolFactory,
        min_replicas: int = 0,
        longest: float = 1.0,
        in_cluster: bool = False,
    ) -> None:
        self.min_replicas = min_replicas
        self.longest = longest
        self.pools = pools
        self._connections: dict[tuple[str, float], Connections] = {}
        self.watch = ServerWatch(in_cluster)

    def run_all(
        self, calls: Sequence[Call[T]], *, ttl: float, purpose: str = "main"
    ) -> list[T | LockUnavailable]:
        sent_at, replies = self.exchange(calls[0].keys[0], ttl, purpose, make_calls, calls)
        return [
            unavailable(call.keys[0], reply)
            if isinstance(reply, Exception)
            else call.read(reply, sent_at)
            for call, reply in zip(calls, replies, strict=True)
        ]

    def block(self, call: Call[T], wake: str, seconds: float) -> T:
        try:
            answer: T = self.exchange(
                *(call.keys[0], call.ttl, "wait", block),
                *(call, wake, seconds, self.min_replicas),
            )
            return answer
        except HeldOff as exc:
            raise exc.for_users(call.keys[0]) from None

    def _replies(
        self, commands: Commands, ttl: float, errors: bool, allows_wrong_type: bool
    ) -> list[Any]:
        return self.exchange("", ttl, "main", replies_to, commands, errors, allows_wrong_type)

    def primaries(self) -> dict[str, Server]:
        return {"": self}

    @property
    def outage(self) -> tuple[float, float] | None:
        return self.watch.outage

    def exchange(self, key: str, ttl: float, purpose: str, begin: Begin[T], *args: Any) -> T:
        timeout = min(operation_timeout(ttl), self.longest)
        connections = self._connections.get((purpose, timeout))
        if connections is None:
            connections = self._new_connections(purpose, timeout)
        was_cut = False
        while True:
            try:
                connection = connections.take()
            except (RedisError, OSError) as exc:
                raise self.failed(key, explained(exc, connections.pool)) from exc
            try:
                result = _hold(begin(self.watch, *args), connection, timeout)
            except BaseException as exc:
                if not ends_connection(exc):
                    connections.put_back(connection)
                else:
                    connections.drop(connection)
                if not isinstance(exc, RedisError | OSError):
                    raise
                failure = self.failed(key, exc)
                if was_cut or not may_repeat(exc, begin):
                    raise failure from exc
                was_cut = True
                connections.close_idle()  # what has cut this one may have cut them
                continue
            self.watch.last_contact = connections.put_back(connection)
            return result

    def failed(self, key: str, exc: Exception) -> LockUnavailable:
        """Note that an exchange failed. Returns the error that callers get."""
        self.watch.failed(exc)
        return unavailable(key, exc)

    def _new_connections(self, purpose: str, timeout: float) -> Connections:
        # No mutex: one that another thread holds at a fork stays locked in the child.
        # Without a reference to this object, so that its connections end with it.
        set_up = partial(_set_up, self.watch, timeout)
        made = Connections(partial(self.pools, timeout, set_up), self.watch.tells_id)
        return self._connections.setdefault((purpose, timeout), made)

    def close(self) -> None:
        closing, self._connections = list(self._connections.values()), {}
        for connections in closing:
            connections.close()


def _set_up(watch: ServerWatch, timeout: float, connection: Any) -> None:
    """Set up a new connection, and learn which server it leads to."""
    connection.on_connect()
    _hold(watch.meet(connection), connection, timeout)


def _hold(talk: Talk[T], connection: Any, timeout: float) -> T:
    """Hold an exchange on this connection, and return its result."""
    try:
        data, count, kept_back = next(talk)
        while True:
            replies = []
            if count:
                connection.send_packed_command([data])
                if kept_back and not connection.can_read(kept_back + timeout):
                    raise RedisTimeoutError("the server did not end a wait in time")
                for _ in range(count):
                    try:
                        replies.append(connection.read_response())
                    except ResponseError as exc:
                        replies.append(exc)
            else:
                connection.disconnect()
            data, count, kept_back = talk.send(replies)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
