"""Runs the checks of a set-up: one small function each.

Reads settings, tasks and the server. Takes no lock and changes nothing.
"""

from __future__ import annotations

from typing import Any, Final

from ...errors import LockUnavailable
from . import keys, rights, server, tasks
from .finding import ERROR, UNKNOWN, Finding
from .patient import Check, Patient

#: The checks that need a server that answers, in the order in which they are shown.
OF_SERVER: Final[dict[str, Check]] = {
    "version": server.check_version,
    "memory": server.check_memory,
    "persistence": server.check_persistence,
    "replication": server.check_replication,
    "rights": rights.check_rights,
    "round trip": server.check_round_trip,
    "time-outs": server.check_timeouts,
    "clock": server.check_clock,
    "prefix": keys.check_prefix,
    "set aside": keys.check_aside,
}
#: Those that read settings only.
OF_SETTINGS: Final[dict[str, Check]] = {
    "redislock_tasks": tasks.check_names,
    "forgotten": tasks.check_forgotten,
    "beat": tasks.check_beat,
    "max hold": tasks.check_hold,
    "visibility": tasks.check_visibility,
    "limits": tasks.check_limits,
}


def examine(app: Any) -> list[tuple[str, Finding]]:
    """Run every check.

    Returns:
        The name of each check and what it found; a check may find several things.

    Raises:
        ConfigError: the settings are wrong, or name no server.
    """
    patient = Patient(app)
    patient.locks.require_address()
    found = _run({"tasks": tasks.check_tasks}, patient)
    reached = _run({"server": server.check_server}, patient)
    found += reached
    if all(finding.level != ERROR for _, finding in reached):
        found += _run(OF_SERVER, patient)
    return found + _run(OF_SETTINGS, patient)


def _run(checks: dict[str, Check], patient: Patient) -> list[tuple[str, Finding]]:
    found: list[tuple[str, Finding]] = []
    for name, check in checks.items():
        try:
            found += [(name, finding) for finding in check(patient)]
        except LockUnavailable as exc:
            found.append(
                (
                    name,
                    Finding(
                        UNKNOWN, exc.reason, "allow this user the command, or use another user"
                    ),
                )
            )
    return found
