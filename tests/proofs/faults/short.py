"""What the tests of the short form share."""

from __future__ import annotations

from pathlib import Path

import pytest

from .cases import SHORT, Case
from .run import run_case
from .stage import Address

SEED = 1


def short_cases(*words: str) -> pytest.MarkDecorator:
    """Parametrize a test with the selection's cases in whose faults' names one of these occurs.

    Only "cluster_" chooses faults of a cluster.
    """

    def chosen(fault: str) -> bool:
        if fault.startswith("cluster_"):
            return "cluster_" in words
        return any(word in fault for word in words)

    cases = [case for case in SHORT if chosen(case.fault)]
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.id)


def assert_nothing_breaks(case: Case, folder: Path, request: pytest.FixtureRequest) -> None:
    if case.skip_reason:
        pytest.skip(case.skip_reason)
    rabbitmq = None
    if case.broker == "rabbitmq":
        server = request.getfixturevalue("rabbitmq")
        rabbitmq = Address(server.url, server.port)
    result = run_case(case, SEED, folder, rabbitmq)
    wrong = "\n".join([result.error, *map(str, result.verdict.violations)])
    assert not result.failed, f"{wrong}\n{result.replay}\n{result.history}"
