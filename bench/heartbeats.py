"""Many locks held by one process: what keeping them alive costs, and whether it is in time."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

import redis

from celery_redislock import RedisLock
from tests.support.servers import RedisServer

from .crowd import together
from .report import Column, Table
from .section import Run

#: Seconds. A whole number: python-redis-lock takes no other.
TTL = 3
OURS, PEER = "celery-redislock", "python-redis-lock, auto_renewal"
#: Each takes a thread and a connection: most machines refuse more.
PEER_MOST = 1000


def measure(run: Run) -> list[Table]:
    counts = run.size((1, 100, 1_000, 10_000), (1, 100))
    seconds = run.size(3, 2) * TTL
    rows = []
    for count in counts:
        for name in (OURS, PEER):
            if run.wants(name) and (name == OURS or count <= PEER_MOST):
                with RedisServer("--maxclients", "20000") as server:
                    rows.append(one_process(server, name, count, seconds))
                run.say(f"{count:,} locks of {name}: held for {seconds:g} s")
    return [table(rows, seconds)]


def one_process(server: RedisServer, name: str, count: int, seconds: float) -> dict[str, Any]:
    seen = Seen()

    def watch() -> None:
        time.sleep(TTL)  # connections are made with the first beat
        with server.client() as client:
            _watch(client, _sample(server.url, name, count), seconds, seen)

    ((cpu, sent, threads),) = together([(holder, (server.url, name, count, seconds))], watch)
    return {
        "locks": count,
        "name": name,
        "commands": seen.commands / seconds,
        "round_trips": sent / seconds,
        "cpu": cpu / seconds,
        "late": max((TTL - BEAT[name] * TTL) * 1000 - seen.least, 0),
        "lapsed": seen.lapsed,
        "threads": threads,
        "connections": seen.connections,
    }


#: The part of the ttl after which each extends: as documented.
BEAT = {OURS: 0.3, PEER: 2 / 3}
#: Locks that are looked at, of all, and seconds between looks.
SAMPLE, LOOK_EVERY = 50, 0.01


@dataclasses.dataclass
class Seen:
    """What was seen at the server.

    Attributes:
        least: the fewest milliseconds that a lock still had to live.
        lapsed: how often one was found gone.
        commands: extensions.
        connections: of all clients but the one that looks.
    """

    least: float = TTL * 1000.0
    lapsed: int = 0
    commands: int = 0
    connections: int = 0


def _sample(url: str, name: str, count: int) -> list[str]:
    """The keys of some of the locks, the first and the last among them."""
    step = max((count - 1) // SAMPLE, 1)
    names = [f"beat-{number}" for number in {*range(0, count, step), count - 1}]
    return [RedisLock(url, n).key if name == OURS else f"lock:{n}" for n in names]


def _watch(client: redis.Redis, keys: list[str], seconds: float, seen: Seen) -> None:
    """Look again and again how long these locks still have to live."""
    before = _extensions(client)
    seen.connections = int(client.info("clients")["connected_clients"]) - 1
    until = time.monotonic() + seconds
    looks = client.pipeline(transaction=False)
    while time.monotonic() < until:
        for key in keys:
            looks.pttl(key)
        left = looks.execute()
        seen.lapsed += sum(each < 0 for each in left)
        seen.least = min(seen.least, *left)
        time.sleep(LOOK_EVERY)
    seen.commands = _extensions(client) - before


def _extensions(client: redis.Redis) -> int:
    """How many scripts were called so far: all of them extend, while locks are just held."""
    return int(client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


def holder(
    ready: Callable[[], Any], url: str, name: str, count: int, seconds: float
) -> tuple[float, int, int]:
    """Hold so many locks for so long.

    Returns:
        Seconds of CPU, writes to sockets, and threads.
    """
    locks = list(_acquire(url, name, count))
    sent = _count_writes()
    ready()
    time.sleep(TTL)  # as `watch` does
    cpu, before = time.process_time(), len(sent)
    time.sleep(seconds)
    found = time.process_time() - cpu, len(sent) - before, threading.active_count()
    time.sleep(0.5)  # `watch` may end a little later
    del locks  # they lapse
    return found


def _acquire(url: str, name: str, count: int) -> Any:
    if name == OURS:
        for number in range(count):
            lock = RedisLock(url, f"beat-{number}", ttl=TTL)
            assert lock.acquire(0)
            yield lock
        return
    import redis_lock

    # redis-py's default is fewer; and a renewal that fails ends its thread with a traceback.
    client = redis.Redis.from_url(url, max_connections=2 * PEER_MOST)
    threading.excepthook = lambda _: None
    for number in range(count):
        lock = redis_lock.Lock(client, f"beat-{number}", expire=TTL, auto_renewal=True)
        assert lock.acquire(blocking=False)
        yield lock


def _count_writes() -> list[None]:
    """A list that gets an entry for each write to a server from now on."""
    written: list[None] = []
    send = redis.Connection.send_packed_command

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        written.append(None)
        return send(self, *args, **kwargs)

    redis.Connection.send_packed_command = counted  # type: ignore[method-assign]
    return written


def table(rows: list[dict[str, Any]], seconds: float) -> Table:
    return Table(
        "heartbeats",
        "Locks held by one process",
        [
            Column("locks", "locks", ",d"),
            Column("name", "by"),
            Column("commands", "commands/s", ",.1f"),
            Column("round_trips", "round trips/s", ",.1f"),
            Column("cpu", "CPU", ".2%"),
            Column("late", "late by up to ms", ",.0f"),
            Column("lapsed", "found lapsed", ",d"),
            Column("threads", "threads", "d"),
            Column("connections", "connections", "d"),
        ],
        rows,
        [
            f"One process holds the locks, of a ttl of {TTL} s, for {seconds:g} s, and does nothing"
            f" else. Ours are extended every {BEAT[OURS] * TTL:.2g} s, those of python-redis-lock"
            f" every {BEAT[PEER] * TTL:.2g} s. It has a thread for each lock, and is not asked for"
            f" more than {PEER_MOST:,}.",
            f"*Late*: beyond that, the longest that one of some {SAMPLE} of the locks went without"
            f" an extension, by its life as the server tells it every {LOOK_EVERY * 1000:.0f} ms."
            " *CPU*: of one core. *Round trips*: writes to a socket.",
        ],
    )
