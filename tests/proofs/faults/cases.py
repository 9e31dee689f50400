"""What is run: every fault on every broker and pool, with early and late acknowledgement."""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import kombu.transport.redis

from .faults import FAULTS
from .stage import ACKS, BROKERS, POOLS, Fault

#: Faults after which the broker must deliver again what a worker had.
REDELIVER = frozenset(
    {
        *("kill_worker", "kill_all_workers", "kill_everything", "several"),
        *("soft_shutdown", "cold_shutdown", "cut_broker", "cut_broker_cancels"),
        *("new_release", "two_fleets", "kill_replaced"),
    }
)


@dataclass(frozen=True)
class Case:
    """One set-up with one fault. What is random in it comes from a seed and the case's id."""

    broker: str
    pool: str
    acks: str
    fault: str

    @property
    def id(self) -> str:
        return f"{self.broker}-{self.pool}-{self.acks}-{self.fault}"

    @property
    def skip_reason(self) -> str | None:
        """Why this cannot be run with these versions, or None."""
        if self.broker == "redis" and self.fault in REDELIVER and not _looks_often():
            return "this kombu looks for unacknowledged messages only every 100 s"
        if self.fault == "cluster_reshard" and not shutil.which("redis-cli"):
            return "no redis-cli on this machine"
        return None


def _looks_often() -> bool:
    return hasattr(kombu.transport.redis.Channel, "unacked_restore_throttle")


def _cases_of(fault: Fault) -> Iterator[Case]:
    for broker, pool, acks in itertools.product(BROKERS, POOLS, ACKS):
        if broker in fault.brokers and pool in fault.pools and acks in fault.acks:
            yield Case(broker, pool, acks, fault.name)


#: The whole matrix.
FULL = [case for fault in FAULTS.values() for case in _cases_of(fault)]


#: What does not make a fault another kind of fault, but how long or how much, where, and whom.
_DEGREES = (
    *("_(short|long|little|much|any_key|key_with_ttl)$", "_at_.*", "_cancels$", "^lossy_"),
    *("(?<=cluster)_(move_.*|reshard|add_node)", "(?<=cluster_)(failover|kill_.*|cut_off_.*)"),
    "(?<=cluster_restart)_node",
    *("(?<=kill)_all_workers|(?<=kill)_everything", "(?<=stop)_main|(?<=stop)_worker"),
    *("_empty(?!_locks)|_with_data", "(?<=clock)_(forward|back)", "(?<=block)_(to|from)"),
    *("(?<=lose)_.*(?=_replies)", "^(soft|cold)(?=_shutdown)"),
)


def _kinds() -> Iterator[list[Fault]]:
    """The faults, and together those that differ only in a degree."""
    kinds: dict[str, list[Fault]] = {}
    for fault in FAULTS.values():
        kind = re.sub("|".join(_DEGREES), "", fault.name)
        if "_at_" in fault.name:
            kind += "_at"
        kinds.setdefault(kind, []).append(fault)
    yield from kinds.values()


def _short() -> Iterator[Case]:
    """Each kind of fault once, so that each pool, broker and acknowledgement comes as often."""
    all_turns = list(itertools.product(ACKS, POOLS, BROKERS))
    turns = itertools.cycle(all_turns)
    for number, faults in enumerate(_kinds()):
        fault = faults[number % len(faults)]
        cases = set(_cases_of(fault))
        for acks, pool, broker in itertools.islice(turns, len(all_turns)):
            case = Case(broker, pool, acks, fault.name)
            if case in cases:
                yield case
                break


#: A selection for every day.
SHORT = list(_short())
