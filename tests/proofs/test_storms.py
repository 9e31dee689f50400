"""What the storms send, for a second or two."""

from __future__ import annotations

import pytest

from .storms import POLICIES, storms


@pytest.mark.timeout(300)
def test_after_a_storm_of_duplicates_nothing_is_left_whatever_the_policy() -> None:
    seconds, quiet = 1.5, POLICIES["debounce"].quiet
    told = dict(storms([*POLICIES], seconds, rate=100.0, most=60.0))
    assert {name: each.left for name, each in told.items() if each.left} == {}
    ran = {name: each.ran for name, each in told.items()}
    assert ran["queue"] == told["queue"].sent, "every call runs"
    # A machine that stands still for longer than `quiet` divides the burst, but not more often.
    assert 0 < ran["debounce"] <= 1 + (seconds + told["debounce"].drained_in) / quiet
    assert all(ran.values()), ran
