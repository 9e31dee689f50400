"""The short form of the fault bench: limits, shutdowns, the broker away, messages lost."""

from __future__ import annotations

from tests.proofs.faults.short import assert_nothing_breaks, short_cases


@short_cases("_limit", "revoke", "shutdown", "cut_broker", "_messages", "several")
def test_no_promise_is_broken(case, tmp_path, request):
    assert_nothing_breaks(case, tmp_path, request)
