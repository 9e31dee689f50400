"""Seconds until a time that a message or a caller gives."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from celery_redislock.app.times import has_passed, seconds_until

BERLIN = ZoneInfo("Europe/Berlin")


def across_a_clock_change() -> datetime:
    """A time within a year from now, on the other side of a change to or from summer time."""
    now = datetime.now(timezone.utc)
    days = (now + timedelta(days=n) for n in range(1, 366))
    today = now.astimezone(BERLIN).utcoffset()
    return next(day for day in days if day.astimezone(BERLIN).utcoffset() != today)


def test_an_hour_is_neither_lost_nor_won_when_summer_time_begins_or_ends():
    when = across_a_clock_change()
    left = (when - datetime.now(timezone.utc)).total_seconds()
    assert seconds_until(when.astimezone(BERLIN)) == pytest.approx(left, abs=5)


def test_a_time_without_a_zone_is_in_utc_and_as_text_it_is_the_same():
    when = datetime.now(timezone.utc) + timedelta(hours=5)
    for each in (when, when.replace(tzinfo=None), when.isoformat(), when.astimezone(BERLIN)):
        assert seconds_until(each) == pytest.approx(5 * 3600, abs=5)


def test_a_number_is_seconds_and_what_is_no_time_is_not_known():
    assert seconds_until(3) == 3.0
    for each in (None, True, "soon", object(), datetime.max):
        left = seconds_until(each)
        assert left is None or left > 0


def test_a_time_that_is_not_known_has_not_passed():
    assert has_passed(datetime.now(timezone.utc) - timedelta(seconds=1))
    assert not has_passed(None)
    assert not has_passed("soon")
