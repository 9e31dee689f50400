"""Whether the workers and the lock server agree on who holds what."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator
from typing import Any, Final, NamedTuple

from ...app.whereabouts import are_together, whereabouts
from ...errors import LockUnavailable
from ...inspection.locks import Found, snapshot
from ...inspection.states import GOING_ON, RUNNING
from ...protocol.holders import one_line
from ...protocol.keys import name_of
from ..table import count_of, some
from .checkup import ERROR, OK, UNKNOWN, WARNING, Checkup, Finding

#: Seconds for which workers may answer.
ANSWERS: Final = 2.0
#: Seconds between two comparisons: a run may begin or end between the two looks of one.
APART: Final = 1.0

#: What is so if two have their locks in different places.
AT_ONCE: Final = (
    "the same task runs at once in both places: set one redislock_url and one redislock_prefix for"
    " all workers and senders, and run doctor with these settings"
)

#: The lock's name and the task's id. The key of a slot is known to the server only.
Run = tuple[str, str]


class Compared(NamedTuple):
    """What workers and server say."""

    answered: frozenset[str]  # the names of the workers that answered
    held: list[Found]  # the runs that hold a lock, as the server says
    agreed: int  # how many runs hold a lock, as both say
    only_worker: dict[Run, str]  # that hold a lock as this worker says, and not on the server
    only_server: dict[Run, Found]  # of runs on these workers that know nothing of them
    without: list[Found]  # runs that go on without their lock, as they tell the server
    silent: frozenset[str]  # the nodes of other runs

    @property
    def differs(self) -> bool:
        """Whether the two do not agree."""
        return bool(self.only_worker or self.only_server)


def check_lost(checkup: Checkup) -> Iterator[Finding]:
    """Whether runs go on without their lock, as they tell the server."""
    with contextlib.suppress(LockUnavailable):  # the check of the prefix says so
        yield from _lost(checkup.survey)


def _lost(found: list[Found]) -> Iterator[Finding]:
    for each in found:
        if each.state == "without its lock":
            others = [
                f"{other.holder} {'has' if other.state in RUNNING else 'also runs without'} it"
                for other in found
                if other.name == each.name and other is not each and other.state in GOING_ON
            ]
            why = f" ({each.lost_because})" if each.lost_because else ""
            what = f"{each.holder} runs on without {each.name}, which it lost{why}"
            yield Finding(
                ERROR, one_line("; ".join([what, *others])),
                "two runs may overlap: let them end, or end one: `celery control terminate SIGTERM"
                " ID`; see Operations, It runs twice",
            )  # fmt: skip


def check_workers(checkup: Checkup) -> Iterator[Finding]:
    """Whether each worker has its locks where we look, and just those that the server has."""
    apart, heard = _apart(checkup)
    yield from _told_apart(apart, checkup)
    compared = _compare(checkup, apart)
    if compared.differs:
        time.sleep(APART)
        again = _compare(checkup, apart)
        compared = again._replace(
            only_worker={k: v for k, v in again.only_worker.items() if k in compared.only_worker},
            only_server={k: v for k, v in again.only_server.items() if k in compared.only_server},
        )
    yield from _lost([*compared.without, *compared.held])
    if quiet := sorted(compared.answered - heard):
        yield Finding(
            UNKNOWN, f"{some([*map(one_line, quiet)])} did not tell where the locks are",
            "run doctor again; a worker of an older release cannot tell: compare redislock_url",
        )  # fmt: skip
    if compared.answered:
        yield from _findings(compared, all_here=not (apart or quiet))
    elif not apart:
        yield Finding(
            UNKNOWN, "no worker answered",
            "start workers; from here, check that broker_url reaches their broker",
        )  # fmt: skip


class Apart(NamedTuple):
    """A worker that has the locks of our tasks in another place, or may have."""

    is_sure: bool  # it has them in another place
    where: str
    tasks: tuple[str, ...]


def _apart(checkup: Checkup) -> tuple[dict[str, Apart], frozenset[str]]:
    """Such workers, by their names; and the names of all that told where they have their locks."""
    apart, heard = _look_for_apart(checkup)
    if not apart:
        return apart, heard
    time.sleep(APART)  # a failover may have come between two looks
    again, more = _look_for_apart(checkup)
    return {node: each for node, each in again.items() if node in apart}, heard | more


def _look_for_apart(checkup: Checkup) -> tuple[dict[str, Apart], frozenset[str]]:
    ours, known = whereabouts(checkup.locks), {task.name for task in checkup.tasks}
    told = _told(checkup.app, "lock_server", dict)
    told = {node: each for node, each in told.items() if isinstance(each.get("tasks"), list)}
    apart = {}
    for node, theirs in told.items():
        # Other projects may use another lock server: only workers with tasks of this app count. If
        # the app has no tasks, all do.
        listed = {*map(str, theirs["tasks"])}
        tasks = tuple(sorted(listed & known if known else listed))
        together = are_together(ours, theirs)
        if tasks and not together:
            apart[node] = Apart(together is False, one_line(str(theirs.get("server"))), tasks)
    return apart, frozenset(told)


def _told_apart(apart: dict[str, Apart], checkup: Checkup) -> Iterator[Finding]:
    here = checkup.locks.describe_server()
    nodes: dict[Apart, list[str]] = {}
    for node, each in sorted(apart.items()):
        nodes.setdefault(each, []).append(one_line(node))
    for each, names in nodes.items():
        has = "has" if len(names) == 1 else "have"
        where = f"the locks of {some(each.tasks)} on {each.where}"
        if each.is_sure:
            yield Finding(ERROR, f"{some(names)} {has} {where}, and not on {here}", AT_ONCE)
        else:
            yield Finding(
                WARNING, f"{some(names)} {has} {where}, which may be another server than {here}",
                f"compare redislock_url; or allow +info, which tells. If it is another, {AT_ONCE}",
            )  # fmt: skip


def _findings(compared: Compared, all_here: bool) -> Iterator[Finding]:
    for (name, task_id), node in compared.only_worker.items():
        yield Finding(
            ERROR, f"{node} holds {one_line(name)} for {one_line(task_id)}, and the server says no",
            "another run may have it too: see the worker's log for LOST",
        )  # fmt: skip
    for (name, task_id), found in compared.only_server.items():
        where = one_line(str(found.holder and found.holder.node))
        yield Finding(
            WARNING,
            f"the server has {one_line(name)} held by {one_line(task_id)} on {where}, which does"
            " not know of it",
            "its process died; the lock expires after its ttl, or break it",
        )  # fmt: skip
    if silent := sorted(compared.silent):
        yield Finding(
            UNKNOWN, f"locks are held on nodes that did not answer: {some(silent)}",
            "senders and RedisLocks do not answer; workers should",
        )  # fmt: skip
    if all_here and not compared.differs and not compared.without:
        workers = len(compared.answered)
        held = count_of(compared.agreed, "held lock")
        yield Finding(OK, f"{count_of(workers, 'worker')} and the server agree on {held}")


def _compare(checkup: Checkup, apart: Collection[str]) -> Compared:
    """What the workers and the server say, but for the workers that are elsewhere."""
    prefix = checkup.locks.prefix
    told = _told(checkup.app, "locks", list)
    told = {node: reports for node, reports in told.items() if node not in apart}
    claimed = {
        (name_of(prefix, str(report.get("key"))) or "", str(report.get("task_id"))): (node, report)
        for node, reports in told.items()
        for report in reports
        if isinstance(report, dict) and report.get("task_id")
    }
    found = snapshot(checkup.app)
    without = [each for each in found if each.state == "without its lock"]
    known = {(each.name, each.holder.task_id) for each in without if each.holder is not None}
    held = {
        (each.name, each.holder.task_id): each
        for each in found
        if each.state in RUNNING and each.holder is not None and each.holder.task_id
    }
    sure = {run: node for run, (node, report) in claimed.items() if report.get("held")}
    nodes = {run: str(each.holder and each.holder.node) for run, each in held.items()}
    return Compared(
        answered=frozenset(told),
        held=list(held.values()),
        without=without,
        agreed=len(claimed.keys() & held.keys()),
        only_worker={run: node for run, node in sure.items() if run not in {*held, *known}},
        only_server={
            run: each for run, each in held.items() if nodes[run] in told and run not in claimed
        },
        silent=frozenset(nodes.values()) - {*told, *apart},
    )


def _told(app: Any, command: str, kind: type[Any]) -> dict[str, Any]:
    """What the workers reply to this command, by their names: what is of this kind."""
    replies = app.control.broadcast(command, reply=True, timeout=ANSWERS) or ()
    return {
        node: told for reply in replies for node, told in reply.items() if isinstance(told, kind)
    }
