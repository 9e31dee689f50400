"""Two projects with the same app name, each with tasks that the other does not know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Celery

from celery_redislock import SingletonTask

from .bodies import new_app, run


def fleet(name: str, conf: Mapping[str, Any]) -> Celery:
    """The app of fleet "a" or "b", with its task "a_job" or "b_job"."""
    app = new_app("same", conf)

    @app.task(
        base=SingletonTask, bind=True, shared=False, name=f"{name}_job",
        lock_key=["label"], lock_ttl=2, on_conflict="queue",
    )  # fmt: skip
    def job(self: Any, label: str, how: str | float = 0.0) -> str:
        return run(self, label, how)

    return app
