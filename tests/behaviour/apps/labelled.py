"""Tasks whose locks have labels."""

from __future__ import annotations

from typing import Any

from celery_redislock import SingletonTask, current_lock

from .bodies import CONF, journal, new_app, run

TASKS: dict[str, dict[str, Any]] = {
    "skips": {"on_conflict": "skip"},
    "raises": {"on_conflict": "raise"},
    "queues": {"on_conflict": "queue"},
    "is_unique": {"lock_scope": "queued+running"},
}

app = new_app("labelled", CONF)


def job(self: Any, label: str, how: str | float = 0.0) -> str:
    journal.write("label", label, self.request, [self.lock.label, current_lock.label])
    return run(self, label, how)


for name, options in TASKS.items():
    defaults = {"lock_key": ["label"], "lock_ttl": 6, "lock_label": "order {label}\n"}
    app.task(bind=True, name=name, base=SingletonTask, **{**defaults, **options})(job)


@app.task(bind=True, name="plain")
def plain(self: Any, label: str, how: str | float = 0.0) -> str:
    return run(self, label, how)
