"""Runs cases: one, or many at once in processes of their own."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.servers import RabbitMQ

from .cases import Case
from .checker import Verdict, check
from .faults import FAULTS
from .history import History, read
from .stage import Address, Stage


@dataclass(frozen=True)
class Result:
    """What became of a case.

    Attributes:
        case, seed: what was run.
        verdict: of its history.
        error: the bench's own failure, or "".
        seconds: how long it took.
        history: the file; it is deleted if nothing is wrong.
    """

    case: Case
    seed: int
    verdict: Verdict = field(default_factory=Verdict)
    error: str = ""
    seconds: float = 0.0
    history: Path | None = None

    @property
    def failed(self) -> bool:
        return bool(self.error or self.verdict.violations)

    @property
    def replay(self) -> str:
        """The command that runs it again."""
        if self.case.fault == "soak":
            return f"python -m tests.proofs.faults --soak 2 --seed {self.seed}"
        return f"python -m tests.proofs.faults --only '{self.case.id}' --seed {self.seed}"


def run_case(case: Case, seed: int, folder: Path, rabbitmq: Address | None = None) -> Result:
    """Run one case and check its history.

    Args:
        case: which.
        seed: what is random in it comes from this and the case's id.
        folder: where the history, and of a failed case the workers' logs, are left.
        rabbitmq: a running one, if that is the broker.
    """
    if _ended.is_set():
        raise SystemExit
    path = folder / f"{case.id}-{seed}.jsonl"
    path.unlink(missing_ok=True)
    stage = Stage(
        FAULTS[case.fault],
        History(path),
        pool=case.pool,
        broker=case.broker,
        acks=case.acks,
        seed=f"{seed}:{case.id}",
        rabbitmq=rabbitmq,
    )
    return play_as(stage, case, seed)


def play_as(stage: Stage, case: Case, seed: int) -> Result:
    """Let a stage play as a case. If it fails, the workers' logs are left beside the history."""
    began = time.monotonic()
    path = stage.history.path
    verdict, error = Verdict(), ""
    try:
        verdict = play(stage)
    except Exception:
        error = traceback.format_exc()
    result = Result(case, seed, verdict, error, time.monotonic() - began, path)
    if result.failed:
        path.with_suffix(".log").write_text("\n==== next worker\n".join(stage.logs))
    return result


def play(stage: Stage) -> Verdict:
    """Let a stage play, and check its history."""
    try:
        with stage:
            stage.play()
    finally:
        stage.history.close()
    return check(read(stage.history.path))


@contextlib.contextmanager
def running_rabbitmq() -> Iterator[Address]:
    """A RabbitMQ for several cases."""
    server = RabbitMQ()
    try:
        server.start()
        yield Address(server.url, server.port)
    finally:
        server.kill()


def run_all(cases: Sequence[tuple[Case, int]], jobs: int, folder: Path) -> Iterator[Result]:
    """Run these cases with their seeds, so many at once. Gives results as they come."""
    with contextlib.ExitStack() as stack:
        rabbitmq = None
        if any(case.broker == "rabbitmq" for case, _ in cases):
            rabbitmq = stack.enter_context(running_rabbitmq())
        # Spawned: the proxies' and watchers' threads must not be shared.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_heed_only_terminate)
        stack.callback(pool.shutdown, cancel_futures=True)
        futures = [pool.submit(run_case, case, seed, folder, rabbitmq) for case, seed in cases]
        try:
            for future in as_completed(futures):
                result = future.result()
                if not result.failed and result.history is not None:
                    result.history.unlink()
                yield result
        except BaseException:
            for process in pool._processes.values():
                process.terminate()
            raise


def _heed_only_terminate() -> None:
    """An interrupt is for the one who gave the order, who then ends the cases: each ends what it
    has started.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _exit)


def _exit(signum: int, frame: object) -> None:
    # What is queued for this process must not begin.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _ended.set()
    raise SystemExit(128 + signum)


_ended = threading.Event()
