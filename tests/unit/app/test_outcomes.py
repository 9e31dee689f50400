"""One function tells what becomes of a task and its lock."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import celery_redislock
from celery_redislock.app import outcomes
from celery_redislock.app.outcomes import BURST, Outcome, level_in_burst

ROOT = Path(celery_redislock.__file__).parent
#: A line's fields, an event, or one of our signals, made by hand.
BY_HAND = re.compile(r"(?<!dataclasses\.)\bfields\(|\bemit\(|\block_\w+\.send\(|Details\(")


def test_nobody_else_makes_fields_events_or_signals():
    """A lease writes its lines itself: `lock` knows no signals."""
    there = {"app/outcomes.py", "app/events.py", "signals.py"}
    paths = [
        path
        for path in ROOT.rglob("*.py")
        if path.parent.name not in ("protocol", "servers", "lock", "demo")
    ]
    found = {
        str(path.relative_to(ROOT))
        for path in paths
        if BY_HAND.search(path.read_text(encoding="utf-8"))
    }
    assert found == there


def test_no_outcome_is_another_one():
    assert len(Outcome) == len(Outcome.__members__)
    assert len({each.label for each in Outcome}) == len(Outcome)
    assert {
        each for each in Outcome if (each.signal is None) is not (each.details is None)
    } == set()


def test_what_ends_a_task_for_a_reason_that_is_not_its_own_is_not_at_info():
    """What is at INFO is what a task's own options ask for."""
    others = {"dropped", "not taken", "broken", "lost", "unavailable", "run unlocked"}
    assert {each.label for each in Outcome if each.level >= logging.WARNING} >= others


def test_of_a_burst_of_ends_one_is_an_error(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(outcomes, "clock", lambda: now)
    outcomes.burst.begin()
    assert [level_in_burst() for _ in range(3)] == [logging.ERROR, *[logging.WARNING] * 2]
    now += BURST - 1
    assert level_in_burst() == logging.WARNING
    now += 2
    assert [level_in_burst() for _ in range(2)] == [logging.ERROR, logging.WARNING]
