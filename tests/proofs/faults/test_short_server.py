"""The short form of the fault bench: the lock server evicts, its clock jumps, or it fails over."""

from __future__ import annotations

from .short import assert_nothing_breaks, short_form


@short_form("server")
def test_no_promise_is_broken(case, tmp_path, request):
    assert_nothing_breaks(case, tmp_path, request)
