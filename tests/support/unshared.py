"""Apps whose tasks are their own. Imports nothing of celery_redislock."""

from __future__ import annotations

from typing import Any

from celery import Celery


class App(Celery):
    """An app whose tasks are its own: others in this process do not get them."""

    def task(self, *args: Any, **options: Any) -> Any:
        return super().task(*args, **{"shared": False, **options})
