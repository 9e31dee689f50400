"""One failover of each kind, with and without replicas that confirm."""

from __future__ import annotations

import pytest

from .failovers import KINDS, round_on


@pytest.mark.parametrize("kind", KINDS)
def test_what_replicas_confirmed_is_not_forgotten_and_the_rest_may_be(kind, tmp_path) -> None:
    forgotten = round_on(kind, 0, tmp_path / "without")
    assert forgotten.twice > 0, "without confirmation the last locks are forgotten"

    confirmed = round_on(kind, 1, tmp_path / "with")
    assert confirmed.taken > 100
    assert confirmed.refused > 0
    assert confirmed.twice == 0
