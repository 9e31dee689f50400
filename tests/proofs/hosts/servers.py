"""The lock servers, spread over three hosts A, B and C. What leads is on A."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from typing import Any

import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from tests.proofs.wire import lock_key
from tests.support.servers import RedisServer, redis_server_binary
from tests.support.waiting import eventually

from .network import Host, Network

#: Ports on each host: of a server, of another one there, and of a sentinel.
PORT, SECOND_PORT, SENTINEL_PORT = 6379, 6380, 26379
MASTER_NAME = "main"
#: Seconds of silence after which sentinels and the nodes of a cluster take a server for dead.
#: Redis's own figures are 30 and 15.
DOWN_AFTER = 1.0
#: Seconds of silence of all its replicas after which a careful master refuses to write.
MAX_LAG = 2
REFUSES = ("--min-replicas-to-write", "1", "--min-replicas-max-lag", str(MAX_LAG))


@dataclasses.dataclass(frozen=True)
class Servers:
    """What clients must know.

    Attributes:
        url, transport_options: of the lock server.
        slots: the hash slots of locks that are on A.
    """

    url: str
    transport_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    slots: Container[int] = range(REDIS_CLUSTER_HASH_SLOTS)

    def new_name(self) -> str:
        """A name of a lock that is on A."""
        names = (uuid.uuid4().hex[:12] for _ in itertools.count())
        return next(each for each in names if self._slot(each) in self.slots)

    @staticmethod
    def _slot(name: str) -> int:
        return int(key_slot(lock_key(name).encode()))


Start = Callable[[Network], contextlib.AbstractContextManager[Servers]]


class Node:
    """A redis-server on a host."""

    def __init__(self, host: Host, *arguments: str, port: int = PORT) -> None:
        self.host = host
        self.port = port
        reached = ("--bind", "0.0.0.0", "--protected-mode", "no")
        quick = ("--repl-diskless-sync-delay", "0")
        self._server = RedisServer(*reached, *quick, *arguments, port=port)

    def __enter__(self) -> Node:
        with self.host.inside():
            self._server.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.__exit__()

    def ask(self, *command: Any) -> Any:
        """The reply, as it is."""
        return _reply(self.host, self.port, *command)

    def info(self, *command: Any) -> dict[str, str]:
        lines = (line.partition(":") for line in self.ask(*command).splitlines())
        return {name: value for name, _, value in lines}

    def follows(self) -> bool:
        """Whether it is a replica, in step with its master."""
        return self.info("INFO", "replication").get("master_link_status") == "up"


def _reply(host: Host, port: int, *command: Any) -> Any:
    """What the server at this port of the host replies, as it is."""
    connection = redis.Connection(port=port, decode_responses=True, protocol=2, socket_timeout=10)
    with host.inside():
        connection.connect()
    try:
        connection.send_command(*command)
        return connection.read_response()
    finally:
        connection.disconnect()


# -- one server ------------------------------------------------------------------------------


@contextlib.contextmanager
def one_server(network: Network) -> Iterator[Servers]:
    """A server on A."""
    host = network.hosts[0]
    with Node(host):
        yield Servers(f"redis://{host.address}:{PORT}")


@contextlib.contextmanager
def quorum(network: Network) -> Iterator[Servers]:
    """A server on each host. They know nothing of each other."""
    with contextlib.ExitStack() as stack:
        for host in network.hosts:
            stack.enter_context(Node(host))
        yield Servers("redlock://" + ",".join(f"{each.address}:{PORT}" for each in network.hosts))


# -- Sentinel --------------------------------------------------------------------------------


def sentinel(careful: bool = False, down_after: float = DOWN_AFTER) -> Start:
    """A master on A, replicas on B and C, a sentinel on each.

    Args:
        careful: a master without replicas refuses to write.
        down_after: seconds after which they take a silent server for dead.
    """

    @contextlib.contextmanager
    def start(network: Network) -> Iterator[Servers]:
        with contextlib.ExitStack() as stack:
            nodes = [
                stack.enter_context(Node(host, *(REFUSES if careful else ())))
                for host in network.hosts
            ]
            for node in nodes[1:]:
                node.ask("REPLICAOF", nodes[0].host.address, PORT)
            eventually(lambda: all(each.follows() for each in nodes[1:]), "replicas in step")
            sentinels = [
                stack.enter_context(Sentinel(host, nodes[0], down_after)) for host in network.hosts
            ]
            for each in sentinels:
                eventually(each.knows_all, "each sentinel knows all")
                each.ask("SENTINEL", "DEBUG", "info-period", "10000")
            hosts = (f"sentinel://{each.address}:{SENTINEL_PORT}" for each in network.hosts)
            yield Servers(";".join(hosts), {"master_name": MASTER_NAME})

    return start


class Sentinel:
    """A sentinel, of which two of three must agree.

    Args:
        host: where it runs.
        master: the server that leads at first.
        down_after: seconds after which it takes a silent server for dead.
    """

    def __init__(self, host: Host, master: Node, down_after: float) -> None:
        self._host = host
        self._folder = tempfile.TemporaryDirectory(prefix="redislock-sentinel-")
        self._configuration = Path(self._folder.name) / "sentinel.conf"
        lines = (
            *(f"port {SENTINEL_PORT}", "bind 0.0.0.0", "protected-mode no"),
            f"dir {self._folder.name}",
            f"sentinel monitor {MASTER_NAME} {master.host.address} {master.port} 2",
            f"sentinel down-after-milliseconds {MASTER_NAME} {round(down_after * 1000)}",
            f"sentinel failover-timeout {MASTER_NAME} 3000",
        )
        self._configuration.write_text("\n".join(lines) + "\n")

    def __enter__(self) -> Sentinel:
        command = [redis_server_binary(), str(self._configuration), "--sentinel"]
        self._process = self._host.start(command, stdout=subprocess.DEVNULL)
        try:
            eventually(self._answers, "the sentinel answers")
            # It finds the replicas at once, and not after ten seconds.
            self.ask("SENTINEL", "DEBUG", "info-period", "200")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def ask(self, *command: Any) -> Any:
        return _reply(self._host, SENTINEL_PORT, *command)

    def _answers(self) -> bool:
        assert self._process.poll() is None, "the sentinel has ended"
        with contextlib.suppress(redis.RedisError):
            return bool(self.ask("PING"))
        return False

    def knows_all(self) -> bool:
        """Whether it knows both replicas and both other sentinels."""
        flat = self.ask("SENTINEL", "MASTER", MASTER_NAME)
        told = dict(zip(flat[::2], flat[1::2], strict=True))
        return (told["num-slaves"], told["num-other-sentinels"]) == ("2", "2")


# -- Redis Cluster ---------------------------------------------------------------------------


def cluster(careful: bool = False, down_after: float = DOWN_AFTER) -> Start:
    """A primary on each host, and two replicas of the one on A: on B and C.

    Args:
        careful: A's primary refuses to write without replicas.
        down_after: seconds after which they take a silent node for dead.
    """

    @contextlib.contextmanager
    def start(network: Network) -> Iterator[Servers]:
        a, b, c = network.hosts
        refuses = REFUSES if careful else ()
        with contextlib.ExitStack() as stack:
            nodes = [
                stack.enter_context(_cluster_node(host, port, down_after, *more))
                for host, port, more in (
                    *((a, PORT, refuses), (b, PORT, ()), (c, PORT, ())),
                    *((b, SECOND_PORT, refuses), (c, SECOND_PORT, refuses)),
                )
            ]
            _join(nodes[:3], nodes[3:])
            hosts = (f"{each.address}:{PORT}" for each in network.hosts)
            share = range(REDIS_CLUSTER_HASH_SLOTS // 3)
            yield Servers("redis+cluster://" + ",".join(hosts), slots=share)

    return start


def _cluster_node(host: Host, port: int, down_after: float, *more: str) -> Node:
    return Node(
        host,
        *("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"),
        *("--cluster-node-timeout", str(round(down_after * 1000))),
        *("--cluster-announce-ip", host.address, "--cluster-require-full-coverage", "no"),
        *more,
        port=port,
    )


def _join(primaries: list[Node], replicas: list[Node]) -> None:
    """Make a cluster of these. The replicas are those of the first."""
    nodes = [*primaries, *replicas]
    bounds = [round(REDIS_CLUSTER_HASH_SLOTS * part / 3) for part in range(4)]
    for number, (first, last) in enumerate(itertools.pairwise(bounds)):
        primaries[number].ask("CLUSTER", "ADDSLOTS", *range(first, last))
    for number, node in enumerate(nodes):
        node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        if number:
            node.ask("CLUSTER", "MEET", nodes[0].host.address, nodes[0].port)

    def agree() -> bool:
        told = [each.info("CLUSTER", "INFO") for each in nodes]
        return all(
            each["cluster_state"] == "ok" and int(each["cluster_known_nodes"]) == len(nodes)
            for each in told
        )

    eventually(agree, "the nodes know each other")
    leader = primaries[0].ask("CLUSTER", "MYID")
    for node in replicas:
        node.ask("CLUSTER", "REPLICATE", leader)
    eventually(lambda: all(each.follows() for each in replicas), "the replicas are in step")
    eventually(agree, "the cluster is up")
