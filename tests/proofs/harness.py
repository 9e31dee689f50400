"""What all proofs have in common: they are run trial by trial, show how far they are, and report.

A proof is a plug-in: it names its trials, runs one, and makes the tables. See `Proof`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import multiprocessing
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path
from typing import Any

import celery
import kombu

from tests.support.figures import write_section
from tests.support.servers import redis_server_binary

ROOT = Path(__file__).parents[2]
Options = argparse.Namespace


@dataclasses.dataclass
class Table:
    """Figures, for people and for the documents.

    Attributes:
        section: the file and the section that this is written into: "tests/proofs/FIGURES.md#soak".
        head, rows: the cells.
        legend: what the columns are.
    """

    section: str
    head: Sequence[str]
    rows: Sequence[Sequence[Any]]
    legend: str = ""

    def text(self) -> str:
        lines = [self.head, *([str(cell) for cell in row] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        aligned = (
            "  ".join(
                cell.rjust(width) if number else cell.ljust(width)
                for number, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )
        return "\n".join([*aligned, "", self.legend])

    def markdown(self) -> str:
        rule = ["---", *["--:"] * (len(self.head) - 1)]
        lines = (" | ".join(map(str, cells)) for cells in (self.head, *self.rows))
        head, *rows = (f"| {line} |" for line in lines)
        return "\n".join([head, f"|{'|'.join(rule)}|", *rows, "", self.legend])


@dataclasses.dataclass
class Result:
    """What became of a trial.

    Attributes:
        trial, seed: what was run.
        figures: what it came to, a dataclass of the proof's own; None if the trial broke.
        wrong: the promises that were broken, in words.
        error: the proof's own failure, or "".
        seconds: how long it took.
        history: the file; it is deleted if nothing is wrong.
    """

    trial: str
    seed: int
    figures: Any = None
    wrong: Sequence[str] = ()
    error: str = ""
    seconds: float = 0.0
    history: Path | None = None

    @property
    def failed(self) -> bool:
        return bool(self.error or self.wrong)


class Proof:
    """A plug-in.

    Attributes:
        name, about: for the command line.
        jobs: how many trials run at once, unless it is told otherwise.
    """

    name = ""
    about = ""
    jobs = 1

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Options of its own."""

    def why_not(self) -> str | None:
        """Why it cannot be run here; None if it can."""
        return None

    def trials(self, options: Options) -> Sequence[str]:
        """The names of all trials, in the order of the table."""
        raise NotImplementedError

    def skip_reason(self, trial: str) -> str | None:
        """Why this trial cannot be run with these versions, or None."""
        return None

    @contextlib.contextmanager
    def around(self, trials: Sequence[str]) -> Iterator[Any]:
        """What trials share. It can be sent to other processes."""
        yield None

    def run(
        self, trial: str, seed: int, options: Options, history: Path, shared: Any
    ) -> tuple[Any, Sequence[str]]:
        """Run a trial in a process of its own. Returns its figures, and what is wrong.

        Args:
            trial: which.
            seed: what is random in it comes from this and from its name.
            options: those of the command line.
            history: the file that it writes.
            shared: see `around`.
        """
        raise NotImplementedError

    def tables(self, results: Sequence[Result]) -> Sequence[Table]:
        """The figures of all trials."""
        raise NotImplementedError


# -- running ----------------------------------------------------------------------------------


def run_one(
    proof: Proof, trial: str, seed: int, options: Options, folder: Path, shared: Any = None
) -> Result:
    """Run a trial. Its history is left in the folder."""
    if _ended.is_set():
        raise SystemExit
    path = folder / f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', trial)}-{seed}.jsonl"
    path.unlink(missing_ok=True)
    began, figures, wrong, error = time.monotonic(), None, [], ""
    try:
        figures, wrong = proof.run(trial, seed, options, path, shared)
    except Exception:
        error = traceback.format_exc()
    seconds = time.monotonic() - began
    return Result(trial, seed, figures, wrong, error, seconds, path)


def run_all(
    proof: Proof, trials: Sequence[str], options: Options, folder: Path
) -> Iterator[Result]:
    """Run these trials, some at once. Gives results as they come."""
    # Spawned: threads, such as those of proxies, must not be shared.
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        shared = stack.enter_context(proof.around(trials))
        pool = ProcessPoolExecutor(
            options.jobs or proof.jobs, mp_context=context, initializer=_heed_only_terminate
        )
        stack.callback(pool.shutdown, cancel_futures=True)
        futures = [
            pool.submit(run_one, proof, trial, options.seed, options, folder, shared)
            for trial in trials
        ]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            for process in pool._processes.values():
                process.terminate()
            raise


