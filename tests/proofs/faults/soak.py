"""The soak: late-acknowledged tasks that wait for locks, for minutes or hours, while workers are
killed, stopped and replaced. Rounds of two minutes, each judged like a case.

The broker is Redis, with a visibility timeout as long as to let messages come back long after, and
in every other round RabbitMQ.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from .cases import Case
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
from .history import History
from .run import Result, play_as, running_rabbitmq
from .stage import BROKERS, IMPATIENT, Address, Fault, Stage

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


def soak(minutes: float, seed: int, folder: Path) -> Iterator[Result]:
    """Rounds, until so many minutes are over, with each broker in turn; gives each round's result
    as it ends.
    """
    until = time.monotonic() + 60 * minutes
    number = 0
    with running_rabbitmq() as rabbitmq:
        while (left := until - time.monotonic()) > 0:
            yield _round(min(ROUND, left), seed + number, folder, rabbitmq)
            number += 1


def _round(seconds: float, seed: int, folder: Path, rabbitmq: Address) -> Result:
    broker = BROKERS[seed % 2]
    impatient = {
        "broker_transport_options": {**IMPATIENT, "visibility_timeout": VISIBILITY_TIMEOUT}
    }
    fault = Fault(
        name="soak",
        inject=lambda stage: _strike(stage, seconds),
        pools=PREFORK,
        conf=impatient if broker == "redis" else {},
        load=TASKS,
        apart=(0.01, 0.06),
        room=24,
        # A message may come back twice, and behind others, before it runs.
        drain=30.0 + 4 * VISIBILITY_TIMEOUT,
    )
    case = Case(broker, "prefork", "late", "soak")
    path = folder / f"soak-{seed}.jsonl"
    path.unlink(missing_ok=True)
    stage = Stage(
        fault,
        History(path),
        pool=case.pool,
        broker=case.broker,
        acks=case.acks,
        seed=str(seed),
        rabbitmq=rabbitmq,
    )
    return play_as(stage, case, seed)


def _strike(stage: Stage, seconds: float) -> None:
    stage.load.short = True  # many messages, not long bodies, make a soak
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        stage.pause(*PAUSE)
        with suppress(AssertionError):  # nobody was inside just then
            stage.rng.choice(STRIKES)(stage)
