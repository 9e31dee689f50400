"""Runs Celery's own tests plain and with every task guarded, and compares:

    python -m tests.foreign celery [--only GLOB] [--way GLOB]

It exits with 1 if a test passes plain, fails with ours, also when it is run again alone, and is not
named in `named.py`.
"""

from __future__ import annotations

import argparse
import os
import queue
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from fnmatch import fnmatchcase
from typing import NamedTuple

from .compare import NOT_RUN, Outcome, Verdict, differences, judge, reasons_for
from .named import CELERY
from .running import Run, Stage, stage
from .suites import GUARDED, PLAIN, Suite, Way, celery

#: More differences than this are no accidents of a busy machine.
_ALONE_AT_MOST = 40
_HEAD = ("tests", "way", "pass plain", "differ", "named", "unsteady", "flaws", "acquired", "s")


class Result(NamedTuple):
    """What a suite came to in one way."""

    suite: str
    way: str
    verdict: Verdict
    counts: Counter[str]
    seconds: float

    @property
    def row(self) -> tuple[object, ...]:
        verdict = self.verdict
        parts = verdict.named, verdict.unsteady, verdict.flaws
        lengths = [len(part) for part in parts]
        acquired = self.counts.get("acquired", "")
        compared = verdict.compared
        return self.suite, self.way, compared, sum(lengths), *lengths, acquired, round(self.seconds)


class Runner:
    """Runs groups side by side, each on a stage of its own, and tells how they go."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._free: queue.SimpleQueue[Stage] = queue.SimpleQueue()
        self._mutex = threading.Lock()
        self._done = self._all = 0
        for each in stages:
            self._free.put(each)
        self._pool = ThreadPoolExecutor(len(stages))

    def run_all(self, suite: Suite, work: Sequence[tuple[Way, str]]) -> list[Run]:
        self._all += len(work)
        return list(self._pool.map(lambda each: self._run(suite, *each), work))

    def _run(self, suite: Suite, way: Way, tests: str) -> Run:
        on = self._free.get()
        try:
            run = on.run(suite, way, tests)
        finally:
            self._free.put(on)
        ends = Counter(outcome.how for outcome in run.found.values())
        told = ", ".join(f"{n} {how}" for how, n in sorted(ends.items())) or run.told[-200:]
        with self._mutex:
            self._done += 1
            place = f"[{self._done}/{self._all}]"
            print(f"{place:9} {run.seconds:5.0f} s  {way.name:22} {tests}: {told}", flush=True)
        return run


def results_of(runner: Runner, suite: Suite, ways: Sequence[Way]) -> Iterable[Result]:
    work = [(way, group) for group in suite.groups for way in (PLAIN, *ways)]
    runs: dict[str, list[Run]] = defaultdict(list)
    for (way, _), run in zip(work, runner.run_all(suite, work), strict=True):
        runs[way.name].append(run)
    plain = _together(runs[PLAIN.name])
    for way in ways:
        own = runs[way.name]
        guarded = _together(own)
        differ = differences(plain, guarded)
        met = _met(own)
        reasons = reasons_for(differ, met, CELERY)
        again = [test for test in differ if test not in reasons]
        if len(again) > _ALONE_AT_MOST:
            again = []
        alone = _alone(runner, suite, way, again)
        counts: Counter[str] = sum(map(Counter, met.values()), Counter())
        verdict = judge(plain, guarded, alone, reasons)
        yield Result(suite.name, way.name, verdict, counts, sum(run.seconds for run in own))


def _alone(
    runner: Runner, suite: Suite, way: Way, tests: Sequence[str]
) -> dict[str, tuple[Outcome, Outcome]]:
    """How each of these tests ends by itself, plain and guarded."""
    plain = runner.run_all(suite, [(PLAIN, test) for test in tests])
    guarded = runner.run_all(suite, [(way, test) for test in tests])
    found = zip(tests, plain, guarded, strict=True)
    return {
        test: (one.found.get(test, NOT_RUN), other.found.get(test, NOT_RUN))
        for test, one, other in found
    }


def _together(runs: Iterable[Run]) -> dict[str, Outcome]:
    return {test: outcome for run in runs for test, outcome in run.found.items()}


def _met(runs: Iterable[Run]) -> dict[str, Mapping[str, int]]:
    return {test: met for run in runs for test, met in run.met.items()}


def report(results: Sequence[Result]) -> str:
    rows = [tuple(map(str, each)) for each in (_HEAD, *(result.row for result in results))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    for result in results:
        met = {how: n for how, n in sorted(result.counts.items()) if how != "acquired"}
        title = f"\n{result.suite}, {result.way}"
        told = ", ".join(f"{n} {how}" for how, n in met.items())
        lines.append(f"{title}: {told or 'no duplicates'}")
        by_reason: dict[str, list[str]] = defaultdict(list)
        for test, why in result.verdict.named.items():
            by_reason[why].append(test)
        for why, tests in by_reason.items():
            lines += [f"  named: {why}", *(f"    {test}" for test in tests)]
        lines += [f"  unsteady: {test}" for test in result.verdict.unsteady]
        for test, outcome in result.verdict.flaws.items():
            lines += [f"  FLAW: {test}: {outcome.how}", outcome.why]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.foreign", allow_abbrev=False)
    parser.add_argument("package", choices=["celery"])
    parser.add_argument("--only", metavar="GLOB", default="*", help="groups: 't/unit/app'")
    parser.add_argument("--way", metavar="GLOB", default="*", help="ways: '*skip'")
    parser.add_argument("--jobs", type=int, default=2, help="groups at once; default 2")
    given = parser.parse_args()
    os.nice(10)
    began, results = time.monotonic(), []
    with ExitStack() as stack:
        stages = [stack.enter_context(stage()) for _ in range(given.jobs)]
        runner = Runner(stages)
        for suite in celery():
            groups = [each for each in suite.groups if fnmatchcase(each, given.only)]
            ways = [each for each in GUARDED if fnmatchcase(each.name, given.way)]
            if groups:
                results += results_of(runner, suite._replace(groups=groups), ways)
    print(f"\n{report(results)}\n\n{time.monotonic() - began:.0f} s")
    return 1 if any(result.verdict.flaws for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
