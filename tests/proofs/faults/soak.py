"""The soak: late-acknowledged tasks that wait for locks, for minutes or hours, while workers are
killed, stopped and replaced. Rounds of two minutes, each judged like a case.

The broker is Redis, with a visibility timeout as long as to let messages come back long after, and
in every other round RabbitMQ.
"""

from __future__ import annotations

import argparse
import math
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from tests.proofs.harness import Options

from .cases import Bench, Case
from .faults import (
    PREFORK,
    SHORT,
    kill_child,
    kill_worker,
    shut_down,
    stop_child,
    stop_main,
    stop_worker,
)
from .stage import BROKERS, IMPATIENT, Fault, Stage

#: Seconds for which a round sends, and strikes.
ROUND = 120.0
#: Seconds from one strike to the next, at least and at most.
PAUSE = (1.0, 4.0)
VISIBILITY_TIMEOUT = 15
TASKS = {"queue": 6, "coalesce": 3, "debounce": 3, "defer": 3, "patient": 3, "retry_queued": 1}
STRIKES: tuple[Callable[[Stage], None], ...] = (
    *(kill_child, kill_child, kill_worker),
    lambda stage: stop_child(stage, SHORT),
    lambda stage: stop_main(stage, SHORT),
    lambda stage: stop_worker(stage, SHORT),
    lambda stage: shut_down(stage, signal.SIGTERM),
    lambda stage: shut_down(stage, signal.SIGQUIT),
)


class Soak(Bench):
    name = "soak"
    about = "tasks that wait for locks, while workers are killed and stopped; --minutes"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--minutes", type=float, default=60.0, help="default: 60")

    def trials(self, options: Options) -> Sequence[str]:
        rounds = math.ceil(60 * options.minutes / ROUND)
        return [f"{BROKERS[number % 2]}-{number}-soak" for number in range(rounds)]

    def stage(self, trial: str, seed: int, options: Options) -> tuple[Fault, Case]:
        broker, number, _ = trial.split("-")
        seconds = min(ROUND, 60 * options.minutes - int(number) * ROUND)
        impatient = {
            "broker_transport_options": {**IMPATIENT, "visibility_timeout": VISIBILITY_TIMEOUT}
        }
        fault = Fault(
            name="soak",
            inject=lambda stage: _strike(stage, seconds),
            conf=impatient if broker == "redis" else {},
            load=TASKS,
            apart=(0.01, 0.06),
            room=24,
            # A message may come back twice, and behind others, before it runs.
            drain=30.0 + 4 * VISIBILITY_TIMEOUT,
        )
        return fault, Case(broker, *PREFORK, "late", "soak")


def _strike(stage: Stage, seconds: float) -> None:
    stage.load.short = True  # many messages, not long bodies, make a soak
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        stage.pause(*PAUSE)
        with suppress(AssertionError):  # nobody was inside just then
            stage.rng.choice(STRIKES)(stage)
