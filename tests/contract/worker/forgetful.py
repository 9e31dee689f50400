"""The app of `deliveries`, in workers that forget done notes after 3 s, or `test_remembered`."""

from __future__ import annotations

from typing import Any

from celery_redislock.worker import finished
from tests.behaviour.apps.deliveries import CONF, LATE, app, journal, singleton

finished.REMEMBERED = CONF.get("test_remembered", 3.0)


# Not at once: Celery may store the first attempt's RETRY after the second one's FAILURE.
@singleton(name="fails_late", max_retries=1, default_retry_delay=1, **LATE)
def fails_late(self: Any, label: str) -> None:
    journal.write("start", label, self.request)
    try:
        raise ValueError(label)
    except ValueError as exc:
        raise self.retry(exc=exc) from exc


__all__ = ["app"]
