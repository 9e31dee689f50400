"""The torture of Redis in Action, 6.2: many clients, one lock, ten seconds. Who lets two in?

    python -m tests.proofs.torture

runs it over our lock and three others, with and without clients that are stopped at random
moments, and prints a table.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from tests.support.figures import write_section
from tests.support.servers import RedisServer

from .locks import ASKABLE, CONTENDERS
from .report import Result, as_json, markdown, surroundings, table
from .run import SCENES, Run, failures, torture

#: The whole: as many clients as in the book, and ten times as many, for as long as there.
CLIENTS = [5, 50]
SECONDS = 10.0
DOCUMENT = Path(__file__).parents[3] / "docs" / "figures.md"
#: The columns of the terminal that the table needs.
WIDTH = 130


def plan(
    locks: Sequence[str], clients: Sequence[int], scenes: Sequence[str], seconds: float, seed: int
) -> list[Run]:
    """All runs: each scene with each lock, asked and not asked, with each number of clients."""
    return [
        Run(lock, asks, count, scene, seconds, seed=seed)
        for scene in scenes
        for lock in locks
        for asks in ((True, False) if lock in ASKABLE else (False,))
        for count in clients
    ]


def run_all(runs: Sequence[Run], say: Callable[[str], None]) -> list[Result]:
    results: list[Result] = []
    with RedisServer() as server:
        for number, run in enumerate(runs, 1):
            verdict = torture(run, server)
            results.append((run, verdict))
            say(
                f"[{number:2}/{len(runs)}] {run.label}: {verdict.sections} sections,"
                f" {verdict.double} double, {verdict.unknowing} unknowing"
            )
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.proofs.torture", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each run (default: 10)")
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS, metavar="N")
    parser.add_argument("--lock", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--scene", nargs="+", choices=SCENES, default=SCENES)
    parser.add_argument("--seed", type=int, help="of the random choices (default: a new one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the results, for machines")
    parser.add_argument("--write", action="store_true", help="write them into the documents")
    options = parser.parse_args(arguments)
    seed = random.randrange(10**6) if options.seed is None else options.seed
    runs = plan(options.lock, options.clients, options.scene, options.seconds, seed)
    if options.write and runs != plan(list(CONTENDERS), CLIENTS, SCENES, SECONDS, seed):
        parser.error("--write takes the whole: no other option but --seed and --json")
    if "python-redis-lock" in options.lock and find_spec("redis_lock") is None:
        parser.error("python-redis-lock is missing: pip install python-redis-lock")
    print(f"seed {seed}, {len(runs)} runs of {options.seconds:g} s", flush=True)
    results = run_all(runs, lambda line: print(line, flush=True))
    # Cut short by nothing: its lines are as long as they are.
    Console(width=WIDTH).print(table(results))
    if options.json:
        options.json.write_text(as_json(results, surroundings(seed)), encoding="utf-8")
    if options.write:
        write_section(DOCUMENT, "torture", markdown(results, surroundings(seed)))
    wrong = [line for run, v in results if run.lock == "ours" for line in failures(run, v)]
    for line in wrong:
        print(f"FAILED {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
