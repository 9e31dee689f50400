"""How many locks a failover forgets, with and without replicas that confirm.

In each round clients take locks, one after the other. Then the replica no longer gets what is
written, and 0.1 s later the master dies. When the replica leads, a stranger that knows nothing of
this asks for all locks that had been taken. Each one that it gets has two holders.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import threading
import time
import uuid
from collections.abc import Callable, Container, Sequence
from pathlib import Path

from celery import Celery
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from celery_redislock import LockUnavailable, RedisLock
from tests.support.clusters import ClusterSet
from tests.support.servers import RedisServer, SentinelSet
from tests.support.waiting import eventually

from .harness import Options, Proof, Result, Table
from .history import History, read
from .wire import lock_key

TTL = 30.0
CLIENTS = 4
#: Seconds from the cut to the master's end.
CUT_FOR = 0.1
KINDS: dict[str, tuple[str, Callable[[], SentinelSet | ClusterSet]]] = {
    "sentinel": ("Sentinel", lambda: SentinelSet(sentinels=1)),
    "cluster": ("Redis Cluster", ClusterSet),
}


@dataclasses.dataclass
class Count:
    """What was seen: locks taken in all, those after the replica was cut off, those that were
    refused then, and those that two held.
    """

    taken: int
    taken_late: int
    refused: int
    twice: int


def round_on(kind: str, min_replicas: int, path: Path) -> Count:
    _, start = KINDS[kind]
    with start() as servers, contextlib.closing(History(path)) as history:
        careful, stranger = app_of(servers, 1), app_of(servers, 0)
        eventually(lambda: takes(careful, uuid.uuid4().hex), "the replica is there")
        take_and_kill(app_of(servers, min_replicas), servers, history)
        eventually(lambda: takes(stranger, uuid.uuid4().hex), "the replica leads")
        asked = [event for event in read(path, "asked") if event.taken]
        for event in asked:
            history.write("stranger", name=event.name, taken=takes(stranger, event.name))
    events = list(read(path))
    late = [event.taken for event in events if event.kind == "asked" and event.was_cut]
    twice = sum(event.kind == "stranger" and event.taken for event in events)
    return Count(len(asked), sum(late), len(late) - sum(late), twice)


def app_of(servers: SentinelSet | ClusterSet, min_replicas: int) -> Celery:
    app = Celery("failovers", broker="memory://", set_as_current=False)
    app.conf.redislock_url = servers.url
    app.conf.redislock_transport_options = dict(servers.transport_options)
    app.conf.redislock_min_replicas = min_replicas
    return app


def takes(app: Celery, name: str) -> bool:
    """Whether a lock can be taken there now. Nobody extends it: its owner is gone at once."""
    try:
        return RedisLock(app, name, ttl=TTL).acquire(timeout=0)
    except LockUnavailable:
        return False


def take_and_kill(app: Celery, servers: SentinelSet | ClusterSet, history: History) -> None:
    some_key = lock_key("some")
    master = servers.primary_of(some_key) if isinstance(servers, ClusterSet) else servers.master
    slots = slots_of(servers, master)
    cut, over = threading.Event(), threading.Event()

    def take() -> None:
        while not over.is_set():
            name, was_cut = uuid.uuid4().hex, cut.is_set()
            if key_slot(lock_key(name).encode()) in slots:
                history.write("asked", name=name, was_cut=was_cut, taken=takes(app, name))

    threads = [threading.Thread(target=take) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: len(history.events("asked")) > 200, "some locks are taken")
        with master.client() as client:
            client.execute_command("ACL", "SETUSER", "default", "-psync", "-sync")
            client.execute_command("CLIENT", "KILL", "TYPE", "replica")
        cut.set()
        time.sleep(CUT_FOR)
        eventually(lambda: history.events("asked")[-1].was_cut, "some ask after the cut")
    finally:
        over.set()
        if isinstance(servers, ClusterSet):
            servers.kill_primary_of(some_key)
        else:
            servers.kill_master()
        for thread in threads:
            thread.join()


def slots_of(servers: SentinelSet | ClusterSet, master: RedisServer) -> Container[int]:
    """The hash slots that this server has."""
    if isinstance(servers, SentinelSet):
        return range(REDIS_CLUSTER_HASH_SLOTS)
    ranges = [each for each in servers.ranges(master) if each[2] == master.port]
    return {slot for first, last, _ in ranges for slot in range(first, last + 1)}


class Failovers(Proof):
    name = "failovers"
    about = "how many locks a failover forgets, with and without replicas that confirm"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--rounds", type=int, default=5, help="failovers of each (default: 5)")

    def trials(self, options: Options) -> Sequence[str]:
        numbers = range(1, options.rounds + 1)
        return [f"{kind}-{count}-{n}" for kind in KINDS for count in (0, 1) for n in numbers]

    def run(
        self, trial: str, seed: int, options: Options, history: Path, shared: None
    ) -> tuple[Count, Sequence[str]]:
        kind, min_replicas, _ = trial.split("-")
        count = round_on(kind, int(min_replicas), history)
        kept = count.twice == 0 or min_replicas == "0"
        return count, [] if kept else [f"{trial}: {count.twice} confirmed locks were forgotten"]

    def tables(self, results: Sequence[Result]) -> Sequence[Table]:
        totals: dict[tuple[str, str], list[int]] = {}
        for result in results:
            kind, min_replicas, _ = result.trial.split("-")
            so_far = totals.setdefault((KINDS[kind][0], min_replicas), [0] * 4)
            so_far[:] = map(sum, zip(so_far, dataclasses.astuple(result.figures), strict=True))
        head = ("", "`min_replicas`", "locks taken", "of these after the cut")
        head += ("refused after the cut", "held twice after the failover")
        rows = [(*who, *n) for who, n in totals.items()]
        return [Table("docs/inside/servers.md#failovers", head, rows)]
