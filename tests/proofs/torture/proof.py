"""The torture of Redis in Action, 6.2: many clients, one lock, ten seconds. Who lets two in?

Over our lock and three others, with and without clients that are stopped at random moments.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import heapq
import itertools
import logging
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.proofs.harness import Options, Proof, Result, Table
from tests.proofs.history import History, read
from tests.support.servers import RedisServer

from .judge import Verdict, judge
from .locks import ASKABLE, CONTENDERS, UNAVAILABLE, Contender

#: As many clients as in the book, and ten times as many, for as long as there.
CLIENTS = (5, 50)
SECONDS = 10.0
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

    @classmethod
    def of(cls, label: str, **how: Any) -> Run:
        lock, asks, clients, scene = label.split(", ")
        return cls(lock, asks == "asks", int(clients.split()[0]), scene, **how)


# -- a client -----------------------------------------------------------------------------


def _client(run: Run, url: str, path: Path, number: int, start: Any) -> None:
    """One process: acquire, enter, step by step, leave, release, until the time is over."""
    logging.disable()
    rng = random.Random(f"{run.seed}:{number}")
    lock = CONTENDERS[run.lock](url, run.ttl)
    write = partial(History(path).write, client=number)
    start.wait()
    until = time.monotonic() + run.seconds
    section = 0
    while time.monotonic() < until:
        section += 1
        try:
            if lock.acquire():
                _section(run, lock, write, section, rng)
        except UNAVAILABLE:
            write("unavailable", section=section)


def _section(run: Run, lock: Contender, write: Any, section: int, rng: random.Random) -> None:
    write("enter", section=section, fence=lock.fence)
    for pause in _pauses(run, rng):
        if run.asks:
            write("ask", section=section)
            if not lock.still_mine():
                break
        time.sleep(rng.uniform(*PREPARING))
        write("step", section=section, fence=lock.fence)
        time.sleep(pause)
    write("leave", section=section)
    lock.release()


def _pauses(run: Run, rng: random.Random) -> list[float]:
    """The pause after each step. The first step follows at once: it is the reading."""
    pauses = [rng.uniform(*BETWEEN) for _ in range(rng.randint(*STEPS))]
    if run.long and rng.random() < LONG_SHARE:
        stretch = rng.uniform(*LONG) * run.ttl / sum(pauses)
        pauses = [pause * stretch for pause in pauses]
    return pauses


# -- a run --------------------------------------------------------------------------------


def torture(run: Run, server: RedisServer, path: Path) -> Verdict:
    """Run it, and judge what was written. Raises `RuntimeError` if a client broke."""
    with server.client() as client:
        client.flushall()
    with _clients(run, server.url, path) as processes, contextlib.closing(History(path)) as history:
        until = time.monotonic() + run.seconds
        if run.stops:
            _stop_at_random(run, history, [process.pid for process in processes], until)
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


def _stop_at_random(run: Run, history: History, pids: Sequence[int], until: float) -> None:
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
                    victim = _victim(history, set(range(len(pids))) - {n for _, n in stopped}, rng)
                    span = rng.uniform(*rng.choice((SHORT_STOP, LONG_STOP))) * run.ttl
                    heapq.heappush(stopped, (now + span, victim))
                    _signal(pids[victim], signal.SIGSTOP)
                    history.write("stop", client=victim)
            wakes = [next_stop, until, *(at for at, _ in stopped[:1])]
            time.sleep(max(min(wakes) - time.monotonic(), 0))
    finally:
        for _, number in stopped:
            _signal(pids[number], signal.SIGCONT)


def _victim(history: History, running: set[int], rng: random.Random) -> int:
    newest = history.newest()
    if newest is not None and rng.random() < 2 / 3 and newest.get("client") in running:
        return int(newest.client)
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


# -- the plug-in --------------------------------------------------------------------------


class Torture(Proof):
    name = "torture"
    about = "clients that take one lock of ours, and of others, and are stopped; ten minutes"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--seconds", type=float, default=SECONDS, help="of each (default: 10)")
        parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS, metavar="N")

    def skip_reason(self, trial: str) -> str | None:
        missing = trial.startswith("python-redis-lock") and find_spec("redis_lock") is None
        return "pip install python-redis-lock" if missing else None

    def trials(self, options: Options) -> Sequence[str]:
        """Each scene with each lock, asked and not asked, with each number of clients."""
        return [
            Run(lock, asks, clients, scene).label
            for scene, lock, asks in itertools.product(SCENES, CONTENDERS, (True, False))
            for clients in (options.clients if lock in ASKABLE or not asks else ())
        ]

    def run(
        self, trial: str, seed: int, options: Options, history: Path, shared: None
    ) -> tuple[Verdict, Sequence[str]]:
        run = Run.of(trial, seconds=options.seconds, seed=seed)
        with RedisServer() as server:
            verdict = torture(run, server, history)
        return verdict, failures(run, verdict) if run.lock == "ours" else []

    def tables(self, results: Sequence[Result]) -> Sequence[Table]:
        """How often two were in, by scene; and what became of those beside whom another came in."""
        uses: dict[str, dict[str, list[Verdict]]] = {}
        for result in results:
            run = Run.of(result.trial)
            asks = f", {'asks' if run.asks else 'does not ask'}" if run.lock in ASKABLE else ""
            use = TITLES[run.lock] + asks
            uses.setdefault(use, {}).setdefault(run.scene, []).append(result.figures)
        came_in, stopped = [], []
        for use, by_scene in uses.items():
            cells = [
                " / ".join(str(v.unknowing if "stops" in scene else v.double) for v in verdicts)
                for scene, verdicts in ((each, by_scene.get(each, ())) for each in SCENES)
            ]
            verdicts = [verdict for each in by_scene.values() for verdict in each]
            came_in.append([use, *cells, f"{sum(v.sections for v in verdicts):,}"])
            mine = [v for scene in SCENES[2:] for v in by_scene.get(scene, ())]
            counts = [sum(getattr(v, name) for v in mine) for name in FATES]
            past = [v.mixed_past_fence for v in mine if v.mixed_past_fence is not None]
            stopped.append([use, *counts, sum(past) if past else "no fence"])
        head = [f"{each}: {'in ignorance' if 'stops' in each else 'came in'}" for each in SCENES]
        return [
            Table("tests/proofs/FIGURES.md#torture", ["", *head, "sections in all"], came_in),
            Table(
                "tests/proofs/FIGURES.md#torture-stops",
                ["", *FATES.values(), "with the fence checked"],
                stopped,
            ),
        ]


TITLES = {
    "ours": "celery-redislock",
    "redis-py": "redis-py's `Lock`",
    "python-redis-lock": "python-redis-lock",
    "setnx": "SETNX, EXPIRE, DEL",
}
FATES = {
    "unknowing": "left in ignorance",
    "too_late": "too late",
    "told": "did nothing more",
    "mixed": "mixed writes",
}