def _heed_only_terminate() -> None:
    """An interrupt is for the one who gave the order, who then ends the trials: each ends what it
    has started, and no other begins in its process.
    """

    def end(signum: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _ended.set()
        raise SystemExit(128 + signum)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end)


_ended = threading.Event()


# -- the command ------------------------------------------------------------------------------


def main(proof: Proof, arguments: Sequence[str]) -> int:
    """Run the trials that the command line names. 1 if anything is wrong."""
    options = _parser(proof).parse_args(arguments)
    trials = proof.trials(options)
    chosen = [each for each in trials if _matches(each, options.only)]
    if not chosen:
        sys.exit("no trial has such a name; see --list")
    if options.list:
        print("\n".join(chosen))
        return 0
    if reason := proof.why_not():
        print(f"skipped: {reason}")
        return 0
    for each in chosen:
        if reason := proof.skip_reason(each):
            print(f"skipped: {each}: {reason}")
    chosen = [each for each in chosen if not proof.skip_reason(each)]
    folder = Path(options.keep or tempfile.mkdtemp(prefix="redislock-proofs-"))
    folder.mkdir(parents=True, exist_ok=True)
    results = _run(proof, chosen, options, folder)
    results.sort(key=lambda result: trials.index(result.trial))
    return _report(proof, results, options, folder, whole=len(chosen) == len(trials))


def usage(proof: Proof) -> str:
    """What its command line may have."""
    return " ".join(_parser(proof).format_usage().removeprefix("usage: ").split())


def _parser(proof: Proof) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m tests.proofs {proof.name}", description=proof.about
    )
    add = parser.add_argument
    add("--only", metavar="GLOB", action="append", help="trials with such a name")
    add("--list", action="store_true", help="print the names of the trials, run nothing")
    add("--jobs", type=int, help=f"trials at once (default: {proof.jobs})")
    add("--seed", type=int, default=1, help="of all that is random (default: 1)")
    add("--keep", metavar="FOLDER", help="leave the histories there")
    add("--write", action="store_true", help="write the tables into the documents")
    proof.add_options(parser)
    return parser


def _matches(trial: str, globs: Sequence[str] | None) -> bool:
    return not globs or any(fnmatchcase(trial, each) for each in globs)


def _run(proof: Proof, trials: Sequence[str], options: Options, folder: Path) -> list[Result]:
    results: list[Result] = []
    for result in run_all(proof, trials, options, folder):
        results.append(result)
        said = f"{result.trial}, seed {result.seed}, {result.seconds:.0f} s"
        print(f"{len(results):4}/{len(trials)}  {said}{': WRONG' * result.failed}", flush=True)
        if result.failed:
            print(_problems(proof, result), flush=True)
        elif not options.keep and result.history:
            result.history.unlink(missing_ok=True)
    return results


def _problems(proof: Proof, result: Result) -> str:
    """What is wrong, and how to run it again."""
    again = f"python -m tests.proofs {proof.name} --only '{result.trial}' --seed {result.seed}"
    return "\n".join([*filter(None, (result.error, *result.wrong)), again, str(result.history)])


def _report(
    proof: Proof, results: Sequence[Result], options: Options, folder: Path, whole: bool
) -> int:
    tables = proof.tables([result for result in results if result.figures is not None])
    for table in tables:
        print(f"\n{table.text()}")
    failed = [result for result in results if result.failed]
    for result in failed:
        print(f"\nwrong: {_problems(proof, result)}")
    if options.write and whole and not failed:
        made = _made_with(proof, options)
        for table in tables:
            document, _, section = table.section.partition("#")
            write_section(ROOT / document, section, f"{made}\n\n{table.markdown()}")
    elif options.write:
        print("nothing is written: it was not the whole, or something is wrong")
    if not failed and not options.keep:
        folder.rmdir()
    return int(bool(failed))


def _made_with(proof: Proof, options: Options) -> str:
    said = subprocess.run(
        [redis_server_binary(), "--version"], capture_output=True, text=True, check=True
    )
    found = re.search(r"v=(\S+)", said.stdout)
    today = datetime.now(timezone.utc).date().isoformat()
    return (
        f"`make proofs ARGS='{proof.name} --write'` on {today}, seed {options.seed}:"
        f" Python {platform.python_version()}, Celery {celery.__version__},"
        f" kombu {kombu.__version__}, redis-py {version('redis')},"
        f" Redis {found.group(1) if found else '?'}."
    )


# -- cells ------------------------------------------------------------------------------------


def middle(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.1f}" if seconds else "-"


def most(seconds: Sequence[float]) -> str:
    return f"{max(seconds):.1f}" if seconds else "-"


def least(seconds: Sequence[float]) -> str:
    return f"{min(seconds):.1f}" if seconds else "-"
