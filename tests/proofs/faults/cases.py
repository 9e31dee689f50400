"""The fault bench as a proof: every fault on every broker and pool, acknowledged early and late."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import kombu.transport.redis

from tests.proofs.harness import Options, Proof, Result, Table
from tests.proofs.history import History, read
from tests.support.servers import RabbitMQ

from .checker import Verdict, check
from .faults import FAULTS
from .stage import ACKS, BROKERS, POOLS, Address, Fault, Stage

#: Faults after which the broker must deliver again what a worker had.
REDELIVER = frozenset(
    {
        *("kill_worker", "kill_all_workers", "kill_everything", "several"),
        *("soft_shutdown", "cold_shutdown", "cut_broker", "cut_broker_cancels"),
    }
)


class Case(NamedTuple):
    """One set-up with one fault. What is random in it comes from a seed and the case's id."""

    broker: str
    pool: str
    acks: str
    fault: str

    @property
    def id(self) -> str:
        return "-".join(self)

    @property
    def skip_reason(self) -> str | None:
        """Why this cannot be run with these versions, or None."""
        looks_often = hasattr(kombu.transport.redis.Channel, "unacked_restore_throttle")
        if self.broker == "redis" and self.fault in REDELIVER and not looks_often:
            return "this kombu looks for unacknowledged messages only every 100 s"
        return None


def _cases_of(fault: Fault) -> Iterator[Case]:
    for broker, pool, acks in itertools.product(BROKERS, POOLS, ACKS):
        if broker in fault.brokers and pool in fault.pools and acks in fault.acks:
            yield Case(broker, pool, acks, fault.name)


#: The whole matrix.
FULL = {case.id: case for fault in FAULTS.values() for case in _cases_of(fault)}


#: A selection for every day: each pool, broker and acknowledgement, of what is not simulated.
SHORT = [
    Case("rabbitmq", "prefork", "late", "kill_all_workers"),
    Case("redis", "gevent", "late", "revoke"),
    Case("rabbitmq", "threads", "early", "cold_shutdown"),
    Case("rabbitmq", "prefork", "early", "cut_broker"),
    Case("redis", "solo", "early", "failover"),
    Case("redis", "threads", "late", "several"),
    Case("rabbitmq", "gevent", "late", "cluster_failover"),
    Case("redis", "prefork", "late", "cluster_stop_node_long"),
]


# -- running ----------------------------------------------------------------------------------


def play(stage: Stage, log: Path) -> Verdict:
    """Let a stage play, and check its history. If it fails, the workers' logs are left there."""
    verdict = None
    try:
        with stage:
            stage.play()
        verdict = check(read(stage.history.path))
    finally:
        stage.history.close()
        if verdict is None or verdict.violations:
            log.write_text("\n==== next worker\n".join(stage.logs))
    return verdict


class Bench(Proof):
    """What is played on a stage: late or early, on either broker."""

    def needs_rabbitmq(self, trials: Sequence[str]) -> bool:
        return any(trial.startswith("rabbitmq-") for trial in trials)

    @contextlib.contextmanager
    def around(self, trials: Sequence[str]) -> Iterator[Address | None]:
        """A RabbitMQ for all."""
        if not self.needs_rabbitmq(trials):
            yield None
            return
        server = RabbitMQ()
        try:
            server.start()
            yield Address(server.url, server.port)
        finally:
            server.kill()

    def stage(self, trial: str, seed: int, options: Options) -> tuple[Fault, Case]:
        raise NotImplementedError

    def run(
        self, trial: str, seed: int, options: Options, history: Path, shared: Address | None
    ) -> tuple[Verdict, Sequence[str]]:
        fault, case = self.stage(trial, seed, options)
        stage = Stage(
            fault,
            History(history),
            pool=case.pool,
            broker=case.broker,
            acks=case.acks,
            seed=f"{seed}:{trial}",
            rabbitmq=shared,
        )
        verdict = play(stage, history.with_suffix(".log"))
        return verdict, [str(violation) for violation in verdict.violations]

    def tables(self, results: Sequence[Result]) -> Sequence[Table]:
        by_fault = defaultdict(list)
        for result in results:
            by_fault[result.trial.rpartition("-")[2]].append(result.figures)
        by_fault["all"] = [result.figures for result in results]
        rows = [
            [name, *(cell(some) for cell in COLUMNS.values())] for name, some in by_fault.items()
        ]
        head = ["fault", *COLUMNS]
        return [Table(f"tests/proofs/FIGURES.md#{self.name}", head, rows, legend=LEGEND)]


