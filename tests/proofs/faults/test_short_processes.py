"""The short form of the fault bench: processes are killed or stand still."""

from __future__ import annotations

from tests.proofs.faults.short import assert_nothing_breaks, short_cases


@short_cases("kill_", "stop_child", "stop_main", "stop_worker", "new_release", "two_fleets")
def test_no_promise_is_broken(case, tmp_path, request):
    assert_nothing_breaks(case, tmp_path, request)
