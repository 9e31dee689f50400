"""The network between simulated processes and the lock server: connections as the package's driver
uses them, on which requests and replies take time, come late, get lost, or are cut.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_redislock.servers.node import Node

from . import baton
from .lock_server import IDLE_FOR, LockServer

#: Seconds that a request or a reply takes, at least and at most.
TAKES = (0.0002, 0.002)


class Network:
    """How the network is. Probabilities are for one request or reply.

    Attributes:
        takes: the least and the most seconds that each takes.
    """

    takes = TAKES
    loses_request = loses_reply = cuts = delays = 0.0
    #: Seconds by which one that is held up comes late.
    late_by = 1.5


class Link:
    """One TCP connection, while it lasts.

    Attributes:
        is_cut: it is broken, or its client has closed it.
        commands: what has arrived and is not executed yet.
        blocked_until: when the block of the first of these ends.
        last: what was executed last, and the reply to it.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self.is_cut = False
        self.commands: deque[list[bytes]] = deque()
        self.blocked_until: float | None = None
        self.last: tuple[list[bytes], Any] = ([], None)
        self._arrived: deque[Any] = deque()
        self._reader: baton.Actor | None = None
        self._last_request_at = self._last_reply_at = 0.0
        self.used_at = baton.world.now

    def send(self, server: LockServer, commands: list[list[bytes]]) -> None:
        """Send a request; or, where the network is so, lose it, hold it up, or break."""
        world, network = baton.world, self._network
        self.used_at = world.now
        takes = self.travels() + self._held_up("request")
        if network.loses_request and world.chance.random() < network.loses_request:
            world.note("LOST: a request to the lock server")
            return
        if network.cuts and world.chance.random() < network.cuts:
            arrives = world.chance.random() < 0.5
            world.note(f"CUT: a connection, {'after' if arrives else 'before'} a request arrived")
            if arrives:
                world.after(takes, lambda: server.arrive(Link(network), commands))
            self.is_cut = True
            raise RedisConnectionError("simulated: the connection was cut")
        at = self._last_request_at = max(world.now + takes, self._last_request_at)
        world.at(at, lambda: server.arrive(self, commands))

    def replies(self, reply: Any) -> None:
        """Called by the server: send this reply."""
        world, network = baton.world, self._network
        takes = self.travels() + self._held_up("reply")
        if network.loses_reply and world.chance.random() < network.loses_reply:
            world.note("LOST: a reply of the lock server")
        else:
            self._put(reply, takes)

    def close(self) -> None:
        """Closed by its client: what is under way still arrives, and nobody reads the replies."""

        def end() -> None:
            self.is_cut = True

        baton.world.at(max(baton.world.now + self.travels(), self._last_request_at), end)

    def cut(self) -> None:
        """Break, for both sides."""
        self.is_cut = True
        self._put(RedisConnectionError("simulated: the connection was cut"), 0.0)

    def read(self, timeout: float) -> Any:
        """The next reply.

        Raises:
            RedisTimeoutError: there is none in time.
        """
        if not self.can_read(timeout):
            raise RedisTimeoutError("simulated: timeout reading from the lock server")
        return self._arrived.popleft()

    def can_read(self, timeout: float) -> bool:
        world = baton.world
        until = world.now + timeout
        self._reader = world.current
        try:
            while not self._arrived and world.now < until:
                world.wait(until - world.now)
        finally:
            self._reader = None
        return bool(self._arrived)

    def travels(self) -> float:
        return baton.world.delays.uniform(*self._network.takes)

    def _held_up(self, what: str) -> float:
        world, network = baton.world, self._network
        if not network.delays or world.chance.random() >= network.delays:
            return 0.0
        seconds = world.chance.uniform(0.05, network.late_by)
        world.note(f"LATE: a {what} of the lock server, by {seconds:.2f} s")
        return seconds

    def _put(self, reply: Any, takes: float) -> None:
        def arrive() -> None:
            self._arrived.append(reply)
            if self._reader is not None:
                baton.world.wake(self._reader)

        self._last_reply_at = max(baton.world.now + takes, self._last_reply_at)
        baton.world.at(self._last_reply_at, arrive)


class Connection:
    """A connection to the lock server: as much of redis-py's as the driver uses."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.pid = baton.world.current.process.pid
        self._link: Link | None = None

    @property
    def is_usable(self) -> bool:
        if self._link is None or self._link.is_cut:
            return False
        is_idle = baton.world.now - self._link.used_at > IDLE_FOR
        return not (is_idle and self._pool.server.is_discreet)

    def connect(self) -> None:
        if self.is_usable:
            return
        self.disconnect()
        pool, link = self._pool, Link(self._pool.network)
        baton.world.sleep(link.travels())
        if pool.server.is_down:
            raise RedisConnectionError("simulated: connection refused")
        pool.server.links.append(link)
        baton.world.current.process.state.setdefault("met the lock server", baton.world.now)
        baton.world.current.process.at_death.append(link.close)
        self._link = link
        try:
            pool.set_up(self)
        except BaseException:
            self.disconnect()
            raise

    def on_connect(self) -> None:
        """The handshake, which is not simulated."""

    def disconnect(self, *args: Any) -> None:
        link, self._link = self._link, None
        if link is not None and link in self._pool.server.links:
            self._pool.server.links.remove(link)
            link.close()

    def send_packed_command(self, parts: list[bytes]) -> None:
        if not self.is_usable:
            raise RedisConnectionError("simulated: the connection was cut")
        assert self._link is not None
        world = baton.world
        world.digest.update(b"%.6f %s" % (world.now, b"".join(parts)))
        self._link.send(self._pool.server, [each for part in parts for each in parse(part)])

    def can_read(self, timeout: float = 0.0) -> bool:
        return self._link is None or self._link.can_read(timeout)

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        if self._link is None:
            raise RedisConnectionError("simulated: the connection was closed")
        reply = self._link.read(self._pool.timeout)
        if isinstance(reply, RedisConnectionError | ResponseError):
            raise reply
        return reply


class Pool:
    """A process's connections with one timeout: as much of redis-py's pool as the driver uses."""

    connection_kwargs: dict[str, Any] = {}  # noqa: RUF012  redis-py's name
    connection_class = Connection  # which asyncio does not have: coroutines ask in threads

    def __init__(self, server: LockServer, network: Network, timeout: float, set_up: Any) -> None:
        self.server, self.network, self.timeout, self.set_up = server, network, timeout, set_up
        self._idle: list[Connection] = []

    def get_connection(self, *args: Any) -> Connection:
        connection = self._idle.pop() if self._idle else Connection(self)
        connection.connect()
        return connection

    def release(self, connection: Connection) -> None:
        if connection.is_usable:
            self._idle.append(connection)

    def owns_connection(self, connection: Connection) -> bool:
        return True

    def disconnect(self, inuse_connections: bool = True) -> None:
        for each in self._idle:
            each.disconnect()
        self._idle.clear()


def node(server: LockServer, network: Network, replicas: int) -> Node:
    """The package's driver, on this network."""
    return Node(lambda timeout, set_up: Pool(server, network, timeout, set_up), replicas)


@lru_cache(4096)
def parse(data: bytes) -> list[list[bytes]]:
    """The commands in what was sent: the same is sent often."""
    commands, at = [], 0
    while at < len(data):
        end = data.index(b"\r\n", at)
        count, at = int(data[at + 1 : end]), end + 2
        command = []
        for _ in range(count):
            end = data.index(b"\r\n", at)
            size = int(data[at + 1 : end])
            command.append(data[end + 2 : end + 2 + size])
            at = end + size + 4
        commands.append(command)
    return commands
