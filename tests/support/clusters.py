"""A real Redis Cluster, and what may happen to it: failovers, slots that move, new nodes."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import redis
from redis.cluster import ClusterNode
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from .servers import PATIENT, RedisServer, claim_port, free_port, let_go_of_port
from .waiting import eventually


def free_port_with_bus() -> int:
    """A port of a node, whose port for the other nodes, 10,000 above it, is free too."""
    while True:
        port = random.SystemRandom().randrange(20000, 22000)
        if not claim_port(port):
            continue
        if not claim_port(port + 10000):
            let_go_of_port(port)
            continue
        with socket.socket() as one, socket.socket() as bus, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + 10000))
            return port
        for each in (port, port + 10000):
            let_go_of_port(each)


def url_of_quorum(servers: Sequence[RedisServer]) -> str:
    """The URL of these independent servers."""
    return "redlock://" + ",".join(f"127.0.0.1:{each.port}" for each in servers)


def _between(node: RedisServer) -> int:
    """The port at which the other nodes, and clients, meet it."""
    return node.tls_port or node.port


class ClusterSet:
    """A Redis Cluster on this machine.

    Args:
        primaries: how many nodes have slots, in equal shares.
        replicas: how many replicas each of them has.
        tls: what the nodes' command lines say of their certificate: then clients and nodes use TLS.
            Only these tests themselves ask a node without it.
    """

    #: Beside the URL, what a client needs to know.
    transport_options: ClassVar[Mapping[str, Any]] = {}

    def __init__(
        self,
        primaries: int = 3,
        replicas: int = 1,
        tls: Sequence[str] | None = None,
    ) -> None:
        self._primaries = primaries
        self._tls = tls
        self.nodes = [self._new_node() for _ in range(primaries * (1 + replicas))]

    def _new_node(self) -> RedisServer:
        port = free_port_with_bus()
        own: tuple[str, ...] = ()
        if self._tls is not None:
            own = ("--tls-port", str(port), "--tls-cluster", "yes", "--tls-replication", "yes")
        node = RedisServer(
            *("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"),
            *("--cluster-node-timeout", str(PATIENT), "--cluster-require-full-coverage", "no"),
            *("--repl-diskless-sync-delay", "0", "--cluster-replica-validity-factor", "0"),
            *(*own, *(self._tls or ())),
            port=free_port() if own else port,
        )
        node.tls_port = port if own else None
        return node

    @property
    def url(self) -> str:
        scheme = "redis+cluster" if self._tls is None else "rediss+cluster"
        hosts = ",".join(f"127.0.0.1:{_between(each)}" for each in self.nodes)
        return f"{scheme}://{hosts}"

    def client(self, decode_responses: bool = True) -> Any:
        """A client of the whole cluster."""
        nodes = [ClusterNode("127.0.0.1", each.port) for each in self.nodes]
        return redis.RedisCluster(startup_nodes=nodes, decode_responses=decode_responses)

    def onlooker(self, timeout: float) -> Onlooker:
        """A client of the primaries that there are now; `timeout` in seconds."""
        return Onlooker(self.ranges(self._alive()[0]), timeout)

    # -- who has what ---------------------------------------------------------------------

    @staticmethod
    def _say(node: RedisServer, *command: Any) -> Any:
        """The reply to a command, as it is."""
        connection = redis.Connection(
            port=node.port, decode_responses=True, protocol=2, socket_timeout=10
        )
        try:
            connection.send_command(*command)
            return connection.read_response()
        finally:
            connection.disconnect()

    def _told(self, node: RedisServer, *command: Any) -> dict[str, str]:
        lines = (line.partition(":") for line in self._say(node, *command).splitlines())
        return {name: value for name, _, value in lines}

    def ranges(self, node: RedisServer) -> list[tuple[int, int, int]]:
        """What this node says: the first and the last slot, and the port of who has them."""
        told = self._say(node, "CLUSTER", "SLOTS")
        return sorted((first, last, primary[1]) for first, last, primary, *_ in told)

    def id_of(self, node: RedisServer) -> str:
        return str(self._say(node, "CLUSTER", "MYID"))

    def _alive(self) -> list[RedisServer]:
        return [each for each in self.nodes if each.runs() and not each.frozen]

    def primary_of(self, key: str) -> RedisServer:
        """The node that has the slot of this key."""
        return self.owner_of(key_slot(key.encode()))

    def owner_of(self, slot: int) -> RedisServer:
        ranges = self.ranges(self._alive()[0])
        port = next(port for first, last, port in ranges if first <= slot <= last)
        return next(each for each in self.nodes if each.port == port)

    def primaries(self) -> list[RedisServer]:
        """The nodes that have slots."""
        ports = {port for _, _, port in self.ranges(self._alive()[0])}
        return [each for each in self.nodes if each.port in ports]

    def replica_of(self, primary: RedisServer) -> RedisServer:
        for node in self._alive():
            told = self._told(node, "INFO", "replication")
            if told["role"] == "slave" and int(told["master_port"]) == _between(primary):
                return node
        raise AssertionError("it has no replica")

    def _leads(self, node: RedisServer) -> bool:
        return self._told(node, "INFO", "replication")["role"] == "master" and self.agree()

    # -- what happens ---------------------------------------------------------------------

    def kill_primary_of(self, key: str) -> RedisServer:
        """End the node that has this key's slot. Returns it when its replica has taken over."""
        old = self.primary_of(key)
        new = self.replica_of(old)
        self.set_node_timeout(500)
        try:
            old.kill()
            eventually(lambda: self._leads(new), "its replica takes over", 60)
        finally:
            self.set_node_timeout(PATIENT)
        return old

    def cut_replication(self, key: str) -> None:
        """From here on, what is written in the node with this key's slot is lost if it dies."""
        with self.primary_of(key).client() as client:
            client.execute_command("ACL", "SETUSER", "default", "-psync", "-sync")
            client.execute_command("CLIENT", "KILL", "TYPE", "replica")

    def failover(self, key: str) -> None:
        """Let the replica of the node that has this key's slot take over, without a loss."""
        new = self.replica_of(self.primary_of(key))

        asked_at = -math.inf

        def takes_over() -> bool:
            nonlocal asked_at
            if time.monotonic() > asked_at + 5:  # they gave up the attempt before
                asked_at = time.monotonic()
                with contextlib.suppress(redis.ResponseError):  # it leads, or is about to
                    self._say(new, "CLUSTER", "FAILOVER")
            return self._leads(new)

        # The nodes vote again after twice this time.
        self.set_node_timeout(2000)
        try:
            eventually(takes_over, "it takes over", 60)
        finally:
            self.set_node_timeout(PATIENT)

    def begin_to_move(self, slot: int, target: RedisServer) -> RedisServer:
        """Prepare a slot's nodes for its move to this one. Returns the node that has it."""
        source = self.owner_of(slot)
        self._say(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        self._say(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target))
        return source

    def end_move(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        """Move the keys of a slot, and then the slot."""
        while keys := self._say(source, "CLUSTER", "GETKEYSINSLOT", slot, 100):
            self._say(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
        for node in (target, source, *(set(self.primaries()) - {target, source})):
            self._say(node, "CLUSTER", "SETSLOT", slot, "NODE", self.id_of(target))

    def move_slot(self, slot: int, target: RedisServer) -> None:
        """Move a slot with its keys to this node, as `redis-cli --cluster reshard` does."""
        self.end_move(slot, self.begin_to_move(slot, target), target)

    def add_node(self) -> RedisServer:
        """A new node without slots."""
        node = self._new_node()
        self.nodes.append(node)
        node.start()
        self._say(node, "CLUSTER", "MEET", "127.0.0.1", _between(self.nodes[0]))
        eventually(lambda: self._all_met() and self.agree(), "all know it", 60)
        return node

    def mend(self) -> None:
        """Start the nodes that were ended. Returns when each is in step again."""
        for node in self.nodes:
            if not node.runs():
                node.start()
        eventually(self._in_step, "all nodes are in step", 60)

    def switch_off(self) -> None:
        """End all nodes at once. `mend` starts them again."""
        for node in self.nodes:
            node.kill()

    def agree(self) -> bool:
        """Whether all nodes that run say the same, and that all slots have a node."""
        told = set()
        for node in self._alive():
            fields = self._told(node, "CLUSTER", "INFO")
            assigned = int(fields["cluster_slots_assigned"])
            if fields["cluster_state"] != "ok" or assigned != REDIS_CLUSTER_HASH_SLOTS:
                return False
            told.add(repr(self.ranges(node)))
        return len(told) == 1

    def _in_step(self) -> bool:
        links = (self._told(each, "INFO", "replication") for each in self._alive())
        return all(each.get("master_link_status", "up") == "up" for each in links) and self.agree()

    def set_node_timeout(self, milliseconds: int) -> None:
        for node in self._alive():
            self._say(node, "CONFIG", "SET", "cluster-node-timeout", milliseconds)

    # -- start and end --------------------------------------------------------------------

    def start(self) -> ClusterSet:
        try:
            for node in self.nodes:
                node.start()
            shares = self._shares()
            for number, node in enumerate(self.nodes):
                self._say(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                if number:
                    self._say(node, "CLUSTER", "MEET", "127.0.0.1", _between(self.nodes[0]))
            for node, share in zip(self.nodes, shares, strict=False):
                self._say(node, "CLUSTER", "ADDSLOTS", *share)
            eventually(self._all_met, "the nodes know each other", 60)
            for number, node in enumerate(self.nodes[self._primaries :]):
                primary = self.nodes[number % self._primaries]
                self._say(node, "CLUSTER", "REPLICATE", self.id_of(primary))
            eventually(self._in_step, "the cluster is up", 60)
        except BaseException:
            self.kill()
            raise
        return self

    def _shares(self) -> list[range]:
        each, rest = divmod(REDIS_CLUSTER_HASH_SLOTS, self._primaries)
        bounds = [number * each + min(number, rest) for number in range(self._primaries + 1)]
        return [range(*pair) for pair in itertools.pairwise(bounds)]

    def _all_met(self) -> bool:
        known = [self._told(each, "CLUSTER", "INFO")["cluster_known_nodes"] for each in self.nodes]
        return {int(each) for each in known} == {len(self.nodes)}

    def kill(self) -> None:
        for node in self.nodes:
            node.__exit__()
            # There are only two thousand.
            for port in (_between(node), _between(node) + 10000):
                let_go_of_port(port)

    def __enter__(self) -> ClusterSet:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.kill()


class Onlooker:
    """A client of a cluster's primaries for who only looks. It gives up at the first failure, where
    redis-py's own asks again for seconds.

    Args:
        ranges: the first and the last slot, and the port of who has them.
        timeout: seconds that a reply may take.
    """

    def __init__(self, ranges: Sequence[tuple[int, int, int]], timeout: float) -> None:
        self._ranges = ranges
        self._clients = {
            port: redis.Redis(port=port, decode_responses=True, socket_timeout=timeout)
            for _, _, port in ranges
        }

    def scan_iter(self, pattern: str, count: int) -> Iterator[str]:
        for client in self._clients.values():
            yield from client.scan_iter(pattern, count=count)

    def __getattr__(self, command: str) -> Any:
        """A command whose first argument is a key, or a list of keys in one slot."""

        def ask(keys: str | Sequence[str], *arguments: Any) -> Any:
            key = keys if isinstance(keys, str) else keys[0]
            return getattr(self._client_of(key), command)(keys, *arguments)

        return ask

    def _client_of(self, key: str) -> redis.Redis:
        slot = key_slot(key.encode())
        port = next(port for first, last, port in self._ranges if first <= slot <= last)
        return self._clients[port]

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def __enter__(self) -> Onlooker:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
