"""A hundred workers at once, on one lock server with much in it, and on a cluster."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias

import redis

from celery_redislock import RedisLock
from celery_redislock.app.settings import HISTORY
from celery_redislock.protocol import calls, past
from celery_redislock.protocol.claims import Acquired, Busy, Claim, Parked
from tests.support.clusters import ClusterSet
from tests.support.servers import RedisServer

from .crowd import together
from .growth import Client, message, parking, set_held
from .report import Column, Table
from .section import Run

#: Threads stand in for workers, in some processes: one process has one core at most.
PROCESSES = 4
#: The locks for which all contend.
FEW = 10
NODES = 3
#: Commands from so many microseconds on are noted one by one.
NOTED = 1000
MOST_NOTED = 10_000
#: The rooms of each worker, as the claims of their holders.
Rooms: TypeAlias = "list[Claim]"
Turns: TypeAlias = "Generator[str, None, None]"


@dataclasses.dataclass(frozen=True)
class Load:
    """What there is at the lock server, and what the workers do there.

    Attributes:
        there: what there is.
        count: how many of these.
        fill: adds them, for so many workers; the rooms of each worker.
        work: what a worker does, a turn at a time: what it has done.
        nodes: how many servers there are.
    """

    there: str
    count: int
    fill: Callable[[Client, int, int], list[Rooms]]
    work: Callable[[Client, int, Rooms], Turns]
    nodes: int = 1


def measure(run: Run) -> list[Table]:
    workers, seconds = run.size(100, 8), run.size(5.0, 0.5)
    keys, long, rooms = run.size((10**6, 10**5, 1000), (10**3, 10**3, 16))
    loads = [
        Load("nothing", 0, nothing, pairs),
        Load("held keys of one task", keys, held, pairs),
        Load("nothing", 0, nothing, contended),
        Load("waiting in one room", long, one_room, hands_on_or_parks),
        Load(f"waiting in {rooms:,} rooms", rooms * 100, many_rooms, turns),
        Load("nothing", 0, nothing, pairs, NODES),
        Load(f"waiting in {rooms:,} rooms", rooms * 100, many_rooms, turns, NODES),
    ]
    rows = []
    for load in loads:
        rows.append(one_load(load, workers, seconds))
        run.say(f"{load.count:,} {load.there}, {servers(load.nodes)}: {done(rows[-1]['done'])}")
    return [table(rows, workers, seconds)]


# -- what there is ------------------------------------------------------------------------------


def nothing(client: Client, count: int, workers: int) -> list[Rooms]:
    return [[] for _ in range(workers)]


def held(client: Client, count: int, workers: int) -> list[Rooms]:
    with redis.Redis.from_url(client.app.conf.redislock_url) as direct:
        set_held(client, direct, range(count))
    return nothing(client, 0, workers)


def one_room(client: Client, count: int, workers: int) -> list[Rooms]:
    """All have the same."""
    return _rooms(client, 1, count) * workers


def many_rooms(client: Client, count: int, workers: int) -> list[Rooms]:
    """Each worker has rooms of its own."""
    rooms = _rooms(client, count // 100, 100)
    return [[each for (each,) in rooms[first::workers]] for first in range(workers)]


def _rooms(client: Client, rooms: int, each: int) -> list[Rooms]:
    holders = [client.claim(client.key(f"room-{number}")) for number in range(rooms)]
    client.all(map(calls.acquire, holders), Acquired)
    waiting = (parking(client.claim(of.keys)) for _ in range(each) for of in holders)
    client.all(waiting, Parked)
    return [[of] for of in holders]


# -- what a worker does -------------------------------------------------------------------------


def pairs(client: Client, worker: int, rooms: Rooms) -> Turns:
    """A run with a lock that nobody else wants."""
    for number in itertools.count():
        claim = client.claim(client.key(f"worker-{worker}-{number}"))
        taken = client.server.run(calls.acquire(claim))
        assert isinstance(taken, Acquired), taken
        end = past.end_text(taken.fence, 0.001, past.SUCCEEDED)
        client.server.run(calls.settle(claim, calls.Release(run_end=end)))
        yield "runs"


def contended(client: Client, worker: int, rooms: Rooms) -> Turns:
    """Acquire and release one of few locks."""
    locks = [RedisLock(client.app, f"few-{number}", timeout=60) for number in range(FEW)]
    while True:
        with random.choice(locks):
            yield "acquisitions"


def hands_on_or_parks(client: Client, worker: int, rooms: Rooms) -> Turns:
    """One lock has one holder: one worker hands it on, and the others bring duplicates."""
    (holder,) = rooms
    while True:
        if worker == 0:
            holder = hand_on(client, holder)
            yield "hand-overs"
        else:
            bring(client, holder)
            yield "parked"


def turns(client: Client, worker: int, rooms: Rooms) -> Turns:
    """A duplicate is parked, and the first one of its room has its turn."""
    for number in itertools.cycle(range(len(rooms))):
        bring(client, rooms[number])
        rooms[number] = hand_on(client, rooms[number])
        yield "parked and handed on"


def bring(client: Client, holder: Claim) -> None:
    newcomer = client.claim(holder.keys)
    reply = client.server.run(calls.acquire(newcomer))
    assert isinstance(reply, Busy), reply
    client.park(newcomer)


def hand_on(client: Client, holder: Claim) -> Claim:
    offered = client.server.run(calls.settle(holder)).offered
    assert offered is not None
    return client.take_over(holder.keys, offered)


# -- measuring ----------------------------------------------------------------------------------


def one_load(load: Load, workers: int, seconds: float) -> dict[str, Any]:
    place = RedisServer() if load.nodes == 1 else ClusterSet(load.nodes, replicas=0)
    with place as servers, Client(servers.url, HISTORY) as client:
        nodes = [Node(each) for each in getattr(servers, "nodes", [servers])]
        before = sum(each.memory() for each in nodes)
        rooms = load.fill(client, load.count, workers)
        memory = [each.memory() for each in nodes]
        others = PROCESSES - 1
        # The first hands one room on: it does not share a process with those who bring duplicates.
        shares = [range(1), *(range(1 + first, workers, others) for first in range(others))]
        jobs = [
            (process, (servers.url, load.work, {n: rooms[n] for n in share}, seconds))
            for share in shares
        ]
        found = together(jobs, lambda: begin(nodes))
        told = [each.end() for each in nodes]
    total = sum((Counter(counts) for counts, _ in found), Counter[str]())
    commands = sum(each["commands"] for each in told)
    return {
        "there": f"{load.count:,} {load.there}" if load.count else load.there,
        "servers": load.nodes,
        "done": {what: count / seconds for what, count in total.items()},
        "commands": commands / seconds,
        "micros": sum(each["cpu"] for each in told) / commands * 1e6,
        "shares": [each["commands"] / commands for each in told],
        "busy": [each["cpu"] / each["seconds"] for each in told],
        "clients": sum(cpu for _, cpu in found) / seconds,
        "p99": max(each["p99"] for each in told),
        "longest": max(each["longest"] for each in told) or None,
        "redirected": sum(each["redirected"] for each in told),
        "memory": sum(memory) / 1e6,
        "each": (sum(memory) - before) / load.count if load.count else None,
    }


def begin(nodes: Sequence[Node]) -> None:
    for each in nodes:
        each.begin()


def process(
    ready: Callable[[], Any], url: str, work: Any, rooms: dict[int, Rooms], seconds: float
) -> tuple[Counter[str], float]:
    """These workers, each a thread.

    Returns:
        What they did, and the seconds of CPU that it took.
    """
    os.nice(10)  # workers are elsewhere, and do not interrupt the server
    counts: list[Counter[str]] = []
    with Client(url, HISTORY) as client:
        next(pairs(client, min(rooms) + 1000, []))  # connects
        ready()
        cpu, until = time.process_time(), time.monotonic() + seconds

        def worker(turns: Turns) -> None:
            mine: Counter[str] = Counter()
            while time.monotonic() < until:
                mine[next(turns)] += 1
            turns.close()  # gives back what it has
            counts.append(mine)

        threads = [
            threading.Thread(target=worker, args=[work(client, number, its)])
            for number, its in rooms.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len(counts) < len(threads):
            raise AssertionError("a worker failed")
        return sum(counts, Counter[str]()), time.process_time() - cpu


class Node:
    """A server, and what it says of itself."""

    def __init__(self, server: RedisServer) -> None:
        self._client = server.client()

    def memory(self) -> int:
        return int(self._client.info("memory")["used_memory"])

    def _cpu(self) -> float:
        told = self._client.info("cpu")
        return float(told["used_cpu_user"] + told["used_cpu_sys"])

    def begin(self) -> None:
        self._client.config_set("slowlog-log-slower-than", NOTED)
        self._client.config_set("slowlog-max-len", MOST_NOTED)
        self._client.slowlog_reset()
        self._client.config_resetstat()
        self._cpu_before, self._began = self._cpu(), time.monotonic()

    def end(self) -> dict[str, Any]:
        cpu, seconds = self._cpu() - self._cpu_before, time.monotonic() - self._began
        spread = self._client.info("latencystats")["latency_percentiles_usec_evalsha"]
        errors = self._client.info("errorstats")
        noted = self._client.slowlog_get(MOST_NOTED)
        told = {
            "cpu": cpu,
            "seconds": seconds,
            "commands": self._client.info("commandstats")["cmdstat_evalsha"]["calls"],
            "p99": spread["p99"] / 1000,
            "longest": max((each["duration"] / 1000 for each in noted), default=0.0),
            "redirected": sum(
                errors.get(f"errorstat_{name}", {"count": 0})["count"]
                for name in ("MOVED", "ASK", "CROSSSLOT")
            ),
        }
        self._client.close()
        return told


# -- for people ---------------------------------------------------------------------------------


def servers(nodes: int) -> str:
    return "one server" if nodes == 1 else f"{nodes} nodes"


def done(rates: dict[str, float]) -> str:
    return ", ".join(f"{rate:,.0f} {what}" for what, rate in sorted(rates.items()))


def each_node(shares: Sequence[float]) -> str:
    return ", ".join(f"{share:.0%}" for share in shares)


def table(rows: list[dict[str, Any]], workers: int, seconds: float) -> Table:
    return Table(
        "load",
        f"{workers} workers at once",
        [
            Column("there", "at the server before"),
            Column("servers", "nodes", "d"),
            Column("done", "done in a second", done),
            Column("commands", "commands/s", ",.0f"),
            Column("micros", "CPU µs a command", ",.0f"),
            Column("busy", "a node's core", each_node),
            Column("clients", "workers' cores", ".2f"),
            Column("shares", "commands by node", each_node),
            Column("p99", "p99 ms", ".2f"),
            Column("longest", "longest ms", ",.1f"),
            Column("memory", "MB", ",.0f"),
            Column("each", "bytes each", ",.0f"),
        ],
        rows,
        [
            f"{seconds:g} s for each row. The workers are threads in {PROCESSES} processes on the"
            " same machine, and do nothing but ask the lock server, as a delivery does: no broker,"
            " no body. *Runs*: acquire and release, each of a new key. *Acquisitions*: of one of"
            f" {FEW} locks, by a `RedisLock`. *Parked*: a duplicate is refused, then parked."
            " *Hand-overs*: the holder's release names the first of its room, whose message takes"
            " the lock.",
            "*CPU*: of the server, for each command that the workers sent. *Commands by node*:"
            f" {sum(row['redirected'] for row in rows)} of all were for a key of another node, or"
            " for keys of several.",
            "*A node's core*: how much of one core each server used. One server cannot use more"
            " than one. *Workers' cores*: all workers together. Where both add up to the machine's"
            " cores, a row shows how that machine shares them out, and not what the servers can do:"
            " three nodes here are no faster than one, but each of them does a third of the work.",
            "*p99*, *longest*: milliseconds for which a script stopped its server; the machine"
            f" interrupts some. Empty: none above {NOTED / 1000:g} ms.",
            "*MB*, *bytes each*: the servers' memory before the workers begin, and what each of the"
            f" keys or waiting tasks takes of it: of a task, its message ({len(message('i' * 36))}"
            " bytes) included.",
        ],
    )
