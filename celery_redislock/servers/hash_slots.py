"""Which node of a Redis Cluster has which hash slot. Does no I/O."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import ResponseError

from ..errors import LockUnavailable
from .restarts import info
from .urls import Host

#: What to ask a node: which node has which slot, and how new that is.
COMMANDS: Final = (("CLUSTER", "SLOTS"), ("CLUSTER", "INFO"))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class SlotMap:
    owners: Sequence[Host | None]  # of each slot
    primaries: tuple[Host, ...]
    replicas: Mapping[Host, Host]  # with their primaries
    epoch: int  # grows with each change that the nodes agree on; 0 if they do not tell

    def owner_of(self, key: str) -> Host | None:
        """The primary of the slot of this key; None if it has none."""
        return self.owners[key_slot(key.encode())]

    def any_primary(self) -> Host | None:
        """A primary chosen at random; None if there is none."""
        return random.choice(self.primaries) if self.primaries else None

    def taken_over(self, before: SlotMap) -> dict[Host, set[Host | None]]:
        """The former owners of the slots that each node got since then, by that node."""
        got: dict[Host, set[Host | None]] = {}
        for old, new in zip(before.owners, self.owners, strict=True):
            if new is not None and new != old:
                got.setdefault(new, set()).add(old)
        return got


def slot_map(replies: Sequence[Any], asked: Host) -> SlotMap:
    """Read the replies to `COMMANDS` of a node that we asked at this host and port."""
    ranges, fields = replies
    if isinstance(ranges, ResponseError):
        raise LockUnavailable("", None, f"CLUSTER SLOTS: {ranges}") from ranges
    owners: list[Host | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
    replicas: dict[Host, Host] = {}
    for start, end, primary, *others in ranges:
        owner = _host(primary, asked)
        owners[start : end + 1] = [owner] * (end + 1 - start)
        replicas.update((_host(each, asked), owner) for each in others)
    primaries = tuple(dict.fromkeys(each for each in owners if each is not None))
    # An error means that this user may not ask.
    told = info(fields) if isinstance(fields, bytes) else {}
    return SlotMap(owners, primaries, replicas, int(told.get("cluster_current_epoch", 0)))


def _host(node: Sequence[Any], asked: Host) -> Host:
    host, port = node[0], node[1]
    # A node that does not know its own address sends none: we have just reached it.
    return (host.decode() if host else asked[0]), port
