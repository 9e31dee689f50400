"""`celery inspect locks`, `inspect lock_server` and `control break_lock`: what the workers know,
from the memory of the main process, to be compared with the lock server's data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from celery.worker.control import control_command, inspect_command

from ..app.outcomes import Outcome, Whose, report
from ..app.settings import app_locks
from ..app.whereabouts import whereabouts
from ..errors import ConfigError, LockUnavailable
from ..lock.heartbeat import heartbeat
from ..lock.lease import Lease
from ..protocol import calls
from ..protocol.holders import Holder
from ..protocol.keys import LockKeys
from ..tasks.target import TargetError, locate, word
from ..tasks.task import locked_tasks
from .child_lease import ChildLease


@inspect_command(help="List the locks that this worker holds, from its own memory.")
def locks(state: Any, **kwargs: Any) -> list[dict[str, Any]]:
    """The locks that this worker's runs hold, the one held longest first, as plain data.

    `held` is True, False (the server has said that this run does not have the lock: it waits, or
    has lost it), or None: prefork's main process has not asked yet.
    """
    reports = [report for _, report in _reports()]
    return sorted(reports, key=lambda report: -report["held_for"])


@inspect_command(help="Tell where this worker's locks are.")
def lock_server(state: Any, **kwargs: Any) -> dict[str, Any]:
    """Where this worker's locks are, see `whereabouts`; and the names of its locked tasks."""
    locks, tasks = app_locks(state.app), locked_tasks(state.app)
    if not tasks or not locks.knows_server:
        return {"tasks": []}
    return {**whereabouts(locks), "tasks": [task.name for task in tasks]}


@control_command(
    variadic="target",
    signature="KEY|TASK [ARG1 [ARG2 [... [ARGN]]]]",
    help="Take a lock away from the runs of this worker that hold it.",
)
def break_lock(state: Any, target: Sequence[Any] | str = (), **kwargs: Any) -> dict[str, Any]:
    """Break a lock that a run of this worker holds, by its exact token: others keep it."""
    words = [target] if isinstance(target, str) else list(target)
    if not words:
        return {"error": "which lock? Give a key, or a task and its arguments"}
    try:
        meant = locate(state.app, str(words[0]), [word(each) for each in words[1:]])
        by = f"celery control, on {state.hostname}"
        broken = [holder.to_dict() for holder in _break(meant.keys, by)]
    except (TargetError, ConfigError, LockUnavailable) as exc:
        return {"error": str(exc)}
    return {"ok": {"key": meant.keys.lock, "broken": broken}}


def _break(keys: LockKeys, by: str) -> Iterator[Holder]:
    for lease, _ in _reports():
        if lease.claim.keys.lock != keys.lock:
            continue
        claim = lease.claim
        holder = lease.server.run(
            calls.break_lock(claim.keys, lease.ttl, claim.token, by, claim.task)
        )
        if holder is not None:
            text = "redislock: %s was broken by remote control; it was held by %s"
            report(Outcome.BROKEN, Whose(keys.lock), text, keys.lock, holder, holder=holder)
            yield holder


def _reports() -> Iterator[tuple[Lease | ChildLease, dict[str, Any]]]:
    for kept in heartbeat.live():
        if isinstance(kept, Lease):
            yield kept, kept.report()
        elif isinstance(kept, ChildLease) and (report := kept.report()) is not None:
            yield kept, report
