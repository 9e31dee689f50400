"""The driver of one Redis server. A cluster has one for each node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from redis.exceptions import RedisError, ResponseError

from ..errors import LockUnavailable
from ..protocol.exchange import Call
from .connections import Connections, PoolFactory
from .restarts import HeldOff, ServerWatch
from .server import LOOKING_TTL, Server
from .talk import (
    block,
    is_not_master,
    make_calls,
    moved_to,
    operation_timeout,
    replies_to,
    unavailable,
)

T = TypeVar("T")


class Node(Server):
    """A Redis server.

    Args:
        pools: makes connection pools to the server.
        min_replicas: see `Server`.
        longest: the most seconds that a command may take, whatever the ttl.
        in_cluster: it is a node of a Redis Cluster.

    Attributes:
        watch: knows whether the server came back empty.
    """

    def __init__(
        self,
        pools: PoolFactory,
        min_replicas: int = 0,
        longest: float = 1.0,
        in_cluster: bool = False,
    ) -> None:
        self.min_replicas = min_replicas
        self._longest = longest
        self._make_pool = pools
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

    def replies(
        self,
        commands: Sequence[Sequence[Any]],
        ttl: float = LOOKING_TTL,
        *,
        errors: bool = False,
        wrong_type: bool = False,
    ) -> list[Any]:
        if not commands:
            return []
        return self.exchange("", ttl, "main", replies_to, commands, errors, wrong_type)

    def primaries(self) -> dict[str, Server]:
        return {"": self}

    def exchange(self, key: str, ttl: float, purpose: str, talk: Callable[..., T], *args: Any) -> T:
        timeout = min(operation_timeout(ttl), self._longest)
        connections = self._connections.get((purpose, timeout))
        if connections is None:
            connections = self._new_connections(purpose, timeout)
        try:
            connection = connections.take()
        except (RedisError, OSError) as exc:
            raise self._failed(key, exc) from exc
        try:
            result = talk(connection, self.watch, *args)
        except BaseException as exc:
            # Leave a server that is not the master: its name may lead to another server by now.
            is_answer = isinstance(exc, ResponseError) and not is_not_master(exc)
            if is_answer or isinstance(exc, HeldOff):
                connections.put_back(connection)
            else:
                connections.drop(connection)
            if isinstance(exc, RedisError | OSError):
                raise self._failed(key, exc) from exc
            raise
        self.watch.last_contact = connections.put_back(connection)
        return result

    def _failed(self, key: str, exc: Exception) -> LockUnavailable:
        self.watch.failed(exc)
        hint = "; the URL of a Redis Cluster begins with redis+cluster://" if moved_to(exc) else ""
        return unavailable(key, exc, hint)

    def _new_connections(self, purpose: str, timeout: float) -> Connections:
        # No mutex: one that another thread holds at a fork stays locked in the child.
        made = Connections(partial(self._make_pool, timeout, self.watch.on_connect))
        return self._connections.setdefault((purpose, timeout), made)

    def close(self) -> None:
        closing, self._connections = list(self._connections.values()), {}
        for connections in closing:
            connections.disconnect()
