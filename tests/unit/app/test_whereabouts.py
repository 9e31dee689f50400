"""Whether two processes have their locks in one place."""

from __future__ import annotations

import pytest

from celery_redislock.app.whereabouts import are_together


def place(*databases, ids=(), prefix="redislock", is_quorum=False):
    return {
        "server": "",
        "prefix": prefix,
        "is_quorum": is_quorum,
        "databases": [*databases],
        "ids": [*ids],
    }


def quorum(*databases, ids=()):
    return place(*databases, ids=ids, is_quorum=True)


A, B, C = "a:6379/0", "b:6379/0", "c:6379/0"
SENTINELS = "one:26379;two:26379/0 master %r"


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        (place(A), place(A), True),
        (place(A), place(A, prefix="shop"), False),
        (place(A), place("a:6379/1"), None),
        (place(A, ids=["x/0"]), place("a:6379/1", ids=["x/1"]), False),
        (place(A, ids=["x/0"]), place("alias:6379/0", ids=["x/0"]), True),
        # Two hosts may call themselves localhost.
        (place("127.0.0.1:6379/0", ids=["x/0"]), place("127.0.0.1:6379/0", ids=["y/0"]), False),
        # One of them may not ask for INFO, or the server does not answer it.
        (place(A, ids=["x/0"]), place(A), True),
        (place(A, ids=["x/0"]), place("alias:6379/0"), None),
        # Nodes of one cluster: each side knows other seeds, and has reached other nodes.
        (place(A, B, ids=["x/0", "y/0"]), place(C, ids=["y/0", "z/0"]), True),
        (place(A, B), place(B, C), True),
        (place(SENTINELS % "m"), place(SENTINELS % "m"), True),
        (place(SENTINELS % "m"), place(SENTINELS % "other"), None),
        (place(SENTINELS % "m", ids=["x/0"]), place(SENTINELS % "n", ids=["y/0"]), False),
        (place(SENTINELS % "m", ids=["x/0"]), place("two:26379/0 master 'm'", ids=["x/0"]), True),
        # Of independent servers each side needs the same ones.
        (quorum(A, B, C), quorum(A, B, C), True),
        (quorum(A, B, C), quorum(A, B, "d:6379/0"), None),
        (quorum(A, ids=["x/0"]), quorum("alias:6379/0", ids=["x/0"]), True),
        (quorum(A, B, ids=["x/0"]), quorum("alias:6379/0", B, ids=["x/0"]), None),
        (quorum(A, ids=["x/0"]), quorum(A, ids=["y/0"]), False),
        # Each has reached another one of them.
        (quorum(A, B, C, ids=["x/0"]), quorum(A, B, C, ids=["y/0"]), True),
        (quorum(A, B, C), place(A), False),
    ],
)
def test_what_two_processes_tell_is_compared(one, other, together):
    assert are_together(one, other) is together
    assert are_together(other, one) is together


@pytest.mark.parametrize("text", [{}, {"ids": 5}, {"databases": [None]}, {"prefix": []}])
def test_what_another_release_tells_may_be_anything(text):
    assert not are_together(place(A, ids=["x/0"]), text)
