"""The short form of the fault bench: the network between the workers and the lock server."""

from __future__ import annotations

from tests.proofs.faults.short import assert_nothing_breaks, short_cases


@short_cases("cut_locks", "break_locks", "delay_locks", "block_", "lose_")
def test_no_promise_is_broken(case, tmp_path, request):
    assert_nothing_breaks(case, tmp_path, request)
