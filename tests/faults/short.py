"""What the tests of the short form share."""

from __future__ import annotations

from pathlib import Path

import pytest

from .cases import SHORT, Case
from .run import run_case
from .stage import Address

SEED = 1


def short_cases(broker: str) -> pytest.MarkDecorator:
    """Parametrize a test with the selection's cases on this broker."""
    cases = [case for case in SHORT if case.broker == broker]
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.id)


def assert_nothing_breaks(case: Case, folder: Path, rabbitmq: Address | None = None) -> None:
    if case.skip_reason:
        pytest.skip(case.skip_reason)
    result = run_case(case, SEED, folder, rabbitmq)
    wrong = "\n".join([result.error, *map(str, result.verdict.violations)])
    assert not result.failed, f"{wrong}\n{result.replay}\n{result.history}"
