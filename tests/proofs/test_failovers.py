"""What `make failovers` counts, once."""

from __future__ import annotations

import pytest

from .failovers import KINDS, round_on


@pytest.mark.parametrize("kind", KINDS)
def test_what_replicas_confirmed_is_not_forgotten_and_the_rest_may_be(kind) -> None:
    assert round_on(kind, 0).twice > 0, "without confirmation the last locks are forgotten"
    confirmed = round_on(kind, 1)
    assert confirmed.taken > 200
    assert confirmed.refused > 0
    assert confirmed.twice == 0
