"""An app that lingers when it has published a task: a time limit finds its worker there."""

from __future__ import annotations

import time
from typing import Any

from celery import Celery

from celery_redislock import Defer, SingletonTask

from .bodies import CONF, journal


class Lingering(Celery):
    def send_task(self, *args: Any, **kwargs: Any) -> Any:
        result = super().send_task(*args, **kwargs)
        for _ in range(400):
            time.sleep(0.05)
        return result


app = Lingering("lingering")
app.conf.update({k: v for k, v in CONF.items() if not k.startswith("test_")})


def deferred(self: Any, label: str) -> None:
    journal.write("start", label, self.request)


OPTIONS = {"base": SingletonTask, "bind": True, "lock_key": "{label}", "soft_time_limit": 1}
app.task(name="deferred", on_conflict=Defer(delay=2), **OPTIONS)(deferred)
app.task(name="deferred_late", on_conflict=Defer(delay=2), acks_late=True, **OPTIONS)(deferred)
