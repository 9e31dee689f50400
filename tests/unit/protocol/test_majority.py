"""What independent servers are asked, and what their answers come to."""

from __future__ import annotations

import dataclasses

import pytest

from celery_redislock.protocol import calls, majority
from celery_redislock.protocol.claims import (
    EXTENDED,
    NOT_OURS,
    RETAKEN,
    Claim,
    Extended,
    Extension,
    Settled,
)
from celery_redislock.protocol.holders import Holder
from celery_redislock.protocol.keys import lock_keys

CLAIM = Claim(lock_keys("p", "name"), "token", 30.0, '{"token":"token"}')


@pytest.mark.parametrize("how", ["wait", "woken", "last"])
def test_a_waiter_asks_as_one_does_that_asks_once(how) -> None:
    once = calls.acquire(CLAIM, "try")
    asked = calls.without_waiters(calls.acquire(CLAIM, how))
    assert (asked.args, asked.keys) == (once.args, once.keys)
    kept = dataclasses.replace(CLAIM, kept="other")
    asked, once = calls.without_waiters(calls.acquire(kept, how)), calls.acquire(kept, "try")
    assert (asked.args, asked.keys) == (once.args, once.keys)


def test_one_that_does_not_wait_asks_as_it_is() -> None:
    once = calls.acquire(CLAIM)
    assert calls.without_waiters(once) is once


def test_an_extension_that_retakes_is_one_with_the_highest_counter() -> None:
    extension = Extension(CLAIM, CLAIM.value, 5, retake=True, counter=7)
    highest = extension._replace(counter=2**53)
    assert calls.retaking(calls.extend(extension)).args == calls.extend(highest).args


OURS, BACK, NOT = Extended(EXTENDED, 1), Extended(RETAKEN, 2), Extended(NOT_OURS, 3)
BROKEN = Extended(NOT_OURS, 4, broken_by="ops")
REPLACED = Extended(EXTENDED, 1, Holder(task_id="newer"), 5.0)


@pytest.mark.parametrize("reply", [OURS, BACK, NOT, OURS._replace(is_repaired=True)])
def test_only_what_was_taken_again_may_be_what_was_given_back(reply) -> None:
    assert reply.takes_again is (reply is not OURS and reply is not NOT)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ((OURS, OURS, OURS), OURS),
        ((OURS, OURS, NOT), OURS._replace(counter=3)),
        ((OURS, OURS, BACK), OURS._replace(counter=2, is_repaired=True)),
        ((OURS, BACK, BACK), OURS._replace(outcome=RETAKEN, counter=2, is_repaired=True)),
        ((OURS, NOT, NOT), NOT),
        ((OURS, NOT), None),
        ((OURS, REPLACED, NOT), REPLACED._replace(counter=3)),
        ((OURS, OURS, BROKEN), BROKEN),
    ],
)
def test_an_extension_is_what_a_majority_says(answers, expected) -> None:
    assert majority.extended(answers, 2) == expected


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ((True, False, True), True),
        ((True, False), False),
        ((Settled(True), Settled(False), Settled(True)), Settled(True)),
        ((Settled(True), Settled(False)), Settled(False)),
        ((None, Holder(task="x"), None), Holder(task="x")),
        ((None, None), None),
    ],
)
def test_what_is_counted(answers, expected) -> None:
    assert majority.counted(answers, 2) == expected


def test_the_same_holder_is_one_with_another_time_and_fence() -> None:
    holder = Holder(task_id="x", pid=1, fence=5, acquired_at=1.0)
    same, other = Holder(task_id="x", pid=1, fence=6), Holder(task_id="y", pid=1, fence=7)
    assert majority.commonest([other, holder, same]) is holder


def test_of_how_many_keys_there_are_the_most_is_told() -> None:
    """Each of them may be on another majority of the servers."""
    asked = [("EXISTS", "a", "b"), ("GET", "a")]
    answers = [[1, b"x"], [0, b"x"], [2, None]]
    assert majority.replies(asked, answers) == [2, b"x"]
    denied = ValueError("NOPERM")
    assert majority.replies(asked[:1], [[denied], [denied]]) == [denied]
