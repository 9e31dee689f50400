"""How many locks a failover forgets, with and without replicas that confirm:

    python -m tests.proofs.failovers [rounds]

In each round clients take locks, one after the other. Then the replica no longer gets what is
written, and 0.1 s later the master dies. When the replica leads, a client that knows nothing of
this asks for all locks that had been taken. Each one that it gets has two holders.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
import uuid
from collections.abc import Callable, Container, Sequence

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from celery_redislock import LockUnavailable
from celery_redislock.protocol import calls
from celery_redislock.protocol.claims import Acquired
from celery_redislock.protocol.keys import lock_keys
from celery_redislock.servers.factory import server_at
from celery_redislock.servers.server import Server
from celery_redislock.servers.urls import source_from_url
from tests.contract.servers.test_store import make_claim
from tests.support.clusters import ClusterSet
from tests.support.servers import RedisServer, SentinelSet
from tests.support.waiting import eventually

TTL = 30.0
CLIENTS = 4
#: Seconds from the cut to the master's end.
CUT_FOR = 0.1
KINDS: dict[str, Callable[[], SentinelSet | ClusterSet]] = {
    "sentinel": lambda: SentinelSet(sentinels=1),
    "cluster": ClusterSet,
}


@dataclasses.dataclass
class Count:
    """What was seen: locks taken in all, those after the replica was cut off, those that were
    refused then, and those that two held.
    """

    taken: int = 0
    taken_late: int = 0
    refused: int = 0
    twice: int = 0


def round_on(kind: str, min_replicas: int) -> Count:
    with KINDS[kind]() as servers:
        source = source_from_url(servers.url, servers.transport_options)
        careful = server_at(source, 1)
        eventually(lambda: takes(careful), "the replica is there")
        careful.close()
        names, count = take_and_kill(server_at(source, min_replicas), servers)
        stranger = server_at(source)
        eventually(lambda: takes(stranger), "the replica leads")
        for name in names:
            answer = stranger.run(calls.acquire(make_claim(name, ttl=TTL)))
            count.twice += isinstance(answer, Acquired)
        stranger.close()
        return count


def take_and_kill(store: Server, servers: SentinelSet | ClusterSet) -> tuple[Sequence[str], Count]:
    names: list[str] = []
    some_key = lock_keys("redislock", "some").lock
    master = servers.primary_of(some_key) if isinstance(servers, ClusterSet) else servers.master
    slots = slots_of(servers, master)
    count, cut, over = Count(), threading.Event(), threading.Event()

    def take() -> None:
        while not over.is_set():
            name, was_cut = uuid.uuid4().hex, cut.is_set()
            if key_slot(lock_keys("redislock", name).lock.encode()) not in slots:
                continue
            try:
                store.run(calls.acquire(make_claim(name, ttl=TTL)), once=True)
            except LockUnavailable:
                count.refused += was_cut
                continue
            names.append(name)
            count.taken_late += was_cut

    threads = [threading.Thread(target=take) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(names) > 200, "some locks are taken")
    with master.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-psync", "-sync")
        client.execute_command("CLIENT", "KILL", "TYPE", "replica")
    cut.set()
    time.sleep(CUT_FOR)
    eventually(lambda: count.taken_late + count.refused > 0, "some ask after the cut")
    over.set()
    if isinstance(servers, ClusterSet):
        servers.kill_primary_of(some_key)
    else:
        servers.kill_master()
    for thread in threads:
        thread.join()
    store.close()
    count.taken = len(names)
    return names, count


def slots_of(servers: SentinelSet | ClusterSet, master: RedisServer) -> Container[int]:
    """The hash slots that this server has."""
    if isinstance(servers, SentinelSet):
        return range(REDIS_CLUSTER_HASH_SLOTS)
    ranges = servers.ranges(master)
    return {
        slot
        for first, last, port in ranges
        if port == master.port
        for slot in range(first, last + 1)
    }


def takes(store: Server) -> bool:
    """Whether a lock can be taken there now."""
    try:
        store.run(calls.acquire(make_claim(uuid.uuid4().hex, ttl=0.5)), once=True)
    except LockUnavailable:
        return False
    return True


def main(rounds: int) -> None:
    head = ("lock server", "min_replicas", "taken", "after the cut", "refused", "two hold it")
    print("  ".join(f"{each:>13}" for each in head))
    for kind in KINDS:
        for min_replicas in (0, 1):
            total = Count()
            for _ in range(rounds):
                for name, value in dataclasses.asdict(round_on(kind, min_replicas)).items():
                    setattr(total, name, getattr(total, name) + value)
            row = (kind, min_replicas, *dataclasses.astuple(total))
            print("  ".join(f"{each:>13}" for each in row), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 5)
