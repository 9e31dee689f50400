"""What results tell about a task."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from celery import states

from celery_redislock.app.results import ended_since


@pytest.mark.parametrize(
    ("date_done", "is_later"),
    [
        ("2026-01-02T00:00:00", True),
        ("2026-01-01T00:00:00+00:00", False),
        ("yesterday", False),
        (5, False),
        (None, False),
    ],
)
def test_a_result_without_a_date_that_can_be_read_is_not_known_to_be_new(date_done, is_later):
    meta = {"status": states.SUCCESS, "date_done": date_done}
    task = SimpleNamespace(backend=SimpleNamespace(get_task_meta=lambda *args, **kwargs: meta))
    assert ended_since(task, "an id", 1767268800.0) is is_later
