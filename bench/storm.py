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
PLAIN, STORM = "plain", "noop"
_WARM_UP = 50
#: Duplicates of a policy that takes its time: Redis ends a `BLPOP` a tenth of a second late.
FEW = 50


def measure(run: Run) -> list[Table]:
    rounds = run.size(5, 3)
    calls = {STORM: run.size(2000, 60), PLAIN: run.size(500, 60)}
    rows = []
    for policy in POLICIES:
        if run.wants(policy):
            mine = {**calls, STORM: FEW} if policy.startswith("Wait") else calls
            rows.append(one_policy(policy, rounds, mine))
            run.say(f"{policy}: {rounds} rounds of {mine[STORM]} duplicates")
    return [table(rows, rounds, calls)]


def one_policy(policy: str, rounds: int, calls: Mapping[str, int]) -> dict[str, Any]:
    """On servers and workers of its own, since some leave thousands of tasks waiting."""
    found: dict[str, list[float]] = defaultdict(list)
    moved = []
    with (
        RedisServer() as server,
        RedisServer() as locks,
        locks.client() as client,
        Stage(policy, server, locks=locks) as stage,
        closing(stage.another_worker("held")),
    ):
        assert stage.sender is not None
        stage.sender.send("hold", ["storm"], "held")
        stage.note("start:storm")
        stage.freeze()
        for task in (PLAIN, STORM):
            stage.publish(_WARM_UP, task)
            stage.drain()
        for _ in range(rounds):
            for task in random.sample((PLAIN, STORM), 2):
                before = bytes_moved(client)
                stage.publish(calls[task], task)
                seconds, _ = stage.drain()
                found[task].append(seconds / calls[task])
                if task == STORM:
                    moved.append((bytes_moved(client) - before) / calls[task])
        sent = stage.commands_of_a_call(locks)
        if stage.notes.exists("end:storm"):
            raise ContenderError(f"{policy}: the task whose duplicates they are has ended")
    return row(policy, found, sent, min(moved))


def row(policy: str, found: Mapping[str, list[float]], sent: float, moved: float) -> dict[str, Any]:
    # Of speeds: a share of 1 is as fast as a task that does nothing.
    speeds = {task: [1 / each for each in seconds] for task, seconds in found.items()}
    share = ratios(speeds, PLAIN)[STORM]
    return {
        "name": policy,
        "ours": True,
        "duplicate": percentile(found[STORM], 0.5) * 1e6,
        "plain": percentile(found[PLAIN], 0.5) * 1e6,
        "share": share,
        "speed": share[1],
        "commands": sent,
        "bytes": moved,
        "rounds": dict(found),
    }


def table(rows: list[dict[str, Any]], rounds: int, calls: Mapping[str, int]) -> Table:
    return Table(
        "storm",
        "A storm of duplicates of one running task",
        [
            Column("name", "policy"),
            Column("duplicate", "a duplicate µs", ",.0f"),
            Column("plain", "a plain task µs", ",.0f"),
            Column("share", "share of plain speed", ratio),
            Column("commands", "commands", "g"),
            Column("bytes", "bytes", ",.0f"),
        ],
        rows,
        [
            f"{rounds} rounds of {calls[STORM]:,} duplicates and {calls[PLAIN]:,} plain tasks that"
            " do nothing, drained by the same worker (solo, results ignored); another worker runs"
            " the task whose duplicates they are.",
            "*Share of plain speed*: duplicates a second to plain tasks a second in the same round,"
            " the median of the rounds, and their extremes.",
            "*Commands* and *bytes*, in both directions: between the workers and the locks' server,"
            " a server of its own, for a duplicate.",
            "A `Defer`ed duplicate is also published again. `Wait` is given a millisecond, which"
            f" Redis makes a tenth of a second, and {FEW} duplicates a round.",
        ],
        Bars("A storm of duplicates: share of a plain task's speed", "speed"),
    )
