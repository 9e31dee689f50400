"""A turn that one thread takes at a time."""

from __future__ import annotations

import pytest

from celery_redislock.protocol import turns
from celery_redislock.protocol.turns import Turn


class Time:
    now = 100.0


@pytest.fixture
def time(monkeypatch):
    monkeypatch.setattr(turns, "clock", lambda: Time.now)
    monkeypatch.setattr(Time, "now", 100.0)
    return Time


def test_one_takes_it_until_it_is_given_back():
    turn, one, other = Turn(), object(), object()

    assert turn.take(one, 5.0)
    assert turn.take(one, 5.0), "who has it may ask again"
    assert not turn.take(other, 5.0)
    turn.give_back(other)
    assert turn.is_of(one)
    assert not turn.is_of(other)

    turn.give_back(one)
    assert not turn.is_of(one)
    assert turn.take(other, 5.0)


def test_it_ends_by_itself_at_its_time(time):
    turn, one, other = Turn(), object(), object()
    turn.take(one, 5.0)

    time.now = 104.9
    assert not turn.take(other, 5.0)
    time.now = 105.0
    assert turn.take(other, 5.0)
    assert not turn.is_of(one)

    turn.give_back(one)  # too late: it is the other's
    assert turn.is_of(other)
    time.now = 109.9
    assert not turn.take(one, 5.0), "it was taken anew, for its own seconds"
