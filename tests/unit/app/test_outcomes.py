"""One function tells what becomes of a task and its lock."""

from __future__ import annotations

import re
from pathlib import Path

import celery_redislock
from celery_redislock.app.outcomes import Outcome

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
