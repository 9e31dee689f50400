"""The driver of a Redis Cluster; redis-py's own tries eleven times, too long for a lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import Any, Final, TypeVar

from redis.exceptions import ClusterDownError, RedisError

from ..errors import LockUnavailable
from ..protocol.exchange import Call
from .hash_slots import SlotMap
from .node import Node
from .restarts import Unusable
from .server import LOOKING_TTL, Commands, Server, Tries
from .talk import (
    IS_MOVING,
    UNSETTLED,
    Begin,
    code_of,
    moved_to,
    raise_refusal,
    replies_to,
    unavailable,
)
from .topology import Topology
from .urls import Host, Nodes, host_port

T = TypeVar("T")

#: How often one exchange follows the reply that its slot is elsewhere.
REDIRECTS: Final = 5
#: Commands whose second word is no key.
_KEYLESS: Final = {"TIME", "INFO", "CONFIG", "SCAN", "EVAL", "CLUSTER"}


class Cluster(Server):
    """The nodes of a Redis Cluster, and which of them has which slot."""

    def __init__(self, source: Nodes, min_replicas: int = 0) -> None:
        self.min_replicas = min_replicas
        self.nodes = Topology(source, min_replicas)

    # -- requests -------------------------------------------------------------------------

    def exchange(self, key: str, ttl: float, purpose: str, begin: Begin[T], *args: Any) -> T:
        redirects = 0
        while True:
            slots = self.nodes.slots(ttl, key)
            host = slots.owner_of(key) if key else slots.any_primary()
            try:
                return self._ask(
                    *(slots, key, ttl, host),
                    lambda node: node.exchange(key, ttl, purpose, begin, *args),
                )
            except LockUnavailable as exc:
                redirects = self.redirected(exc, key, redirects)

    def run_all(
        self, calls: Sequence[Call[T]], *, ttl: float, purpose: str = "main"
    ) -> list[T | LockUnavailable]:
        slots = self.nodes.slots(ttl, calls[0].keys[0])
        answers: list[Any] = [None] * len(calls)
        for host, which in self._by_node(slots, [call.keys[0] for call in calls]):
            asked = [calls[i] for i in which]
            ask = methodcaller("run_all", asked, ttl=ttl, purpose=purpose)
            try:
                found = self._ask(slots, calls[which[0]].keys[0], ttl, host, ask)
            except LockUnavailable as exc:
                found = [exc] * len(which)
            for i, answer in zip(which, found, strict=True):
                answers[i] = answer
        for i, answer in enumerate(answers):
            if isinstance(answer, LockUnavailable) and moved_to(answer.__cause__):
                try:
                    answers[i] = self.run(calls[i], once=True, purpose=purpose)
                except LockUnavailable as exc:
                    answers[i] = exc
        return answers

    def block(self, call: Call[T], wake: str, seconds: float) -> T:
        # Only once, also if the slot has moved: the block may have lasted, and the caller knows
        # how long it may wait.
        slots = self.nodes.slots(call.ttl, wake)
        host = slots.owner_of(wake)
        return self._ask(
            *(slots, call.keys[0], call.ttl, host),
            lambda node: node.block(call, wake, seconds),
        )

    def _replies(
        self, commands: Commands, ttl: float, errors: bool, allows_wrong_type: bool
    ) -> list[Any]:
        slots = self.nodes.slots(ttl, "")
        keys = ["" if each[0] in _KEYLESS else _text(each[1]) for each in commands]
        replies: list[Any] = [None] * len(commands)
        for host, which in self._by_node(slots, keys):
            asked = [commands[i] for i in which]
            ask = methodcaller("replies", asked, ttl, errors=True)
            found = self._ask(slots, keys[which[0]], ttl, host, ask)
            for i, reply in zip(which, found, strict=True):
                replies[i] = reply
        for i, reply in enumerate(replies):
            if moved_to(reply) or code_of(reply) in UNSETTLED:
                (replies[i],) = self._persist(
                    *(Tries(self, keys[i], ttl, False, 0.0), self.exchange),
                    *(keys[i], ttl, "main", replies_to, [commands[i]], True),
                )
        if not errors:
            try:
                raise_refusal(replies, allows_wrong_type)
            except RedisError as exc:
                raise unavailable("", exc) from exc
        return replies

    def primaries(self) -> dict[str, Server]:
        slots = self.nodes.look(LOOKING_TTL, "")
        return {host_port(*host): self.nodes.node(host) for host in slots.primaries}

    def shards(self) -> dict[str, Server]:
        _, uncovered = self.topology()
        if uncovered:
            raise unavailable("", Unusable(f"{uncovered} hash slots have no node"))
        return self.primaries()

    @property
    def outage(self) -> tuple[float, float] | None:
        return self.nodes.outage

    def topology(self) -> tuple[dict[str, tuple[int, list[str]]], int]:
        """How many slots each primary has, and its replicas; and how many slots have no node."""
        slots = self.nodes.look(LOOKING_TTL, "")
        counts = Counter(slots.owners)
        replicas: dict[Host, list[str]] = {host: [] for host in slots.primaries}
        for replica, primary in slots.replicas.items():
            replicas[primary].append(host_port(*replica))
        nodes = {host_port(*host): (counts[host], names) for host, names in replicas.items()}
        return nodes, counts[None]

    def together(self, keys: Sequence[str], ttl: float) -> list[list[str]]:
        slots = self.nodes.slots(ttl, keys[0])
        return [[keys[i] for i in which] for _, which in self._by_node(slots, keys)]

    def joint(self, keys: Sequence[str]) -> list[list[str]]:
        return [[key] for key in keys]

    def close(self) -> None:
        self.nodes.close()

    def may_answer_later(self, failure: LockUnavailable) -> bool:
        return super().may_answer_later(failure) or moved_to(failure.__cause__) is not None

    # -- nodes ----------------------------------------------------------------------------

    def _ask(
        self, slots: SlotMap, key: str, ttl: float, host: Host | None, ask: Callable[[Node], T]
    ) -> T:
        """Ask a node about a key, or ""; if that fails, learn whether slots were moved."""
        try:
            if host is None:
                raise self.no_node(key)
            return ask(self.nodes.node(host))
        except LockUnavailable as exc:
            self.learn_from(exc, slots, ttl, host)
            raise

    def no_node(self, key: str) -> LockUnavailable:
        """The failure of a request about a key that no node has."""
        return unavailable(key, ClusterDownError("a hash slot has no node"))

    def learn_from(
        self, failure: LockUnavailable, slots: SlotMap, ttl: float, host: Host | None
    ) -> None:
        """Learn whether slots were moved, after this node failed. See `_ask`."""
        if code_of(failure.__cause__) not in IS_MOVING:
            self.nodes.look_again(slots, ttl, host, moved_to(failure.__cause__) is not None)

    def redirected(self, failure: LockUnavailable, key: str, redirects: int) -> int:
        """How often a request was redirected by now; raises any other failure, or one too many."""
        if moved_to(failure.__cause__) is None:
            raise failure
        if redirects == REDIRECTS:
            why = "the nodes of the cluster do not agree which one has its slot"
            raise LockUnavailable(key, None, why) from failure.__cause__
        return redirects + 1

    def _by_node(self, slots: SlotMap, keys: Sequence[str]) -> list[tuple[Host | None, list[int]]]:
        """The indexes of each node's keys; a node that did not answer last time comes last."""
        anywhere = next(filter(None, keys), None)
        default = (slots.owner_of(anywhere) if anywhere else None) or slots.any_primary()
        own: dict[Host | None, list[int]] = {}
        for i, key in enumerate(keys):
            own.setdefault(slots.owner_of(key) if key else default, []).append(i)
        is_broken = lambda host: not host or self.nodes.node(host).watch.is_broken  # noqa: E731
        return sorted(own.items(), key=lambda each: is_broken(each[0]))


def _text(key: Any) -> str:
    return key.decode(errors="replace") if isinstance(key, bytes) else key
