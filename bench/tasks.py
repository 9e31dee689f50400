"""What a task that does nothing costs: publishing it, and draining it in solo and prefork."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from tests.support.servers import RedisServer

from .contenders import CONTENDERS, PLAIN
from .report import Bars, Column, Table, ratio
from .section import Run
from .stage import ContenderError, Stage
from .stats import percentile, ratios

POOLS = {"solo": 1, "prefork": 2}
#: It takes a second for each task: see the notes.
_LEFT_OUT = ("celery-heimdall",)
#: What most would write otherwise.
USUAL = "redis-py Lock in the body"
#: By contender and by what was measured, a figure for each round.
Figures = Mapping[str, Mapping[str, list[float]]]


def measure(run: Run) -> list[Table]:
    rounds, calls = run.size(35, 2), run.size(60, 30)
    names = [n for n in CONTENDERS if n == PLAIN or (n not in _LEFT_OUT and run.wants(n))]
    found: dict[str, dict[str, list[float]]] = {n: defaultdict(list) for n in names}
    #: What the plain task took right before each of those.
    beside = {n: found[n] if n == PLAIN else defaultdict(list) for n in names}
    sent: dict[str, float] = {}
    errors: dict[str, str] = {}
    for pool in POOLS:
        with RedisServer() as server, ExitStack() as stack:
            stages = start(names, server, pool, errors, stack, run)
            for number in range(rounds + 1):
                others = [name for name in stages if name != PLAIN] or [PLAIN]
                for name in random.sample(others, len(others)):
                    plain = one_round(stages[PLAIN], calls, pool)
                    try:
                        mine = one_round(stages[name], calls, pool)
                    except ContenderError as exc:
                        errors[name] = str(exc)
                        del stages[name]
                        continue
                    if number == 0:  # to warm up
                        continue
                    for kind in mine:
                        found[name][kind].append(mine[kind])
                        found[PLAIN][kind].append(plain[kind])
                        beside[name][kind].append(plain[kind])
                run.say(f"{pool}, round {number} of {rounds}: {calls} calls of each")
            if pool == "solo":
                sent = {name: stage.commands_of_a_call(server) for name, stage in stages.items()}
    return [table(found, beside, sent, errors, rounds, calls)]


def start(
    names: list[str],
    server: RedisServer,
    pool: str,
    errors: dict[str, str],
    stack: ExitStack,
    run: Run,
) -> dict[str, Stage]:
    """A frozen worker for each contender that works here."""
    stages = {}
    for name in names:
        try:
            stage = stack.enter_context(Stage(name, server, pool=pool, concurrency=POOLS[pool]))
        except ContenderError as exc:
            errors[name] = str(exc)
            continue
        stage.freeze()
        stages[name] = stage
    run.say(f"{pool}: {len(stages)} workers are ready")
    return stages


def one_round(stage: Stage, calls: int, pool: str) -> dict[str, float]:
    """Publish, while all workers are frozen, and drain: seconds for a call."""
    published = stage.publish(calls)
    seconds, cpu = stage.drain()
    return {
        "publish": published["seconds"],
        f"{pool} drain": seconds / calls,
        f"{pool} cpu": cpu / calls,
    }


def table(
    found: Figures,
    beside: Figures,
    sent: Mapping[str, float],
    errors: Mapping[str, str],
    rounds: int,
    calls: int,
) -> Table:
    kinds = ("publish", "solo drain", "prefork drain")
    rows = []
    for name, figures in found.items():
        row: dict[str, Any] = {"name": name, "error": errors.get(name)}
        if name not in errors:
            for kind, each in figures.items():
                if "cpu" in kind:  # it is counted in hundredths of a second
                    row[kind] = sum(each) / len(each) * 1e6
                else:
                    row[kind] = percentile(each, 0.5) * 1e6
                row[f"{kind} rounds"] = each
            for kind in kinds:
                pairs = {"its": beside[name][kind], "mine": figures[kind]}
                row[f"{kind} ratio"] = ratios(pairs, "its")["mine"]
            if USUAL in found and USUAL not in errors:
                for pool in POOLS:
                    # The plain one has a figure for each other task of a round.
                    mine = beside[USUAL] if name == PLAIN else figures
                    pairs = {"its": found[USUAL][f"{pool} drain"], "mine": mine[f"{pool} drain"]}
                    row[f"{pool} usual"] = ratios(pairs, "its")["mine"]
            row["solo times"] = row["solo drain ratio"][1]
            row["commands"] = sent[name]
        rows.append(row)
    columns = [
        Column("name", "task"),
        Column("publish", "publish µs", ",.0f"),
        Column("publish ratio", "against plain", ratio),
        Column("solo drain", "solo µs", ",.0f"),
        Column("solo drain ratio", "against plain", ratio),
        Column("solo usual", "against redis-py's", ratio),
        Column("solo cpu", "CPU µs", ",.0f"),
        Column("prefork drain", "prefork µs", ",.0f"),
        Column("prefork drain ratio", "against plain", ratio),
        Column("prefork usual", "against redis-py's", ratio),
        Column("prefork cpu", "CPU µs", ",.0f"),
        Column("commands", "commands", "g"),
    ]
    if errors:
        columns.append(Column("error", "does not work here"))
    return Table(
        "tasks",
        "A task that does nothing: publishing and draining",
        columns,
        rows,
        [
            f"{rounds} rounds, in each all tasks in a new random order, each right after the plain"
            f" one, with {calls} calls of different arguments each. Redis is the broker and, in"
            " another database, has the locks.",
            "Each has a worker and a sender of its own, which stand still while another is"
            " measured: some packages add receivers to Celery's signals that slow plain tasks"
            " down.",
            "*Drain*: from the first to the last of the calls that were waiting, for one call. All"
            f" ignore their results, nothing is logged; prefork has {POOLS['prefork']} processes.",
            "*Against plain*: against the plain task right before it, the median of the rounds'"
            " ratios, and their extremes. *CPU*: of the worker, with its pool, in the mean."
            " *Commands*: those that the locks' database is sent.",
            f"*Against redis-py's*: against the {USUAL} in the same round.",
            "celery-heimdall with `unique_lock_blocking=False`: by default each task waits a"
            " second, `unique_lock_timeout`, for the lock that its own sending took, then runs.",
        ],
        Bars(
            "A task that does nothing, drained in the solo pool: times a plain task", "solo times"
        ),
    )
