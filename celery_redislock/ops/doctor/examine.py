"""Runs the checks of a set-up. Each check is a small function.

The checks read settings, tasks and the server. They take no lock and change nothing.
"""

from __future__ import annotations

from typing import Any, Final

from ...errors import LockUnavailable
from . import keys, rights, server, tasks
from .finding import ERROR, UNKNOWN, Finding
from .patient import Check, Patient

#: The checks that need an answering server, in the order in which they are shown.
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
#: The checks that read only settings.
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
        The name of each check with a finding; a check may have several.

    Raises:
        ConfigError: the settings are wrong, or name no server.
    """
    patient = Patient(app)
    patient.locks.require_address()
    findings = _run({"tasks": tasks.check_tasks}, patient)
    reached = _run({"server": server.check_server}, patient)
    findings += reached
    if all(finding.level != ERROR for _, finding in reached):
        findings += _run(OF_SERVER, patient)
    return findings + _run(OF_SETTINGS, patient)


def _run(checks: dict[str, Check], patient: Patient) -> list[tuple[str, Finding]]:
    findings: list[tuple[str, Finding]] = []
    for name, check in checks.items():
        try:
            findings += [(name, finding) for finding in check(patient)]
        except LockUnavailable as exc:
            todo = "allow this user the command, or use another user"
            findings.append((name, Finding(UNKNOWN, exc.reason, todo)))
    return findings
