"""What the tests of the short form share, and which file has which kinds of fault."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.proofs.harness import run_one

from .cases import SHORT, Case, Faults
from .stage import Address

#: A file's tests run one after another. Only "cluster_" chooses faults of a cluster.
FILES = {
    "processes": ("kill_", "new_release", "two_fleets"),
    "server": ("evict_", "clock_", "failover"),
    "ends": ("_limit", "revoke", "shutdown", "cut_broker", "_messages", "several"),
    "cluster": ("cluster_",),
}


def chosen(words: Sequence[str]) -> list[Case]:
    return [
        case
        for case in SHORT
        if any(word in case.fault for word in words)
        and case.fault.startswith("cluster_") == ("cluster_" in words)
    ]


def short_form(file: str) -> pytest.MarkDecorator:
    """Parametrize a test with the cases of this file."""
    return pytest.mark.parametrize("case", chosen(FILES[file]), ids=lambda case: case.id)


def assert_nothing_breaks(case: Case, folder: Path, request: pytest.FixtureRequest) -> None:
    if case.skip_reason:
        pytest.skip(case.skip_reason)
    rabbitmq = None
    if case.broker == "rabbitmq":
        server = request.getfixturevalue("rabbitmq")
        rabbitmq = Address(server.url, server.port)
    result = run_one(Faults(), case.id, 1, argparse.Namespace(), folder, rabbitmq)
    wrong = "\n".join(filter(None, [result.error, *result.wrong]))
    again = f"python -m tests.proofs faults --only {case.id}"
    assert not result.failed, f"{wrong}\n{again}\n{result.history}"
