"""Two projects with the same app name, each with tasks that the other does not know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Celery

from celery_redislock import SingletonTask

from .bodies import new_app, run


def fleet(name: str, conf: Mapping[str, Any]) -> Celery:
    """The app of fleet "a" or "b", with its tasks "a_job" and "a_shared", or those of "b". The
    fleets' "shared" tasks share their locks.
    """
    app = new_app("same", conf)
    options = {"base": SingletonTask, "bind": True, "shared": False, "on_conflict": "queue"}

    def job(self: Any, label: str, how: str | float = 0.0) -> str:
        return run(self, label, how)

    app.task(name=f"{name}_job", lock_key=["label"], lock_ttl=2, **options)(job)
    app.task(name=f"{name}_shared", lock_key="shared:{label}", lock_ttl=6, **options)(job)
    return app
