"""What the tests of containers leave behind: nothing. The last file that `make test-containers`
runs.
"""

from __future__ import annotations

from tests.support.compose import everything
from tests.support.engine import on_an_engine


@on_an_engine
def test_a_stack_that_ran_before_is_untouched(neighbour):
    assert neighbour.look() == neighbour.before
    assert neighbour.CODE in neighbour.before["code"]
    neighbour.stack("up", "--detach", "--no-build", "worker-1")
    assert neighbour.look() == neighbour.before, "and `up` finds nothing to change"


@on_an_engine
def test_nothing_is_left(neighbour):
    assert everything() == neighbour.had
