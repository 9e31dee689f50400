"""Hunts for planted faults, one after another, on random seeds: which property finds each, at which
seed, after how many seconds of CPU. A failure counts only if the course of the same seed does not
fail in the same way without the fault.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from . import planted
from .planting import ROOT


class Interpreter:
    """An interpreter that has the package, with a fault or without, and runs courses."""

    def __init__(self, fault: str = "") -> None:
        code = "from tests.simulation import mutants; mutants.serve()"
        planted_there = ("--planted", fault) if fault else ()
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, *planted_there],
            cwd=ROOT.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, fault: str, seed: int) -> dict[str, Any] | None:
        """What is known of the course of this seed; None if its plan cannot show the fault."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([fault, seed]), file=self._process.stdin, flush=True)
        told: dict[str, Any] | None = json.loads(self._process.stdout.readline())
        return told

    def __enter__(self) -> Interpreter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve() -> None:
    """Run the courses that come by the standard input, until that is closed."""
    from . import interpreter  # noqa: F401  before the package

    planted.plant_by(sys.argv)
    from . import run

    run.warm_up()
    for line in sys.stdin:
        fault, seed = json.loads(line)
        plan = run.plan_for(planted.EVERY[fault], seed)
        told = None if plan is None else run.in_a_fork(plan)
        reply = told and {"failures": told.failures, "cpu": told.counts.get("cpu", 0.0)}
        print(json.dumps(reply), flush=True)


def hunt(fault: str, clean: Interpreter, first: int, most: float) -> bool:
    """Hunt for a fault for at most so many seconds of CPU. Say which properties have found it, at
    which seed, after how many courses and seconds.
    """
    cpu, courses, seed = 0.0, 0, first - 1
    with Interpreter(fault) as mutated:
        while cpu < most:
            seed += 1
            told = mutated.run(fault, seed)
            if told is None:
                continue
            cpu, courses = cpu + told["cpu"], courses + 1
            # What is the world's own fault finds nothing.
            failed = {which for which, _ in told["failures"]} - {"died", "crashed"}
            if failed:
                known = clean.run(fault, seed)
                assert known is not None
                failed -= {which for which, _ in known["failures"]}
            if failed:
                by = ", ".join(sorted(failed))
                print(f"{fault}: {by}; seed {seed}, {courses} courses, {cpu:.1f} s", flush=True)
                return True
    print(f"{fault}: NOTHING; {courses} courses, {cpu:.1f} s", flush=True)
    return False


def main() -> None:
    p = argparse.ArgumentParser(prog='make simulate ARGS="--mutants"', description=__doc__)
    p.add_argument("--mutants", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--only", default="", metavar="TEXT", help="those with this in their names")
    p.add_argument("--but", default="", metavar="TEXT", help="not those that are in this text")
    p.add_argument("--of", choices=["known", "own", "faults"], help="only this list")
    p.add_argument("--minutes", type=float, default=10.0, help="of CPU, for each (10)")
    p.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed (0)")
    args = p.parse_args()
    every = {"known": planted.KNOWN, "own": planted.OWN, "faults": planted.FAULTS}
    wanted = [
        name
        for name in every.get(args.of, planted.EVERY)
        if args.only in name and name not in args.but
    ]
    with Interpreter() as clean:
        found = [hunt(name, clean, args.first, 60 * args.minutes) for name in wanted]
    sys.exit(not all(found))


if __name__ == "__main__":
    main()
