"""What goes wrong in a Redis Cluster that has the locks. See `faults`.

The load has locks in every node. What is struck is the node, or the slot, of a lock that is held
and for which others wait.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

from redis.crc import key_slot

from tests.proofs.history import Event
from tests.proofs.wire import lock_key
from tests.support.clusters import ClusterSet, Onlooker
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

from .load import KEYS, OWN_KEYS
from .stage import ACKS, FORGETS, LONG, LOSES_DATA, Fault, Span, Stage


class Cluster(ClusterSet):
    """A Redis Cluster, whose client does not keep who looks at it waiting."""

    def client(self, timeout: float) -> Onlooker:  # type: ignore[override]
        return self.onlooker(timeout)


#: The hash slots of the load's locks and rooms.
SLOTS = sorted(
    key_slot(lock_key(name).encode())
    for name in {*KEYS, *(name for names in OWN_KEYS.values() for name in names)}
)


def _contended(stage: Stage) -> Event:
    """A long body that is inside. One waits for its lock in a pool slot, and asks for it as soon as
    it may be free; another one waits in its room.
    """
    start = stage.holder(LONG)
    brief = {"key": start.key.rpartition(":lock:")[2], "seconds": 0.2, "how": "return"}
    waiting = {stage.send(task, kwargs=brief, expires=None) for task in ("wait", "queue")}

    def all_wait() -> bool:
        return waiting <= {event.id for event in stage.history.events("refused", "parked")}

    with contextlib.suppress(AssertionError):  # they may be behind others in the queue
        eventually(all_wait, "others wait for its lock", 0.5 * stage.ttl)
    return start


# -- slots that move --------------------------------------------------------------------------


def move_slots(stage: Stage) -> None:
    """Some of the load's slots move to other nodes, one after the other. Each is half moved for a
    while: its keys are still where they were, and what is new there is refused.
    """
    first = key_slot(_contended(stage).key.encode())
    others = [slot for slot in SLOTS if slot != first]
    with stage.during("cluster_move_slots", unreachable=True):
        for slot in (first, first, *stage.rng.sample(others, 4)):
            _move(stage, slot, _another(stage, stage.locks.owner_of(slot)), (0.0, 0.3))


def _move(stage: Stage, slot: int, target: RedisServer, span: Span) -> None:
    source = stage.locks.begin_to_move(slot, target)
    try:
        stage.last(span)
    finally:
        stage.locks.end_move(slot, source, target)


def _another(stage: Stage, node: RedisServer) -> RedisServer:
    """Another primary."""
    ports = {node.port: node for node in stage.locks.primaries()}
    return ports[stage.rng.choice(sorted({*ports} - {node.port}))]


# -- nodes that are gone ----------------------------------------------------------------------


def kill_master(stage: Stage, lossy: bool = False) -> None:
    """A primary is killed, and its replica takes over; if `lossy`, without the newest locks."""
    key = _contended(stage).key
    with stage.during("cluster_kill_master", unreachable=True):
        if lossy:
            stage.locks.cut_replication(key)
            stage.pause(0.1, 0.5 * stage.ttl)
        stage.locks.kill_primary_of(key)
        stage.pause(0, stage.ttl)
        stage.locks.mend()


def failover(stage: Stage) -> None:
    """An operator has a replica take over. The primary first lets it have all its data."""
    key = _contended(stage).key
    with stage.during("cluster_failover", unreachable=True):
        stage.locks.failover(key)
        stage.locks.mend()


def stop_node(stage: Stage, span: Span) -> None:
    """SIGSTOP of a primary. No other node takes over: connections stand, and nobody answers."""
    node = stage.locks.primary_of(_contended(stage).key)
    with stage.during("cluster_stop_node", unreachable=True):
        node.stop()
        try:
            stage.last(span)
        finally:
            node.resume()


def restart(stage: Stage, one: bool = False) -> None:
    """All nodes are killed, or if `one` a primary, and come back before a replica takes over. They
    refuse all for two seconds; the ttl is longer.
    """
    node = stage.locks.primary_of(_contended(stage).key)
    with stage.during("cluster_restart", unreachable=True):
        if one:
            node.kill()
        else:
            stage.locks.switch_off()
        stage.pause(0.0, 0.5)
        stage.locks.mend()


# -- all of them ------------------------------------------------------------------------------

#: One pool with processes and one without are enough, and mostly late acknowledgement, with which
#: there are more copies of messages: what differs is the server.
_HERE: dict[str, Any] = {"locks": Cluster, "pools": ("prefork", "gevent"), "acks": ("late",)}
_BOTH = {**_HERE, "acks": ACKS}
_ALL = (
    Fault(name="cluster_move_slots", inject=move_slots, **_HERE),
    Fault(name="cluster_failover", inject=failover, **_HERE),
    Fault(name="cluster_kill_master", inject=kill_master, allows=LOSES_DATA, **_BOTH),
    Fault(
        name="cluster_kill_master_lossy",
        inject=partial(kill_master, lossy=True),
        allows=LOSES_DATA,
        **_HERE,
    ),
    Fault(name="cluster_stop_node_long", inject=partial(stop_node, span=LONG), **_HERE),
    Fault(
        name="cluster_restart_node_empty",
        inject=partial(restart, one=True),
        allows=FORGETS,
        ttl=4.0,
        **_HERE,
    ),
    Fault(name="cluster_restart_empty", inject=restart, allows=FORGETS, ttl=4.0, **_BOTH),
)
FAULTS = {each.name: each for each in _ALL}
