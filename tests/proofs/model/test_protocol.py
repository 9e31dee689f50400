"""The protocol's model: a case that holds, one that breaks, and one that no rule prevents.
`make proofs ARGS=model` explores all.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .cases import BROKEN, HOLDS, LIMITS, explored
from .explorer import explore


def test_the_smallest_case_of_each_part_ends_as_it_says_and_as_the_document_has_it() -> None:
    case = HOLDS[0]
    result = explored(case).result
    assert result.violation is None
    text = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
    assert f"| {case.name} | {result.states:,} | {result.steps:,} | {result.depth} |" in text
    for case in (BROKEN[1], LIMITS[0]):
        violation = explored(case).result.violation
        assert violation is not None
        assert violation.broken == case.breaks, f"\n{violation}"
    assert all(f"| {each.name} |" in text for each in (*HOLDS, *BROKEN, *LIMITS))


def test_the_summary_is_printed_and_says_if_something_is_not_as_expected() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.proofs.model", "--only", "acks are early", "--traces"],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"acks are early.* 1 steps: no message is gone", done.stdout)
    assert "the worker of 0 is killed" in done.stdout


@pytest.mark.parametrize(("wrong", "steps"), [(7, 4), (0, 0)])
def test_a_counterexample_is_as_short_as_any(wrong: int, steps: int) -> None:
    def counter(state: int) -> list[tuple[str, int]]:
        return [("one", (state + 1) % 11), ("two", (state + 2) % 11)]

    violation = explore(0, counter, {"never this": lambda state: state != wrong}).violation
    assert violation is not None
    assert len(violation.steps) == steps
    assert violation.trace[-1][1] == wrong
