"""The nodes of a Redis Cluster, and which of them has which hash slot."""

from __future__ import annotations

import contextlib
import random
from operator import itemgetter
from typing import Final

from redis.exceptions import ConnectionError as RedisConnectionError

from ..errors import LockUnavailable
from ..protocol.clock import clock
from ..protocol.turns import Turn
from .hash_slots import COMMANDS, SlotMap, slot_map
from .node import Node
from .talk import unavailable
from .urls import Host, Nodes

#: Seconds between two looks at the slots because a node did not answer.
LOOK_EVERY: Final = 0.1
#: How many nodes one look asks.
ASKED: Final = 3
#: The most seconds that one look may take. Each node has one for connecting, one to answer.
LONGEST_LOOK: Final = 10.0


class Topology:
    """The nodes, as the cluster last told us."""

    def __init__(self, source: Nodes, min_replicas: int) -> None:
        self._min_replicas = min_replicas
        self._source = source
        self._nodes: dict[Host, Node] = {}
        #: Which node has which slot, as the cluster last told us; None before that.
        self.known: SlotMap | None = None
        self._looked_at = -LOOK_EVERY
        #: Whose turn it is to look at the slots.
        self._turn = Turn()

    @property
    def first(self) -> Node:
        """One of the nodes that we were given."""
        return self.node(self._source.first[0])

    def slots(self, ttl: float, key: str) -> SlotMap:
        """Which node has which slot. Asks if we do not know."""
        return self.known or self.look(ttl, key)

    def node(self, host: Host) -> Node:
        node = self._nodes.get(host)
        if node is None:
            reached_at = self._source.reached_at
            at = reached_at(host) if reached_at else host
            made = Node(self._source.pools(*at), self._min_replicas, in_cluster=True)
            node = self._nodes.setdefault(host, made)
        return node

    @property
    def outage(self) -> tuple[float, float] | None:
        outages = [node.watch.outage for node in list(self._nodes.values())]
        return max(filter(None, outages), key=itemgetter(1), default=None)

    def close(self) -> None:
        nodes, self._nodes = list(self._nodes.values()), {}
        for node in nodes:
            node.close()

    def look_again(self, slots: SlotMap, ttl: float, host: Host | None, redirected: bool) -> None:
        """Look at the slots, unless another thread has just done so. A request to this host failed
        that was made by these `slots`; if `redirected` because the slot is elsewhere, otherwise the
        node may be down.
        """
        if self.known is slots and (redirected or clock() > self._looked_at + LOOK_EVERY):
            # If it fails, the request's own failure is what we report.
            with contextlib.suppress(LockUnavailable):
                self.look(ttl, "", host, redirected)

    def look(
        self, ttl: float, key: str, asked: Host | None = None, redirected: bool = False
    ) -> SlotMap:
        """Ask some nodes, in random order, who has which slot; one thread at a time."""
        mine = object()
        try:
            if not self._turn.take(mine, LONGEST_LOOK):
                if self.known is not None:
                    return self.known
                why = "another thread is asking which nodes there are"
                failure = RedisConnectionError(why)
                raise unavailable(key, failure) from failure
            self._looked_at = clock()
            found = self._newest(ttl, key, self._to_ask(asked, redirected))
            if self.known is not None:
                self._hold_off(self.known, found)
            self.known = found
            for host in {*self._nodes} - {*found.primaries, *found.replicas}:
                self._nodes[host].close()
                if host not in self._source.first:
                    del self._nodes[host]  # a node that comes back gets a new one
            return found
        finally:
            self._turn.give_back(mine)

    def _to_ask(self, asked: Host | None, redirected: bool) -> list[Host]:
        known = self.known
        hosts = {*self._source.first, *((*known.primaries, *known.replicas) if known else ())}
        shuffled = random.sample(sorted(hosts - {asked}), len(hosts - {asked}))
        if asked is None:
            return shuffled
        return [asked, *shuffled] if redirected else [*shuffled, asked]

    def _newest(self, ttl: float, key: str, hosts: list[Host]) -> SlotMap:
        """The newest of some nodes' answers: one that is cut off may have an old one."""
        newest: SlotMap | None = None
        failure: LockUnavailable | None = None
        for host in hosts[:ASKED]:
            try:
                found = slot_map(self.node(host).replies(COMMANDS, ttl, errors=True), host)
            except LockUnavailable as exc:
                failure = exc
                continue
            if newest is None or found.epoch > newest.epoch:
                newest = found
            if self.known is None or newest.epoch >= self.known.epoch:
                break
        if newest is not None:
            return newest
        assert failure is not None
        raise LockUnavailable(key, None, failure.reason) from failure.__cause__

    def _hold_off(self, before: SlotMap, after: SlotMap) -> None:
        """Hold off new locks in slots whose node is gone; a hold-off moves with its slots."""
        for host, former in after.taken_over(before).items():
            watch = self.node(host).watch
            for each in former:
                is_there = each in after.primaries
                changed_at = self.node(each).watch.changed_at if each and is_there else clock()
                if changed_at is not None:
                    watch.changed_at = max(changed_at, watch.changed_at or changed_at)
