"""The short form of the fault bench, on Redis: each kind of fault once, with a fixed seed."""

from __future__ import annotations

from tests.faults.short import assert_nothing_breaks, short_cases


@short_cases("redis")
def test_no_promise_is_broken(case, tmp_path):
    assert_nothing_breaks(case, tmp_path)
