"""Compares two runs of the same tests: plain, and with something of ours in the place of theirs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple


class Outcome(NamedTuple):
    """How a test ended: "passed", "failed", "skipped" (also where it is expected to fail), or "not
    run", and what it said.
    """

    how: str
    why: str = ""


NOT_RUN = Outcome("not run", "the process ended before, or its module could not be imported")
_BY_WEIGHT = ("passed", "skipped", "failed")


class Named(NamedTuple):
    """Tests that differ, and may.

    Attributes:
        test: a glob of their ids. Brackets mean themselves.
        reason: why they differ.
        ways: globs of the ways in which they do.
    """

    test: str
    reason: str
    ways: tuple[str, ...] = ("*",)

    def covers(self, way: str, test: str) -> bool:
        literal = self.test.replace("[", "[[]")
        return fnmatchcase(test, literal) and any(fnmatchcase(way, each) for each in self.ways)


def outcomes(lines: Iterable[str]) -> dict[str, Outcome]:
    """Each test's outcome, from its reports: of its set-up, call and clean-up the worst counts."""
    found: dict[str, Outcome] = {}
    for line in lines:
        test, _, how, why = json.loads(line)
        before = found.get(test, Outcome("passed"))
        if _BY_WEIGHT.index(how) >= _BY_WEIGHT.index(before.how):
            found[test] = Outcome(how, why)
    return found


def differences(
    plain: Mapping[str, Outcome], guarded: Mapping[str, Outcome]
) -> dict[str, Outcome]:
    """The tests that pass plain and not guarded. What does not pass plain says nothing."""
    return {
        test: guarded.get(test, NOT_RUN)
        for test, outcome in plain.items()
        if outcome.how == "passed" and guarded.get(test, NOT_RUN).how != "passed"
    }


class Verdict(NamedTuple):
    """What one way of guarding came to.

    Attributes:
        compared: how many tests pass plain.
        named: those that differ and are named, with the reason.
        unsteady: those that differed, and did not when they were run alone.
        flaws: those that differ each time, and are not named.
    """

    compared: int
    named: Mapping[str, str]
    unsteady: Sequence[str]
    flaws: Mapping[str, Outcome]


def judge(
    way: str,
    plain: Mapping[str, Outcome],
    guarded: Mapping[str, Outcome],
    alone: Mapping[str, tuple[Outcome, Outcome]],
    named: Sequence[Named],
) -> Verdict:
    """Sort the differences.

    Args:
        way: how the tests were guarded.
        alone: for tests that were run again by themselves, how they ended plain and guarded.
        named: the differences that may be.
    """
    differ = differences(plain, guarded)
    reasons = {test: reason_for(way, test, named) for test in differ}
    flaws, unsteady = {}, []
    for test, outcome in differ.items():
        if reasons[test] is not None:
            continue
        again = alone.get(test)
        if again is not None and not (again[0].how == "passed" and again[1].how != "passed"):
            unsteady.append(test)
        else:
            flaws[test] = outcome if again is None else again[1]
    compared = sum(outcome.how == "passed" for outcome in plain.values())
    return Verdict(
        compared, {test: why for test, why in reasons.items() if why}, unsteady, flaws
    )


def reason_for(way: str, test: str, named: Sequence[Named]) -> str | None:
    return next((each.reason for each in named if each.covers(way, test)), None)
