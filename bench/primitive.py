"""The lock primitive: acquire and release, uncontended."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import time
from collections.abc import Iterator, Mapping

import redis

from tests.support.servers import RedisServer

from .counting import commands
from .locks import ASYNC, FLOOR, LOCKS, NEW, TTL, Lock
from .report import Bars, Column, Table, ratio
from .section import Run
from .stats import percentile, ratios

#: Polls only if the lock is held, which it never is here.
_LEFT_OUT = ("redis-py Lock, sleep=0.001",)
#: The lock that most would take otherwise, and the same with a new object for each pair.
USUAL = "redis-py Lock"
USUAL_NEW = "redis-py Lock, a new object"
#: Where the client and the server run.
LAYOUTS = ("any core", "one core")
#: Pairs in a row. Few, since the scheduler moves processes to other cores now and then.
TURN = 20


class Taken:
    """What one contender's rounds took."""

    def __init__(self) -> None:
        self.pairs: list[list[int]] = []  # nanoseconds, by round
        self.cpu: list[float] = []  # seconds of a pair, by round

    def medians(self) -> list[float]:
        return [percentile(each, 0.5) for each in self.pairs]


def measure(run: Run) -> list[Table]:
    rounds, turns = run.size(15, 3), run.size(50, 5)
    known = {**LOCKS, **NEW, **ASYNC}
    names = [n for n in known if n not in _LEFT_OUT and (n == FLOOR or run.wants(n))]
    with RedisServer() as server, server.client() as client:
        locks = {name: known[name](server.url, f"primitive-{i}") for i, name in enumerate(names)}
        found = {layout: {name: Taken() for name in names} for layout in LAYOUTS}
        one_round(locks, {name: Taken() for name in names}, 3)
        for number in range(1, rounds + 1):
            one_round(locks, found["any core"], turns)
            with on_one_core(os.getpid(), server.pid):
                one_round(locks, found["one core"], turns)
            run.say(f"round {number} of {rounds}: {len(names)} locks, {turns * TURN} pairs each")
        sent = {name: commands_of_a_pair(client, locks[name]) for name in names}
    return [table(found, sent, rounds, turns)]


@contextlib.contextmanager
def on_one_core(*pids: int) -> Iterator[None]:
    """Let these processes, with all their threads, share one core meanwhile."""
    threads = [int(each) for pid in pids for each in os.listdir(f"/proc/{pid}/task")]
    cores = os.sched_getaffinity(0)
    _let_run_on(threads, {max(cores)})
    try:
        yield
    finally:
        _let_run_on(threads, cores)


def _let_run_on(threads: list[int], cores: set[int]) -> None:
    for each in threads:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(each, cores)


def one_round(locks: Mapping[str, Lock], found: Mapping[str, Taken], turns: int) -> None:
    """Each lock has so many turns, in a new random order each time, without garbage collection."""
    times: dict[str, list[int]] = {name: [] for name in locks}
    cpu = dict.fromkeys(locks, 0.0)
    gc.collect()
    gc.disable()
    try:
        for _ in range(turns):
            for name in random.sample(list(locks), len(locks)):
                cpu[name] += one_turn(locks[name], times[name])
    finally:
        gc.enable()
    for name, taken in found.items():
        taken.pairs.append(times[name])
        taken.cpu.append(cpu[name] / len(times[name]))


def one_turn(lock: Lock, times: list[int]) -> float:
    """Some pairs in a row, each timed in nanoseconds. Returns the CPU seconds of all."""
    clock = time.perf_counter_ns
    lock.acquire()  # what was asleep since its last turn wakes up
    lock.release()
    cpu = time.process_time()
    for _ in range(TURN):
        began = clock()
        lock.acquire()
        lock.release()
        times.append(clock() - began)
    return time.process_time() - cpu


def commands_of_a_pair(client: redis.Redis, lock: Lock, pairs: int = 50) -> float:
    """How many commands the server is sent for a pair."""
    with commands(client) as sent:
        for _ in range(pairs):
            lock.acquire()
            lock.release()
    return round(sent.total() / pairs, 2)


def table(
    found: Mapping[str, Mapping[str, Taken]], sent: Mapping[str, float], rounds: int, turns: int
) -> Table:
    medians = {k: {name: each.medians() for name, each in v.items()} for k, v in found.items()}
    against = ratios(medians["any core"], FLOOR)
    usual = {layout: against_usual(medians[layout]) for layout in LAYOUTS}
    rows = []
    for name, taken in found["any core"].items():
        alone = found["one core"][name]
        rows.append(
            {
                "name": name,
                "p50": percentile(_every(taken), 0.5) / 1000,
                "p99": percentile(_every(taken), 0.99) / 1000,
                "cpu": percentile(taken.cpu, 0.5) * 1e6,
                "ratio": against[name],
                "times": against[name][1],
                "usual": usual["any core"].get(name),
                "one core p50": percentile(_every(alone), 0.5) / 1000,
                "one core usual": usual["one core"].get(name),
                "commands": sent[name],
                "rounds": taken.medians(),
                "one core rounds": alone.medians(),
            }
        )
    return Table(
        "primitive",
        "Acquire and release, uncontended",
        [
            Column("name", "lock"),
            Column("p50", "p50 µs", ",.0f"),
            Column("p99", "p99 µs", ",.0f"),
            Column("cpu", "CPU µs", ",.0f"),
            Column("ratio", "against the floor", ratio),
            Column("usual", f"against {USUAL}", ratio),
            Column("one core p50", "one core, p50 µs", ",.0f"),
            Column("one core usual", f"one core, against {USUAL}", ratio),
            Column("commands", "commands", "g"),
        ],
        rows,
        [
            f"{rounds} rounds of {turns} turns of {TURN} pairs; in each turn all locks take part,"
            " in a new random order. One process, and one object for each lock, made once; *a new"
            " object* is made for each pair, and is compared with redis-py's new ones.",
            "*Floor*: two round trips on one socket with `sendall` and `recv`, commands packed and"
            f" replies read by hiredis: `SET name token NX PX {TTL * 1000}` and `DEL name`. The"
            " second floor deletes only what is its own, by `EVALSHA`, as every safe lock must.",
            "The locks for coroutines: with a loop that starts and stops for each step.",
            "*CPU*: of the client's process in user and system mode, all threads, for a pair.",
            "*Against*: the median of the rounds' ratios of medians, and their extremes. *One core*"
            ": the client and the server share one; elsewhere the kernel chooses.",
        ],
        Bars("Acquire and release, uncontended: times the floor", "times"),
    )


def against_usual(rounds: Mapping[str, list[float]]) -> dict[str, tuple[float, float, float]]:
    """Each lock against redis-py's, of which a new object is beside a new object."""
    found = {}
    for usual, those in ((USUAL, rounds.keys() - NEW.keys()), (USUAL_NEW, NEW.keys())):
        if usual in rounds:
            found |= ratios({name: rounds[name] for name in rounds if name in those}, usual)
    return found


def _every(taken: Taken) -> list[int]:
    return [each for one in taken.pairs for each in one]
