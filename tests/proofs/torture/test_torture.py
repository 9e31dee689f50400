"""The torture of Redis in Action, 6.2, in short, and its judge on histories made by hand."""

from __future__ import annotations

import pytest

from tests.proofs.history import Event
from tests.support.servers import RedisServer

from .judge import judge
from .proof import Run, failures, torture

#: What two clients did, each in one section of its own, as in "enter 0, ask 0, step 0"; the fences
#: that they were given; and what the verdict says.
HISTORIES = {
    "one after the other is right": (
        "enter 0, ask 0, step 0, leave 0, enter 1, ask 1, step 1, leave 1",
        (1, 2),
        {"sections": 2, "double": 0, "most_inside": 1, "fences_out_of_order": 0},
    ),
    "two who do not ask are in ignorance": (
        "enter 0, step 0, enter 1, step 1, step 0, leave 0",
        (0, 0),
        {"unknowing": 1, "mixed": 1, "most_inside": 2, "mixed_past_fence": None},
    ),
    "a step after the other has left is found too": (
        "enter 0, step 0, enter 1, step 1, leave 1, step 0",
        (0, 0),
        {"unknowing": 1, "mixed": 1},
    ),
    "a lock that says yours to both is found": (
        "enter 0, ask 0, step 0, enter 1, ask 1, step 1, ask 0, step 0",
        (0, 0),
        {"unknowing": 1, "too_late": 0, "told": 0},
    ),
    "a holder that asks and does nothing more was told": (
        "enter 0, ask 0, step 0, enter 1, ask 1, step 1, ask 0, leave 0",
        (0, 0),
        {"unknowing": 0, "too_late": 0, "told": 1, "mixed": 0},
    ),
    "a stop between the question and the step is caught by the fence alone": (
        "enter 0, ask 0, step 0, ask 0, enter 1, ask 1, step 1, step 0",
        (1, 2),
        {"unknowing": 0, "too_late": 1, "mixed": 1, "mixed_past_fence": 0},
    ),
    "a fence that does not rise lets it through": (
        "enter 0, ask 0, step 0, ask 0, enter 1, ask 1, step 1, step 0",
        (2, 2),
        {"mixed_past_fence": 1},
    ),
    "fences that do not rise are found": (
        "enter 0, ask 0, step 0, leave 0, enter 1, ask 1, step 1",
        (2, 2),
        {"fences_out_of_order": 1},
    ),
    "one that was stopped before it could enter is the loser": (
        "enter 1, ask 1, step 1, enter 0, ask 0, ask 1, step 1, leave 0",
        (0, 0),
        {"unknowing": 0, "told": 1},
    ),
}


@pytest.mark.parametrize(("story", "fences", "says"), HISTORIES.values(), ids=HISTORIES)
def test_the_judge(story, fences, says):
    steps = [step.split() for step in story.split(", ")]
    events = [
        Event(kind, 0.0, {"client": int(who), "section": 1, "fence": fences[int(who)]})
        for kind, who in steps
    ]

    verdict = judge(events)

    assert {name: getattr(verdict, name) for name in says} == says


def test_ours_lets_nobody_in_beside_a_holder(own_redis: RedisServer, tmp_path):
    run = Run("ours", asks=True, clients=5, scene="plain", seconds=3, seed=1)

    verdict = torture(run, own_redis, tmp_path / "history")

    assert failures(run, verdict) == []
    assert verdict.sections > 20


def test_ours_leaves_no_stopped_holder_in_ignorance_and_nothing_past_the_fence(
    own_redis: RedisServer, tmp_path
):
    run = Run("ours", asks=True, clients=5, scene="stops and long", seconds=3, ttl=0.5, seed=2)

    verdict = torture(run, own_redis, tmp_path / "history")

    assert failures(run, verdict) == []
    assert verdict.sections > 2
    assert verdict.stops > 3


def test_the_instrument_finds_two_in_a_lock_that_lapses(own_redis: RedisServer, tmp_path):
    run = Run("setnx", asks=False, clients=5, scene="long", seconds=3, ttl=0.2, seed=3)

    verdict = torture(run, own_redis, tmp_path / "history")

    assert verdict.unknowing > 0
    assert verdict.mixed > 0
    assert failures(run, verdict) != []
