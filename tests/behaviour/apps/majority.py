"""Tasks with the policies that need no waiting room, for locks in independent servers."""

from __future__ import annotations

import time
from typing import Any

from celery_redislock import Defer, Raise, SingletonTask, Skip, Wait

from .bodies import CONF, journal, new_app

app = new_app("majority", CONF)


def body(self: Any, label: str, seconds: float = 0.0) -> int:
    journal.write("start", label, self.request)
    time.sleep(seconds)
    journal.write("end", label, self.request)
    return int(self.lock.fence)


POLICIES = {"skip": Skip(), "refuse": Raise(), "defer": Defer(delay=0.5), "wait": Wait(timeout=20)}
for name, policy in POLICIES.items():
    app.task(
        base=SingletonTask, bind=True, shared=False, name=f"majority.{name}",
        lock_key="{label}", lock_ttl=6, on_conflict=policy,
    )(body)  # fmt: skip
