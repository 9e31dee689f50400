"""`python -m tests.proofs.faults`: the fault bench. See `--help`."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from tests.support.figures import write_section

from . import report
from .cases import FULL, SHORT, Case
from .checker import check
from .history import read
from .run import Result, run_all
from .soak import soak

DOCUMENT = Path(__file__).parents[3] / "docs" / "figures.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases that the command line names. 1 if anything is wrong."""
    options = _parser().parse_args(arguments)
    if options.check:
        return _check(options.check)
    cases = [] if options.soak else _chosen(options)
    if options.list:
        print("\n".join(case.id for case in cases))
        return 0
    seeds = range(options.seed, options.seed + options.seeds)
    runs = [(case, seed) for seed in seeds for case in cases]
    folder = Path(options.keep or tempfile.mkdtemp(prefix="redislock-faults-"))
    folder.mkdir(parents=True, exist_ok=True)
    if options.soak:
        results = _soak(options.soak, options.seed, folder)
    else:
        results = _run(runs, options.jobs, folder)
    print(report.text(results))
    if options.json:
        Path(options.json).write_text(json.dumps(report.as_json(results), indent=1))
    failed = [result for result in results if result.failed]
    for result in failed:
        print(f"wrong: {result.replay}\n       {result.history}")
    whole = not options.soak and {case for case, _ in runs} >= set(FULL)
    if whole and not failed:
        write_section(DOCUMENT, "faults", report.markdown(results, options.seed))
    if not failed and not options.keep:
        folder.rmdir()
    return bool(failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.proofs.faults",
        description="Injects faults while tasks run, and decides from the history what broke.",
    )
    parser.add_argument("--jobs", type=int, default=4, help="cases at once (default: 4)")
    parser.add_argument("--seed", type=int, default=1, help="of all that is random (default: 1)")
    parser.add_argument("--seeds", type=int, default=1, help="run with so many seeds, from --seed")
    parser.add_argument(
        "--only", metavar="PATTERN", action="append", help="cases whose id this glob matches"
    )
    parser.add_argument("--short", action="store_true", help="the selection that the tests run")
    parser.add_argument("--list", action="store_true", help="print the cases' ids, run nothing")
    parser.add_argument(
        "--soak",
        metavar="MINUTES",
        type=float,
        help="instead of cases: late-acknowledged tasks that wait, under kills, for so long",
    )
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    parser.add_argument("--keep", metavar="FOLDER", help="leave the histories of failures there")
    parser.add_argument("--check", metavar="HISTORY", help="check a history that was kept")
    return parser


def _chosen(options: argparse.Namespace) -> list[Case]:
    cases = SHORT if options.short else FULL
    if options.only:
        cases = [c for c in cases if any(fnmatchcase(c.id, each) for each in options.only)]
    for case in cases:
        if case.skip_reason:
            print(f"skipped: {case.id}: {case.skip_reason}")
    cases = [case for case in cases if not case.skip_reason]
    if not cases:
        sys.exit("no case has such an id; see --list")
    return cases


def _check(path: str) -> int:
    verdict = check(read(path))
    print("\n".join(map(str, verdict.violations)) or "nothing is wrong")
    return bool(verdict.violations)


def _soak(minutes: float, seed: int, folder: Path) -> list[Result]:
    results: list[Result] = []
    began = time.monotonic()
    for result in soak(minutes, seed, folder):
        results.append(result)
        messages = sum(sum(each.verdict.outcomes.values()) for each in results)
        spent = (time.monotonic() - began) / 60
        print(f"{spent:6.1f}/{minutes:g} min, {messages} messages  {_line(result)}", flush=True)
        if not result.failed and result.history is not None:
            result.history.unlink()
    return results


def _run(runs: Sequence[tuple[Case, int]], jobs: int, folder: Path) -> list[Result]:
    results = []
    with _progress(len(runs)) as show:
        for result in run_all(runs, jobs, folder):
            results.append(result)
            show(result)
    order = {case: number for number, case in enumerate(FULL)}
    return sorted(results, key=lambda result: (order[result.case], result.seed))


@contextmanager
def _progress(total: int) -> Iterator[Callable[[Result], None]]:
    """How far it is: a bar on a terminal, and elsewhere a line for each case."""
    if sys.stdout.isatty():
        with _bar(total) as show:
            yield show
        return
    began, done = time.monotonic(), 0

    def show(result: Result) -> None:
        nonlocal done
        done += 1
        spent = time.monotonic() - began
        print(f"{done:4}/{total} {spent:6.0f} s  {_line(result)}", flush=True)

    yield show


@contextmanager
def _bar(total: int) -> Iterator[Callable[[Result], None]]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns) as progress:
        task = progress.add_task("", total=total)

        def show(result: Result) -> None:
            progress.update(task, advance=1, description=result.case.id)
            if result.failed:
                progress.console.print(_line(result), markup=False, highlight=False)

        yield show


def _line(result: Result) -> str:
    said = f"{result.case.id} seed {result.seed}, {result.seconds:.0f} s"
    if not result.failed:
        return said
    wrong = result.error or "\n".join(map(str, result.verdict.violations))
    return f"{said}: WRONG\n{wrong}\n{result.replay}"


if __name__ == "__main__":
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.default_int_handler)  # also where a shell had it ignored
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted")
