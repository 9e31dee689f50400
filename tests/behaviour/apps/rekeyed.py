"""A task whose lock gets another key, in three releases: see docs/deploying.md."""

from __future__ import annotations

from typing import Any

from celery_redislock import RedisLock, SingletonTask, Wait

from .bodies import CONF, new_app, run

app = new_app("rekeyed", CONF)
RELEASE = CONF.get("test_release")
KEYS = {"old": "charge:{label}", "between": "charge:{label}", "new": "account:{label}"}


@app.task(
    name="charge", bind=True, base=SingletonTask, lock_key=KEYS.get(RELEASE), on_conflict=Wait()
)
def charge(self: Any, label: str) -> None:
    if RELEASE != "between":
        run(self, label, 0.2)
        return
    with RedisLock(app, f"account:{label}", timeout=None):
        run(self, label, 0.2)
