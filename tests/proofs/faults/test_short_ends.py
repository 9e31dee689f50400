"""The short form of the fault bench: limits, shutdowns, the broker away, messages lost."""

from __future__ import annotations

from .short import assert_nothing_breaks, short_form


@short_form("ends")
def test_no_promise_is_broken(case, tmp_path, request):
    assert_nothing_breaks(case, tmp_path, request)
