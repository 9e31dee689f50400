"""A task for each policy and scope, for workers of two releases of this package."""

from __future__ import annotations

from typing import Any

import celery_redislock
from celery_redislock import (
    Coalesce,
    Debounce,
    Defer,
    Queue,
    Raise,
    Replace,
    SingletonTask,
    Skip,
    Wait,
)

from .bodies import CONF, journal, new_app, run

OPTIONS: dict[str, dict[str, Any]] = {
    "skip": {"on_conflict": Skip()},
    "skip_result": {"on_conflict": Skip(result="skipped")},
    "raise": {"on_conflict": Raise()},
    "defer": {"on_conflict": Defer(delay=0.5)},
    "wait": {"on_conflict": Wait()},
    "queue": {"on_conflict": Queue()},
    "coalesce": {"on_conflict": Coalesce()},
    "coalesce_result": {"on_conflict": Coalesce(result="replaced")},
    "debounce": {"on_conflict": Debounce(quiet=1, max_wait=4)},
    "replace": {"on_conflict": Replace(grace=0)},
    "queued_running": {"lock_scope": "queued+running"},
    "queued": {"lock_scope": "queued"},
}

app = new_app("every_policy", CONF)
for name, options in OPTIONS.items():
    options = {"lock_key": f"{name}:{{label}}", "lock_ttl": 3, **options}
    app.task(base=SingletonTask, bind=True, name=name, **options)(run)


@app.task
def send(name: str, label: str, how: str | float, queue: str) -> str:
    """Send a task as the release of this worker does. Returns its id."""
    result = app.tasks[name].apply_async((label, how), queue=queue)
    journal.write("sent", label, send.request, {"from": celery_redislock.__file__})
    return str(result.id)
