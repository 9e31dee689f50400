"""What is kept about tasks that have ended, with `acks_late`: how many done notes, for how long."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import redis

from celery_redislock.protocol.notes import DONE_TTL
from celery_redislock.worker.finished import REMEMBERED
from tests.support.servers import RedisServer

from .contenders import OURS
from .report import Column, Table
from .section import Run
from .stage import Stage

POOLS = ("prefork", "threads", "solo", "gevent")
#: Tasks a second for each worker, and seconds that forgetting the last notes may take.
RATE, PATIENCE = 50, 30.0
#: Seconds after which a Redis broker delivers again what is not acknowledged: kombu's default.
VISIBILITY = 3600.0
#: Tasks a second for which the table computes the memory.
A_SECOND = 1000


def measure(run: Run) -> list[Table]:
    seconds = run.size(1.5 * REMEMBERED, 3.0)
    with contextlib.ExitStack() as stack:
        watched = [stack.enter_context(Watched(pool)) for pool in POOLS if run.wants(pool)]
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            began = time.monotonic()
            for each in watched:
                each.publish(RATE)
            for each in watched:
                each.look()
            time.sleep(max(began + 1 - time.monotonic(), 0))
        run.say(f"tasks of {seconds:g} s have run, in {len(watched)} workers")
        give_up = time.monotonic() + run.size(REMEMBERED + PATIENCE, 0.0)
        while any(each.notes() for each in watched) and time.monotonic() < give_up:
            time.sleep(1)
        return [table([each.row() for each in watched], seconds)]


class Watched:
    """A worker with a lock server of its own, which is watched."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._sent = self._most = 0
        self._oldest = self._used = 0.0

    def __enter__(self) -> Watched:
        with contextlib.ExitStack() as stack:
            enter = stack.enter_context
            server, locks = enter(RedisServer()), enter(RedisServer())
            self._client: redis.Redis = enter(locks.client())
            self._stage = enter(
                Stage(
                    OURS,
                    server,
                    locks=locks,
                    pool=self._pool,
                    concurrency=1 if self._pool == "solo" else 2,
                    task_acks_late=True,
                    redislock_history=0,  # it grows until the end, and would hide what notes take
                )
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._stack.close()

    def publish(self, count: int) -> None:
        assert self._stage.sender is not None
        self._stage.sender.publish("noop", self._sent, count, self._stage.queue)
        self._sent += count

    def notes(self) -> list[str]:
        return [key for key in self._client.scan_iter(count=5000) if ":done:" in key]

    def look(self) -> None:
        """Note how many there are, how old the oldest is, and what the server uses."""
        keys = self.notes()
        asks = self._client.pipeline(transaction=False)
        for key in keys:
            asks.pttl(key)
        lives = [left / 1000 for left in asks.execute() if left > 0]
        if len(keys) > self._most:
            self._most, self._used = len(keys), self._memory()
        self._oldest = max(self._oldest, *(DONE_TTL + VISIBILITY - left for left in lives), 0.0)

    def _memory(self) -> int:
        return int(self._client.info("memory")["used_memory"])

    def row(self) -> dict[str, Any]:
        left = self.notes()
        # For each note that was forgotten since, with its share of the server's tables.
        gone = self._most - len(left)
        each = (self._used - self._memory()) / gone if gone else None
        return {
            "pool": self._pool,
            "tasks": self._sent,
            "most": self._most,
            "oldest": self._oldest,
            "bytes": each,
            "megabytes": None if each is None else A_SECOND * self._oldest * each / 1e6,
            "left": len(left),
        }


def table(rows: list[dict[str, Any]], seconds: float) -> Table:
    return Table(
        "notes",
        "Done notes",
        [
            Column("pool", "pool"),
            Column("tasks", "tasks run", ",d"),
            Column("most", "most notes at once", ",d"),
            Column("oldest", "oldest, s", ".1f"),
            Column("bytes", "bytes of a note", ",.0f"),
            Column("megabytes", f"MB at {A_SECOND:,} tasks/s", ".0f"),
            Column("left", "left afterwards", ",d"),
        ],
        rows,
        [
            f"A worker with `acks_late` runs {RATE} different tasks a second, for {seconds:g} s."
            " *Oldest*: the age of the oldest note that was found, once a second.",
            "*Bytes*: what the server used with the most notes, less what it used when they were"
            " gone, for each; no history is kept. *MB*: if all notes of so many tasks a second get"
            " that old.",
        ],
    )