class Faults(Bench):
    name = "faults"
    about = "injects faults while tasks run, and decides from the history what broke; half an hour"
    jobs = 4

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--short", action="store_true", help="the selection of `make test`")

    def trials(self, options: Options) -> Sequence[str]:
        return [case.id for case in SHORT] if options.short else list(FULL)

    def skip_reason(self, trial: str) -> str | None:
        return FULL[trial].skip_reason

    def stage(self, trial: str, seed: int, options: Options) -> tuple[Fault, Case]:
        case = FULL[trial]
        return FAULTS[case.fault], case


# -- the table --------------------------------------------------------------------------------

Cell = Callable[[Sequence[Verdict]], str]


def _sum(attribute: str) -> Cell:
    return lambda verdicts: str(sum(getattr(each, attribute) for each in verdicts))


def _outcomes(outcome: str) -> Cell:
    return lambda verdicts: str(sum(each.outcomes[outcome] for each in verdicts))


def _seconds(attribute: str, median: bool = False) -> Cell:
    def worst(verdicts: Sequence[Verdict]) -> str:
        found = [seconds for each in verdicts for seconds in getattr(each, attribute)]
        if not found:
            return "-"
        return (
            f"{statistics.median(found):.2f} / {max(found):.2f}" if median else f"{max(found):.2f}"
        )

    return worst


def _length(attribute: str) -> Cell:
    return lambda verdicts: str(sum(len(getattr(each, attribute)) for each in verdicts))


COLUMNS: dict[str, Cell] = {
    "cases": lambda verdicts: str(len(verdicts)),
    "messages": lambda verdicts: str(sum(each.outcomes.total() for each in verdicts)),
    "bodies": _sum("bodies"),
    "ran": _outcomes("ran"),
    "skipped": _outcomes("skipped"),
    "failed": _outcomes("failed"),
    "gone": _sum("vanished"),
    "by transport": _sum("lost_by_transport"),
    "by us": _sum("lost_by_us"),
    "parked": _sum("parked"),
    "suspended": _sum("suspended"),
    "forgot": _sum("forgotten"),
    "again": _sum("again"),
    "both": _sum("overlaps"),
    "lost": _length("told"),
    "told s": _seconds("told"),
    "child s": _seconds("freed_child", median=True),
    "worker s": _seconds("freed_worker", median=True),
    "wrong": _length("violations"),
}

LEGEND = """\
* ran, skipped, failed: how the messages ended; one that was deferred or waited first counts as ran.
* parked: stays in waiting rooms; forgot: those that ended with the lock server's data.
* suspended: how often a task met a suspension: of its own, or of its lock.
* gone: messages that Celery lost as it may: most were acknowledged early by a worker that died.
* by transport: messages that the broker's transport lost: kombu's Redis transport takes a message
  from its queue before it notes who has it, and a connection that breaks takes messages along.
* by us: messages that nobody else can have lost. Each is also counted as wrong.
* again: attempts that ran once more after their process died or their lock was lost.
* both: pairs of bodies that had the lock at a time, where the server lost its data.
* lost: holders that lost their lock; told: seconds until they knew, at worst, without the time in
  which they stood still.
* child, worker: seconds from a kill until the lock was free, median / worst.
* wrong: broken promises.
"""
