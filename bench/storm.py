"""A storm of duplicates of one running task: what each policy costs."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from tests.support.servers import RedisServer

from .counting import bytes_moved
from .report import Bars, Column, Table, ratio
from .section import Run
from .stage import ContenderError, Stage
from .stats import percentile, ratios

POLICIES = (
    "Skip()",
    "Skip(result=0)",
    "Raise()",
    "Defer(delay=3600)",
    "Wait(timeout=0.001)",
    "Queue()",
    "Queue(limit=100)",
    "Coalesce()",
    "Replace(grace=60)",
)
PLAIN, ASKS, STORM = TASKS = "plain", "asks", "noop"
POOLS = {"solo": 1, "prefork": 2}
_WARM_UP = 50
#: How many duplicates a slow policy gets: Redis ends a `BLPOP` a tenth of a second late.
FEW = 50


def measure(run: Run) -> list[Table]:
    rounds = run.size(9, 3)
    calls = dict.fromkeys(TASKS, run.size(1000, 60))
    rows = []
    for policy in POLICIES:
        if run.wants(policy):
            mine = {**calls, STORM: FEW} if policy.startswith("Wait") else calls
            row: dict[str, Any] = {"name": policy, "ours": True}
            for pool in POOLS:
                row.update(one_policy(policy, pool, rounds, mine))
                run.say(f"{policy}, {pool}: {rounds} rounds of {mine[STORM]} duplicates")
            rows.append(row)
    return [table(rows, rounds, calls)]


def one_policy(policy: str, pool: str, rounds: int, calls: Mapping[str, int]) -> dict[str, Any]:
    """Measure it on its own servers and workers, since some leave thousands of tasks waiting."""
    found: dict[str, list[float]] = defaultdict(list)
    moved, written = [], []
    with (
        RedisServer() as server,
        RedisServer() as locks,
        locks.client() as client,
        Stage(policy, server, locks=locks, pool=pool, concurrency=POOLS[pool]) as stage,
        closing(stage.another_worker("held")),
    ):
        assert stage.sender is not None
        stage.sender.send("hold", ["storm"], "held")
        stage.note("start:storm")
        stage.freeze()
        for task in TASKS:
            stage.publish(_WARM_UP, task)
            stage.drain()
        for _ in range(rounds):
            for task in random.sample(TASKS, len(TASKS)):
                before = bytes_moved(client), stage.written_by_children()
                stage.publish(calls[task], task)
                seconds, _ = stage.drain()
                found[task].append(seconds / calls[task])
                if task == STORM:
                    moved.append((bytes_moved(client) - before[0]) / calls[task])
                    written.append((stage.written_by_children() - before[1]) / calls[task])
        # Too few for a sweep to come in between: a worker asks each bucket every two seconds.
        sent = stage.commands_of_a_call(locks, 3 if calls[STORM] == FEW else FEW)
        if stage.notes.exists("end:storm"):
            raise ContenderError(f"{policy}: the task whose duplicates they are has ended")
    figures = {
        "duplicate": percentile(found[STORM], 0.5) * 1e6,
        "plain": percentile(found[PLAIN], 0.5) * 1e6,
        "ratio": (against := ratios(found, PLAIN)[STORM]),
        "asks": ratios(found, ASKS)[STORM],
        "times": against[1],
        "rounds": dict(found),
    }
    if pool == "solo":
        return {f"{pool} {kind}": figure for kind, figure in figures.items()} | {
            "commands": sent,
            "bytes": min(moved),
        }
    return {f"{pool} {kind}": figure for kind, figure in figures.items()} | {"pipe": min(written)}


def table(rows: list[dict[str, Any]], rounds: int, calls: Mapping[str, int]) -> Table:
    return Table(
        "storm",
        "A storm of duplicates of one running task",
        [
            Column("name", "policy"),
            Column("solo duplicate", "solo µs", ",.0f"),
            Column("solo ratio", "against plain", ratio),
            Column("solo asks", "against asking", ratio),
            Column("prefork duplicate", "prefork µs", ",.0f"),
            Column("prefork ratio", "against plain", ratio),
            Column("prefork asks", "against asking", ratio),
            Column("commands", "commands", "g"),
            Column("bytes", "bytes", ",.0f"),
            Column("pipe", "pipe bytes", ",.0f"),
        ],
        rows,
        [
            f"{rounds} rounds of {calls[STORM]:,} duplicates, {calls[PLAIN]:,} plain tasks that do"
            f" nothing, and {calls[ASKS]:,} that only ask the locks' server, drained in turns by"
            " the same worker, results ignored; prefork has"
            f" {POOLS['prefork']} processes. Another worker runs the task whose duplicates they"
            " are.",
            "*Against plain*: the time of a duplicate against that of a plain task in the same"
            " round, the median of the rounds, and their extremes. *Against asking*: against a task"
            " whose body sends one `GET` to the locks' server, through no client: no task that must"
            " look whether a lock is held costs less.",
            "*Commands* and *bytes*, in both directions: between the workers and the locks' server,"
            " a server of its own, for a duplicate. *Pipe bytes*: what a pool process writes to"
            " its worker's main process, for a duplicate.",
            "A `Defer`ed duplicate is also published again. `Wait` is given a millisecond, which"
            f" Redis makes a tenth of a second, and {FEW} duplicates a round: its bytes"
            " contain what a worker asks every two seconds.",
        ],
        Bars("A storm of duplicates: times a plain task, solo", "solo times"),
    )
