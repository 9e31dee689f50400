"""`make test-celery`: how two runs of the same tests are compared."""

from __future__ import annotations

from tests.foreign.compare import Outcome, judge

PASSED, FAILED = Outcome("passed"), Outcome("failed", "boom")


def test_a_named_difference_is_none_of_the_flaws_and_has_its_reason() -> None:
    plain, guarded = {"a": PASSED, "b": PASSED}, {"a": FAILED, "b": FAILED}

    verdict = judge(plain, guarded, {}, {"a": "two at once"})

    assert (verdict.named, [*verdict.flaws]) == ({"a": "two at once"}, ["b"])
