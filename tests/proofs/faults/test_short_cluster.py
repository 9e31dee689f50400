"""The short form of the fault bench: slots move in a Redis Cluster, and nodes fail."""

from __future__ import annotations

from .short import assert_nothing_breaks, short_form


@short_form("cluster")
def test_no_promise_is_broken(case, tmp_path, request):
    assert_nothing_breaks(case, tmp_path, request)
