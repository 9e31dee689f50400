"""Whether the server holds keys that should not be there."""

from __future__ import annotations

from collections.abc import Iterator

from ...app.brokers import broker_of
from ...protocol.keys import broker_of_sweep, sweep_pattern
from ...servers.looking import Looking
from ..table import count_of
from .finding import ERROR, OK, WARNING, Finding, some
from .patient import Patient


def check_prefix(patient: Patient) -> Iterator[Finding]:
    """Whether other programs use the same keys."""
    locks = [each for each in patient.survey if each.is_lock]
    foreign = [each for each in locks if each.state == "foreign"]
    waiting = {each.task for each in patient.survey if each.waiting}
    unknown = sorted({each.task for each in locks} - {"", "RedisLock", *patient.app.tasks})
    renamed = [name for name in unknown if name in waiting]
    strange = [name for name in unknown if name not in waiting]
    if foreign:
        yield Finding(
            ERROR, f"{len(foreign)} foreign values, such as {foreign[0].key!r}",
            "delete them, or set another redislock_prefix: they block their locks",
        )  # fmt: skip
    if renamed:
        yield Finding(
            WARNING, f"tasks wait that this app does not know: {some(renamed)}",
            "if a release renamed them, register them under these names too, until none waits",
        )  # fmt: skip
    if strange:
        yield Finding(
            WARNING, f"locks of tasks that this app does not know: {some(strange)}",
            "give each project that shares the server its own redislock_prefix",
        )  # fmt: skip
    others = _other_brokers(patient)
    if others:
        yield Finding(
            WARNING, f"workers with another broker use these locks ({others} such brokers): their"
            " tasks and ours of one name and arguments are duplicates of each other",
            "give each project its own redislock_prefix, unless they are to share locks",
        )  # fmt: skip
    if not (foreign or unknown or others):
        yield Finding(OK, f"{patient.locks.prefix!r}, {count_of(locks)}")


def _other_brokers(patient: Patient) -> int:
    """How many other brokers the running workers with our prefix have."""
    pattern = sweep_pattern(patient.locks.prefix)
    pages = Looking(patient.locks.server).scan(pattern)
    return len({broker_of_sweep(key) for page in pages for key in page} - {broker_of(patient.app)})


def check_aside(patient: Patient) -> Iterator[Finding]:
    """Whether tasks were set aside, and an operator must decide."""
    aside = [each for each in patient.survey if each.is_aside]
    if not aside:
        yield Finding(OK, "nothing")
        return
    count = sum(each.waiting for each in aside)
    tasks = "1 task" if count == 1 else f"{count} tasks"
    yield Finding(
        WARNING,
        f"{tasks} on {count_of(aside)}, such as {aside[0].key!r}: no worker took their turn",
        "`celery redislock put-back KEY` lets them wait again; `drop-waiting KEY` drops them",
    )  # fmt: skip
    if unknown := sorted({each.task for each in aside if each.task} - {*patient.app.tasks}):
        yield Finding(
            WARNING, f"this app does not know {some(unknown)}, of which tasks were set aside",
            "before put-back, every worker of their queue must know them, or it fails them",
        )  # fmt: skip
