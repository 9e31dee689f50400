"""The protocol, in every order of events; each of its rules, left out; and what none prevents."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .cases import BROKEN, HOLDS, LIMITS, Case, Row, explored
from .explorer import TooManyStates, explore

#: It computes, and a busy machine has little time for it.
pytestmark = pytest.mark.timeout(1200)

SMALL = [case for case in HOLDS if not case.big]


def by_name(case: Case) -> str:
    return case.name


@pytest.fixture(scope="module")
def seen() -> dict[str, Row]:
    """What was explored in this module: each case once."""
    return {}


def row_of(case: Case, seen: dict[str, Row]) -> Row:
    if case.name not in seen:
        seen[case.name] = explored(case)
    return seen[case.name]


@pytest.mark.parametrize("case", SMALL, ids=by_name)
def test_everything_holds_whatever_happens_in_which_order(case: Case, seen: dict[str, Row]) -> None:
    violation = row_of(case, seen).result.violation
    assert violation is None, f"\n{violation}"


@pytest.mark.parametrize("case", BROKEN, ids=by_name)
def test_something_breaks_without_one_of_the_rules(case: Case) -> None:
    violation = explored(case).result.violation
    assert violation is not None
    assert violation.broken == case.breaks, f"\n{violation}"


@pytest.mark.parametrize("case", LIMITS, ids=by_name)
def test_what_is_not_prevented_is_known(case: Case) -> None:
    violation = explored(case).result.violation
    assert violation is not None, "it is prevented by now: say so in README.md"
    assert violation.broken == case.breaks, f"\n{violation}"


def test_every_step_of_the_protocol_is_taken_somewhere(seen: dict[str, Row]) -> None:
    """A model in which nothing can happen has every property."""
    taken: set[str] = set()
    for case in SMALL:
        names = row_of(case, seen).result.names
        taken |= {re.sub(r"\b\d('s)?\b", "N", name) for name in names}
    assert taken == {
        "N asks: acquire",
        "N asks: extend",
        "N asks: release",
        "N asks: retake",
        "N ends as a copy",
        "N ends its body",
        "N gets no answer",
        "N goes on",
        "N goes on inside",
        "N is answered: another's",
        "N is answered: its copy's",
        "N is answered: not yours",
        "N is answered: ran",
        "N is answered: so be it",
        "N is answered: superseded",
        "N is answered: taken again",
        "N is answered: the earlier attempt's",
        "N is answered: yours",
        "N is deferred",
        "N is delivered again, as N",
        "N is paused",
        "N is skipped",
        "N is told that it lost",
        "N knows that it has released",
        "N late acquire arrives",
        "N late acquire is lost",
        "N late extend arrives",
        "N late extend is lost",
        "N late release arrives",
        "N late release is lost",
        "N late retake arrives",
        "N late retake is lost",
        "N leaves its lock to lapse",
        "N sends its retry, N",
        "N asks again, for there is no result",
        "a neighbour takes its lock",
        "a tick",
        "the child of N is killed",
        "the parent of N extends",
        "the parent of N releases",
        "the parent of N reports",
        "the server restarts empty",
        "the worker of N is killed",
    }


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
    assert "1 case," in done.stdout


def test_the_document_says_what_was_seen(seen: dict[str, Row]) -> None:
    """`python -m tests.proofs.model --big --write` brings it up to date."""
    text = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
    for case in SMALL:
        result = row_of(case, seen).result
        assert f"| {case.name} | {result.states:,} | {result.steps:,} | {result.depth} |" in text
    for case in (*HOLDS, *BROKEN, *LIMITS):
        assert f"| {case.name} |" in text


# -- the explorer itself ----------------------------------------------------------------------


def counter(state: int) -> list[tuple[str, int]]:
    """From 0 up by one or two, and round from 10."""
    return [("one", (state + 1) % 11), ("two", (state + 2) % 11)]


def test_every_state_is_seen_once_and_every_step() -> None:
    seen = explore(0, counter, {"small": lambda state: state < 11})
    assert (seen.states, seen.steps, seen.depth, seen.violation) == (11, 22, 5, None)
    assert seen.names == {"one", "two"}
    with pytest.raises(TooManyStates):
        explore(0, lambda state: [("up", state + 1)], {}, limit=100)


@pytest.mark.parametrize(("wrong", "steps"), [(7, 4), (0, 0)])
def test_a_counterexample_is_as_short_as_any(wrong: int, steps: int) -> None:
    violation = explore(0, counter, {"never this": lambda state: state != wrong}).violation
    assert violation is not None
    assert len(violation.steps) == steps
    assert violation.trace[-1][1] == wrong
    assert str(violation).startswith("broken: never this")


def test_what_cannot_be_reached_any_more_from_somewhere_is_noticed() -> None:
    def one_way(state: int) -> list[tuple[str, int]]:
        return [("up", state + 1)] if state < 5 else []

    assert explore(0, one_way, {}, {"can be five": lambda state: state == 5}).violation is None
    stuck = explore(0, one_way, {}, {"can be three": lambda state: state == 3}).violation
    assert stuck is not None
    assert stuck.trace[-1][1] == 4
