"""`make test-celery`: how two runs of the same tests are compared."""

from __future__ import annotations

import json

import pytest

from tests.foreign.compare import NOT_RUN, Named, Outcome, differences, judge, outcomes, reasons_for
from tests.foreign.named import CELERY, REDIS_PY

PASSED, FAILED, SKIPPED = Outcome("passed"), Outcome("failed", "boom"), Outcome("skipped")


def reports(*given: tuple[str, str, str]) -> list[str]:
    return [json.dumps([test, when, how, f"said {when}"]) for test, when, how in given]


def test_of_a_tests_reports_the_worst_counts() -> None:
    lines = reports(
        *[("a", "setup", "passed"), ("a", "call", "passed"), ("a", "teardown", "failed")],
        *[("b", "setup", "passed"), ("b", "call", "skipped"), ("b", "teardown", "passed")],
    )
    assert outcomes(lines) == {
        "a": Outcome("failed", "said teardown"),
        "b": Outcome("skipped", "said call"),
    }


def test_only_what_passes_plain_is_compared() -> None:
    plain = {"fine": PASSED, "broken": FAILED, "left out": SKIPPED, "worse": PASSED}
    guarded = {"fine": PASSED, "broken": FAILED, "left out": FAILED, "worse": FAILED}
    assert differences(plain, guarded) == {"worse": FAILED}


@pytest.mark.parametrize("guarded", [{}, {"test": SKIPPED}])
def test_a_test_that_does_not_run_guarded_differs(guarded: dict[str, Outcome]) -> None:
    assert differences({"test": PASSED}, guarded) == {"test": guarded.get("test", NOT_RUN)}


@pytest.mark.parametrize(
    ("alone", "is_flaw"),
    [
        (None, True),
        ((PASSED, FAILED), True),
        ((PASSED, NOT_RUN), True),
        ((PASSED, PASSED), False),
        ((FAILED, FAILED), False),
    ],
)
def test_a_difference_is_a_flaw_if_it_is_there_alone_too(alone, is_flaw: bool) -> None:
    again = {} if alone is None else {"test": alone}
    verdict = judge({"test": PASSED}, {"test": FAILED}, again, {})
    assert ([*verdict.flaws], verdict.unsteady) == ((["test"], []) if is_flaw else ([], ["test"]))


def test_a_named_difference_is_none_of_the_flaws_and_has_its_reason() -> None:
    plain, guarded = {"a": PASSED, "b": PASSED}, {"a": FAILED, "b": FAILED}

    verdict = judge(plain, guarded, {}, {"a": "two at once"})

    assert (verdict.named, [*verdict.flaws]) == ({"a": "two at once"}, ["b"])


def test_a_duplicate_is_a_reason_only_where_one_was_met() -> None:
    named = [Named("t/a.py::twice[*]", "two at once", met=("skipped",))]
    met = {"t/a.py::twice[1-x]": {"skipped": 1, "acquired": 5}, "t/a.py::twice[2-x]": {"queued": 1}}
    tests = ["t/a.py::twice[1-x]", "t/a.py::twice[2-x]", "t/a.py::twice[3-x]", "t/a.py::twice"]

    assert reasons_for(tests, met, named) == {"t/a.py::twice[1-x]": "two at once"}


def test_each_named_difference_has_a_reason_and_is_named_once() -> None:
    every = [*CELERY, *REDIS_PY]
    assert all(each.reason for each in every)
    assert len({each.test for each in every}) == len(every)
