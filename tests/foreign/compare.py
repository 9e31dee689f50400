"""Compares two runs of the same tests: plain, and with something of ours in the place of theirs."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
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
        met: what must have become of a duplicate meanwhile, one of these: it shows that there was
            one.
    """

    test: str
    reason: str
    met: tuple[str, ...] = ()

    def covers(self, test: str, met: Collection[str]) -> bool:
        is_shown = not self.met or any(each in met for each in self.met)
        return is_shown and fnmatchcase(test, self.test.replace("[", "[[]"))


def outcomes(lines: Iterable[str]) -> dict[str, Outcome]:
    """Each test's outcome, from its reports: of its set-up, call and clean-up the worst counts."""
    found: dict[str, Outcome] = {}
    for line in lines:
        test, _, how, why = json.loads(line)
        before = found.get(test, Outcome("passed"))
        if _BY_WEIGHT.index(how) >= _BY_WEIGHT.index(before.how):
            found[test] = Outcome(how, why)
    return found


def differences(plain: Mapping[str, Outcome], guarded: Mapping[str, Outcome]) -> dict[str, Outcome]:
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
    plain: Mapping[str, Outcome],
    guarded: Mapping[str, Outcome],
    alone: Mapping[str, tuple[Outcome, Outcome]],
    reasons: Mapping[str, str],
) -> Verdict:
    """Sort the differences.

    Args:
        alone: for tests that were run again by themselves, how they ended plain and guarded.
        reasons: those that are named, with the reason.
    """
    named, unsteady, flaws = {}, [], {}
    for test, outcome in differences(plain, guarded).items():
        again = alone.get(test)
        if test in reasons:
            named[test] = reasons[test]
        elif again is not None and not (again[0].how == "passed" and again[1].how != "passed"):
            unsteady.append(test)
        else:
            flaws[test] = outcome if again is None else again[1]
    compared = sum(outcome.how == "passed" for outcome in plain.values())
    return Verdict(compared, named, unsteady, flaws)


def reasons_for(
    tests: Iterable[str], met: Mapping[str, Collection[str]], named: Sequence[Named]
) -> dict[str, str]:
    """Why these tests may differ, those that may.

    Args:
        met: what became of duplicates while each test ran.
    """
    covered = ((test, each) for test in tests for each in reversed(named))
    return {test: each.reason for test, each in covered if each.covers(test, met.get(test, ()))}
