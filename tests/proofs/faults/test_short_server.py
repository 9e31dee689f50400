"""The short form of the fault bench: the lock server stands still, forgets, or fails over."""

from __future__ import annotations

from tests.proofs.faults.short import assert_nothing_breaks, short_cases


@short_cases(
    *("stop_locks", "pause_locks", "restart_", "empty_locks", "evict_", "clock_"),
    *("failover", "flush_"),
)
def test_no_promise_is_broken(case, tmp_path, request):
    assert_nothing_breaks(case, tmp_path, request)
