"""A storm of duplicates on one key, under each policy; then nothing must be left of it.

A Redis, a worker with four pool processes, and one sender. When the last message has ended, only
what expires by itself, and what the history keeps, may still be there.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import redis
from celery import Celery

from celery_redislock import (
    Coalesce,
    Debounce,
    Defer,
    Policy,
    Queue,
    Raise,
    Replace,
    SingletonTask,
    Skip,
    Wait,
)
from tests.support.servers import RedisServer
from tests.support.workers import Worker

from .harness import Options, Proof, Result, Table

POLICIES: Final[dict[str, Policy]] = {
    "skip": Skip(),
    "raise": Raise(),
    "wait": Wait(timeout=0.2),
    "defer": Defer(delay=1, max_wait=30),
    "queue": Queue(),
    "coalesce": Coalesce(),
    "debounce": Debounce(quiet=0.5, max_wait=2),
    "replace": Replace(grace=1),
}
#: Seconds that a body takes.
BODY: Final = 0.002
#: What may be left: done notes expire, and the rest is the history and the buckets' counters.
STAYS: Final = frozenset({"done", "fence", "history", "turned"})

app = Celery("tests.proofs.storms")
app.conf.update(json.loads(os.environ.get("TEST_CONF", "{}")), task_ignore_result=True)


def runs() -> redis.Redis:
    return redis.Redis.from_url(app.conf.redislock_url)


def body() -> None:
    time.sleep(BODY)
    runs().incr("runs")


for name, policy in POLICIES.items():
    app.task(base=SingletonTask, name=name, shared=False, lock_key=name, on_conflict=policy)(body)


class Storm(NamedTuple):
    """What became of a storm.

    Attributes:
        sent: how many calls were sent.
        ran: how many bodies ran.
        drained_in: seconds from the last call until nothing was left.
        left: the keys that should not be there after `most` seconds.
    """

    sent: int
    ran: int
    drained_in: float
    left: list[str]


def storm(client: redis.Redis, name: str, seconds: float, rate: float, most: float) -> Storm:
    """Send calls at this rate, and wait until nothing is left of them."""
    before = int(client.get("runs") or 0)
    began, sent = time.monotonic(), 0
    while (now := time.monotonic() - began) < seconds:
        while sent < now * rate:
            app.tasks[name].apply_async(queue="storms")
            sent += 1
        time.sleep(0.001)
    ended = time.monotonic()
    while (left := left_of(client)) and time.monotonic() - ended < most:
        time.sleep(0.1)
    return Storm(sent, int(client.get("runs") or 0) - before, time.monotonic() - ended, left)


def left_of(client: redis.Redis) -> list[str]:
    """The keys of messages and locks that are still there."""
    return sorted(key for key in client.scan_iter(count=1000) if not _stays(key))


def _stays(key: str) -> bool:
    kind = key.partition("}:")[2].partition(":")[0]
    is_ours = key.startswith("redislock:")
    is_known = kind in STAYS or key.startswith("redislock:sweep:")
    return is_known if is_ours else key == "runs" or key.startswith("_kombu.binding")


def storms(
    names: list[str], seconds: float, rate: float, most: float
) -> Iterator[tuple[str, Storm]]:
    with RedisServer() as server:
        conf = {"broker_url": server.url, "redislock_url": server.url, "result_backend": server.url}
        app.conf.update(conf)
        worker = Worker(conf=conf, app="tests.proofs.storms", queues="storms", concurrency=4)
        try:
            worker.ready()
            for name in names:
                with server.client() as client:
                    yield name, storm(client, name, seconds, rate, most)
        finally:
            worker.close()


class Storms(Proof):
    name = "storms"
    about = "200 duplicates a second under each policy, and what is left; half an hour"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--seconds", type=float, default=120.0, help="for which calls are sent (default: 120)")
        add("--rate", type=float, default=200.0, help="calls in a second (default: 200)")

    def trials(self, options: Options) -> Sequence[str]:
        return list(POLICIES)

    def run(
        self, trial: str, seed: int, options: Options, history: Path, shared: None
    ) -> tuple[Storm, Sequence[str]]:
        ((_, told),) = storms([trial], options.seconds, options.rate, 600.0)
        return told, [f"left: {each}" for each in told.left]

    def tables(self, results: Sequence[Result]) -> Sequence[Table]:
        rows = [
            (
                *(f"`{type(POLICIES[result.trial]).__name__}`", f"{result.figures.sent:,}"),
                *(f"{result.figures.ran:,}", f"{result.figures.drained_in:.1f}"),
                len(result.figures.left),
            )
            for result in results
        ]
        head = ("policy", "calls", "ran", "drained in s", "other keys")
        return [Table("tests/proofs/FIGURES.md#storms", head, rows)]
