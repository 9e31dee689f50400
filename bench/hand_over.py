"""A task that comes while one like it runs: how soon after that one's end it starts, if at all."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any

from tests.support.servers import RedisServer

from .report import Bars, Column, Table
from .section import Run
from .stage import Stage
from .stats import percentile

WAITERS = (
    "Queue()",
    "Coalesce()",
    "Wait()",
    "Defer(delay=1)",
    "celery-heimdall",
    "celery-once-task",
    "celery-once",
    "celery-singleton",
)
#: Seconds that the first body takes, at random: it ends in any phase of those that poll.
BODY = (0.2, 0.4)
#: Seconds after which a duplicate that has not started will not: more than each waits.
PATIENCE = 2.5
#: A contender that has run none of this many duplicates is not tried further.
GIVE_UP = 3


def measure(run: Run) -> list[Table]:
    rounds = run.size(15, 2)
    rows = []
    for name in WAITERS:
        if run.wants(name):
            with (
                RedisServer() as server,
                Stage(name, server, pool="prefork", concurrency=2) as stage,
            ):
                rows.append(one_contender(stage, rounds))
            run.say(f"{name}: {rows[-1]['runs']}; {rows[-1]['outcome']}")
    return [table(rows, rounds)]


def one_contender(stage: Stage, rounds: int) -> dict[str, Any]:
    delays: list[float] = []
    blocked: list[float] = []
    outcomes: Counter[str] = Counter()
    tried = 0
    for number in range(rounds):
        delay, outcome, seconds = one_pair(stage, f"{number}")
        tried += 1
        outcomes[outcome] += 1
        blocked.append(seconds)
        if delay is not None:
            delays.append(delay)
        if tried == GIVE_UP and not delays:
            break
    ours = stage.name.endswith(")")
    return {
        "name": f"celery-redislock {stage.name}" if ours else stage.name,
        "runs": f"{len(delays)} of {tried}",
        "p50": percentile(delays, 0.5) * 1000 if delays else None,
        "p90": percentile(delays, 0.9) * 1000 if delays else None,
        "worst": max(delays) * 1000 if delays else None,
        "blocked": percentile(blocked, 0.5) * 1000,
        "outcome": ", ".join(f"{what}" for what, _ in outcomes.most_common()),
        "delays": delays,
    }


def one_pair(stage: Stage, label: str) -> tuple[float | None, str, float]:
    """Send a task, and once it runs a second one like it.

    Returns:
        The seconds from the end of the first body to the start of the second, None if it never
        started; what the sender of the second was told; and how long that took.
    """
    assert stage.sender is not None
    call = [label, random.uniform(*BODY)]
    stage.sender.send("work", call, stage.queue)
    stage.note(f"start:{label}")
    began = time.monotonic()
    told = stage.sender.send("work", call, stage.queue)
    blocked = time.monotonic() - began
    ended = stage.note(f"end:{label}")
    second = stage.notes.blpop([f"start:{label}"], PATIENCE)
    if second is None:
        return None, _in_words(told), blocked
    stage.note(f"end:{label}")
    return float(second[1]) - ended, _in_words(told), blocked


def _in_words(told: dict[str, Any]) -> str:
    if told["outcome"] == "sent":
        return "an id"
    return "None" if told["outcome"] == "None" else str(told["outcome"])


def table(rows: list[dict[str, Any]], rounds: int) -> Table:
    return Table(
        "hand_over",
        "From the end of a run to the start of the one that came meanwhile",
        [
            Column("name", "task"),
            Column("runs", "duplicates that run"),
            Column("p50", "p50 ms", ",.1f"),
            Column("p90", "p90 ms", ",.1f"),
            Column("worst", "worst ms", ",.0f"),
            Column("blocked", "sending took ms", ",.0f"),
            Column("outcome", "the sender got"),
        ],
        rows,
        [
            f"{rounds} times each: a task that takes {BODY[0]:g} to {BODY[1]:g} s, and one like it"
            " that is sent while the first runs. Prefork with two processes, Redis as the broker"
            " and for the locks.",
            "From the last line of the first body to the first line of the second: the release, the"
            " hand-over, publishing and starting.",
            "With celery-heimdall the *sender* waits, a second at most, and asks every 0.1 s. Then"
            " its worker waits once more for the same lock, which the task has already. The others"
            " refuse a duplicate: it never runs.",
        ],
        Bars("From the end of a run to the start of the next: ms, logarithmic", "p50", log=True),
    )
