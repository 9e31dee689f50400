"""One run of the torture: clients that acquire and release one lock, and what stops them."""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import logging
import multiprocessing
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.support.servers import RedisServer

from .history import REFEREE, Kind, Verdict, Writer, judge, last, read
from .locks import CONTENDERS, UNAVAILABLE, Contender

#: A client that has not come to its end this many seconds after its time is a failure.
GRACE = 30.0
#: Steps of a section.
STEPS = (2, 5)
#: Seconds from the answer "still yours" to the step. No lock can tell of what happens in there.
PREPARING = (0.0, 0.001)
#: Seconds between a step and the next question.
BETWEEN = (0.0, 0.001)
#: How many sections are long where there are long ones, and how long they are, in ttls.
LONG_SHARE = 0.1
LONG = (1.2, 2.0)
#: Seconds between two stops, and how long they are, in ttls; every other one is long.
STOP_EVERY = (0.02, 0.2)
SHORT_STOP = (0.05, 0.7)
LONG_STOP = (1.1, 1.8)
#: What happens in a run.
SCENES = ("plain", "long", "stops", "stops and long")


@dataclasses.dataclass(frozen=True)
class Run:
    """One torture of one lock.

    Attributes:
        lock: which one, a key of `CONTENDERS`.
        asks: whether clients ask "still mine?" before each step.
        clients: how many processes.
        scene: one of `SCENES`. Stops: processes are stopped and continued at random moments.
            Long: every tenth section takes longer than the ttl.
        seconds: for how long.
        ttl: the lock's, in seconds.
        seed: of every random choice. When the scheduler runs whom is not among them.
    """

    lock: str
    asks: bool
    clients: int
    scene: str
    seconds: float = 10.0
    ttl: float = 1.0
    seed: int = 0

    @property
    def stops(self) -> bool:
        return "stops" in self.scene

    @property
    def long(self) -> bool:
        return "long" in self.scene

    @property
    def label(self) -> str:
        asks = "asks" if self.asks else "does not ask"
        return f"{self.lock}, {asks}, {self.clients} clients, {self.scene}"


# -- a client -----------------------------------------------------------------------------


def _client(run: Run, url: str, path: Path, number: int, start: Any) -> None:
    """One process: acquire, enter, step by step, leave, release, until the time is over."""
    logging.disable()
    rng = random.Random(f"{run.seed}:{number}")
    lock = CONTENDERS[run.lock](url, run.ttl)
    history = Writer(path, number)
    start.wait()
    until = time.monotonic() + run.seconds
    section = 0
    while time.monotonic() < until:
        section += 1
        try:
            if lock.acquire():
                _section(run, lock, history, section, rng)
        except UNAVAILABLE:
            history.write(Kind.UNAVAILABLE, section)


def _section(run: Run, lock: Contender, history: Writer, section: int, rng: random.Random) -> None:
    history.write(Kind.ENTER, section, lock.fence)
    for pause in _pauses(run, rng):
        if run.asks:
            history.write(Kind.ASK, section)
            if not lock.still_mine():
                break
        time.sleep(rng.uniform(*PREPARING))
        history.write(Kind.STEP, section, lock.fence)
        time.sleep(pause)
    history.write(Kind.LEAVE, section)
    lock.release()


def _pauses(run: Run, rng: random.Random) -> list[float]:
    """The pause after each step. The first step follows at once: it is the reading."""
    pauses = [rng.uniform(*BETWEEN) for _ in range(rng.randint(*STEPS))]
    if run.long and rng.random() < LONG_SHARE:
        stretch = rng.uniform(*LONG) * run.ttl / sum(pauses)
        pauses = [pause * stretch for pause in pauses]
    return pauses


# -- a run --------------------------------------------------------------------------------


def torture(run: Run, server: RedisServer) -> Verdict:
    """Run it, and judge what was written. Raises `RuntimeError` if a client broke."""
    with server.client() as client:
        client.flushall()
    with tempfile.TemporaryDirectory(prefix="redislock-torture-") as folder:
        path = Path(folder) / "history"
        path.touch()
        with _clients(run, server.url, path) as processes:
            pids = [process.pid for process in processes]
            until = time.monotonic() + run.seconds
            if run.stops:
                with contextlib.closing(Writer(path, REFEREE)) as history:
                    _stop_at_random(run, history, path, pids, until)
            _await_the_end(run, processes, until + GRACE)
        return judge(read(path))


@contextlib.contextmanager
def _clients(run: Run, url: str, path: Path) -> Iterator[list[Any]]:
    """The processes, let go together. None outlives this."""
    # Each is a fresh fork of one small process: fifty imports would take longer than the torture.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["celery_redislock", "redis"])
    start = context.Barrier(run.clients + 1)
    processes = [
        context.Process(target=_client, args=(run, url, path, number, start), daemon=True)
        for number in range(run.clients)
    ]
    try:
        for process in processes:
            process.start()
        start.wait(GRACE + run.clients)
        yield processes
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()


def _await_the_end(run: Run, processes: list[Any], give_up: float) -> None:
    for process in processes:
        process.join(max(give_up - time.monotonic(), 0))
    codes = [process.exitcode for process in processes]
    if any(codes):
        raise RuntimeError(f"{run.label}: clients ended with {codes}")
    if None in codes:
        raise RuntimeError(f"{run.label}: {codes.count(None)} clients did not end")


def _stop_at_random(
    run: Run, history: Writer, path: Path, pids: Sequence[int], until: float
) -> None:
    """Stop clients and let them go on, two times of three one that is probably inside."""
    rng = random.Random(f"{run.seed}:stops")
    stopped: list[tuple[float, int]] = []
    at_most = (len(pids) + 1) // 2
    next_stop = time.monotonic()
    try:
        while (now := time.monotonic()) < until:
            while stopped and stopped[0][0] <= now:
                _signal(pids[heapq.heappop(stopped)[1]], signal.SIGCONT)
            if next_stop <= now:
                next_stop = now + rng.uniform(*STOP_EVERY)
                if len(stopped) < at_most:
                    victim = _victim(path, set(range(len(pids))) - {n for _, n in stopped}, rng)
                    span = rng.uniform(*rng.choice((SHORT_STOP, LONG_STOP))) * run.ttl
                    heapq.heappush(stopped, (now + span, victim))
                    _signal(pids[victim], signal.SIGSTOP)
                    history.write(Kind.STOP, victim)
            wakes = [next_stop, until, *(at for at, _ in stopped[:1])]
            time.sleep(max(min(wakes) - time.monotonic(), 0))
    finally:
        for _, number in stopped:
            _signal(pids[number], signal.SIGCONT)


def _victim(path: Path, running: set[int], rng: random.Random) -> int:
    newest = last(path)
    if newest is not None and rng.random() < 2 / 3 and newest.client in running:
        return newest.client
    return rng.choice(sorted(running))


def _signal(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # its time was over a little before ours
        os.kill(pid, signum)


# -- what must hold -----------------------------------------------------------------------


def failures(run: Run, verdict: Verdict) -> list[str]:
    """What our own lock must never do, and did."""
    wrong = {
        "without stops nobody comes in beside a holder": 0 if run.stops else verdict.double,
        "a holder that asks is not left in ignorance": verdict.unknowing if run.asks else 0,
        "nothing gets past the fence": verdict.mixed_past_fence,
        "fences rise": verdict.fences_out_of_order,
    }
    return [f"{run.label}: {rule}: broken {count} times" for rule, count in wrong.items() if count]
