"""Runs the checks of a set-up, which take no lock and change nothing."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from ...errors import LockUnavailable
from ...servers.looking import reach
from . import keys, rights, runs, server, tasks, workers
from .checkup import OK, UNKNOWN, Check, Checkup, Finding

#: The checks of each Redis server, in the order in which they are shown.
OF_EACH: Final[dict[str, Check]] = {
    "version": server.check_version,
    "memory": server.check_memory,
    "persistence": server.check_persistence,
    "replication": server.check_replication,
    "round trip": server.check_round_trip,
    "time-outs": server.check_timeouts,
    "clock": server.check_clock,
}
#: The other checks that need an answering server.
OF_SERVER: Final[dict[str, Check]] = {
    "cluster": server.check_cluster,
    "rights": rights.check_rights,
    "prefix": keys.check_prefix,
    "database": keys.check_neighbours,
    "not taken": keys.check_untaken,
    "suspended": runs.check_suspended,
    "runs": runs.check_runs,
}
#: The checks that read only settings.
OF_SETTINGS: Final[dict[str, Check]] = {
    "redislock_tasks": tasks.check_names,
    "forgotten": tasks.check_forgotten,
    "beat": tasks.check_beat,
    "max hold": tasks.check_hold,
    "visibility": tasks.check_visibility,
    "limits": tasks.check_limits,
    "cache": keys.check_caches,
}


def examine(app: Any, with_workers: bool = False) -> list[tuple[str, Finding]]:
    """Run every check. Each finding has its check's name; a check may have several."""
    checkup = Checkup(app)
    checkup.locks.require_address()
    findings = _run({"tasks": tasks.check_tasks}, checkup)
    reached = _of_each(checkup)
    findings += reached
    if any(check == "server" and finding.level == OK for check, finding in reached):
        findings += _of_server(checkup, with_workers)
    return findings + _run(OF_SETTINGS, checkup)


def _of_server(checkup: Checkup, with_workers: bool) -> list[tuple[str, Finding]]:
    """What the lock server is found to be, and the runs, if no part of it is away."""
    try:
        for shard in checkup.server.shards().values():
            reach(shard)
    except LockUnavailable:  # what is said of each server says so
        return _run({"cluster": server.check_cluster}, checkup)
    of_runs: Check = workers.check_workers if with_workers else workers.check_lost
    return _run({**OF_SERVER, "workers": of_runs}, checkup)


def examine_settings(app: Any, for_production: bool = False) -> list[tuple[str, Finding]]:
    """Run the checks that ask no server: those of `check --deploy`, or else the others."""
    checks = {"tasks": tasks.check_tasks, **OF_SETTINGS, "max hold": tasks.check_outlived}
    return _run({"max hold": tasks.check_endless} if for_production else checks, Checkup(app))


def _of_each(checkup: Checkup) -> list[tuple[str, Finding]]:
    """What each Redis server is found to be. What is the same for all is shown once."""
    try:
        primaries = checkup.locks.server.primaries()
    except LockUnavailable as exc:
        return [("server", server.unreachable(exc))]
    found: dict[tuple[str, Finding], list[str]] = {}
    for name, each in primaries.items():
        one = Checkup(checkup.app, each)
        findings = _run({"server": server.check_server}, one)
        if findings[0][1].level == OK:
            findings += _run(OF_EACH, one)
        for finding in findings:
            found.setdefault(finding, []).append(name)
    order = {check: number for number, check in enumerate(["server", *OF_EACH])}
    told = []
    for (check, same), names in sorted(found.items(), key=lambda each: order[each[0][0]]):
        at = "" if len(names) == len(primaries) else f"{', '.join(names)}: "
        told.append((check, dataclasses.replace(same, what=f"{at}{same.what}")))
    return told


def _run(checks: dict[str, Check], checkup: Checkup) -> list[tuple[str, Finding]]:
    findings: list[tuple[str, Finding]] = []
    for name, check in checks.items():
        try:
            findings += [(name, finding) for finding in check(checkup)]
        except LockUnavailable as exc:
            todo = "allow this user the command, or use another user"
            findings.append((name, Finding(UNKNOWN, exc.reason, todo)))
        except (AttributeError, KeyError, TypeError, ValueError) as exc:
            # Celery checks few of its settings, and takes any value for an option of a task.
            what = f"cannot tell: {type(exc).__name__}: {exc}"
            todo = "a setting or an option of a task is of the wrong type: correct it"
            findings.append((name, Finding(UNKNOWN, what, todo)))
    return findings
