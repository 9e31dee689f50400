"""Many distinct keys: the memory that a live lock takes, and what is left of released ones."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from celery_redislock import RedisLock
from tests.support.servers import RedisServer

from .report import Column, Table
from .section import Run

#: Live locks that are measured.
SAMPLE = 1000
#: The most that are held at once: each is an object in this process as well.
HELD_MOST = 100_000


def measure(run: Run) -> list[Table]:
    rows = []
    for count in run.size((10, 1_000, 1_000_000), (10, 1_000)):
        with RedisServer() as server:
            rows.append(one_count(server, count))
        run.say(f"{count:,} keys in {rows[-1]['seconds']:.1f} s")
    return [table(rows)]


def one_count(server: RedisServer, count: int) -> dict[str, Any]:
    """Use so many keys: the first are held all at once, the others one after the other."""
    held = min(count, HELD_MOST)
    with server.client() as client:
        began = time.monotonic()
        locks = [RedisLock(server.url, f"key-{n}", ttl=600, heartbeat=False) for n in range(held)]
        for lock in locks:
            assert lock.acquire(0)
        live = sum(client.memory_usage(lock.key) for lock in locks[:SAMPLE]) / min(held, SAMPLE)
        for lock in locks:
            lock.release()
        for number in range(held, count):
            with RedisLock(server.url, f"key-{number}", ttl=600, heartbeat=False):
                pass
        return {
            "keys": count,
            "held": held,
            "live_bytes": live,
            "left": dict(Counter(map(kind, client.scan_iter(count=1000)))),
            "left_keys": client.dbsize(),
            "left_bytes": sum(map(client.memory_usage, client.scan_iter(count=1000))),
            "seconds": time.monotonic() - began,
        }


def kind(key: str) -> str:
    """The kind of a key: for ours, what follows the hash tag."""
    return key.split("}:")[-1].split(":")[0]


def table(rows: list[dict[str, Any]]) -> Table:
    return Table(
        "keys",
        "Distinct keys used",
        [
            Column("keys", "keys used", ",d"),
            Column("held", "held at once", ",d"),
            Column("live_bytes", "bytes of a live lock", ",.0f"),
            Column("left_keys", "keys left", ",d"),
            Column("left", "which", _in_words),
            Column("left_bytes", "bytes left", ",d"),
        ],
        rows,
        [
            "Each key is locked once, by a `RedisLock`, and released. *Bytes*: as `MEMORY USAGE`"
            " says, with the key's name and the server's own structures; of a live lock the mean.",
            "*Left*: after all were released, without waiting for anything to lapse. Fence counters"
            " stay, so that their numbers go on rising; each bucket of keys has one.",
        ],
    )


def _in_words(kinds: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
