"""What importing the package takes, beside what it uses of Celery and redis-py."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from . import report, stats
from .report import Column, Table
from .section import Run

OURS = "celery_redislock"
#: What a program needs anyway. All other modules that only we need are counted as ours.
THEIRS = ("amqp", "billiard", "celery", "kombu", "redis", "vine")
#: By the program, what it imports of ours. A worker has imported it all before its pool forks.
PROGRAMS = {
    "sends tasks": (OURS,),
    "runs tasks": (
        OURS,
        *(f"{OURS}.{each}" for each in ("tasks.tracer", "worker.request", "worker.sweeper")),
    ),
}

_IMPORT = """
import gc, sys, time
from importlib import import_module
gc.disable()
began = time.process_time()
for name in sys.argv[1:]:
    import_module(name)
print(time.process_time() - began, *sys.modules)
"""


def measure(run: Run) -> list[Table]:
    count = run.size(60, 10)
    rows = []
    for program, ours in PROGRAMS.items():
        if run.wants(program):
            rows.append(one_program(program, ours, count))
            run.say(f"{program}: {count} rounds")
    return [table(rows, count)]


def one_program(program: str, ours: Sequence[str], count: int) -> dict[str, Any]:
    # The first of each compiles what is not compiled yet.
    _, loaded = imported(ours)
    theirs = [name for name in loaded if name.partition(".")[0] in THEIRS]
    imported(theirs)
    contenders = {"theirs": theirs, "ours": ours}
    rounds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(count):
        for name in random.sample(list(contenders), len(contenders)):
            rounds[name].append(imported(contenders[name])[0])
    return {
        "name": program,
        "modules": sum(name.partition(".")[0] == OURS for name in loaded),
        "theirs": statistics.median(rounds["theirs"]) * 1000,
        "ours": statistics.median(rounds["ours"]) * 1000,
        "ratio": stats.ratios(rounds, "theirs")["ours"],
        "least": min(rounds["ours"]) / min(rounds["theirs"]),
        "rounds": rounds,
    }


def imported(names: Sequence[str]) -> tuple[float, list[str]]:
    """Import these in a fresh interpreter.

    Returns:
        The seconds of CPU that it took, and all modules in the order in which they began to load.
    """
    environment = {**os.environ}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT, *names],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    seconds, *loaded = done.stdout.split()
    return float(seconds), loaded


def table(rows: list[dict[str, Any]], count: int) -> Table:
    return Table(
        "imports",
        "Importing the package",
        [
            Column("name", "a program that"),
            Column("modules", "modules of ours", "d"),
            Column("theirs", "Celery and redis-py ms", ",.1f"),
            Column("ours", "with celery_redislock ms", ",.1f"),
            Column("ratio", "times", report.ratio),
            Column("least", "of the least", ".2f"),
        ],
        rows,
        [
            "CPU time of the imports in a fresh interpreter, with compiled modules and no garbage"
            " collection, as it is chance whose import one falls into: the median of"
            f" {count} rounds. On the left are those modules of Celery, redis-py and what they are"
            " made of that celery_redislock loads; on the right celery_redislock, which loads them"
            " itself. A module of the standard library that only ours needs counts as ours. *Of the"
            " least*: the shortest import with ours, divided by the shortest without, as others on"
            " the machine only add.",
            "A program that *runs tasks* is a worker's main process: it has imported all that"
            " before it makes the processes of its pool.",
        ],
    )
