"""The tasks that count as unique from when they are sent. The sender reserves their locks, so it
knows them too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import Celery

from celery_redislock import Queue, SingletonTask

#: Seconds that a reservation lasts if nobody takes it, so that a lost message blocks a lock only
#: until the end of the case.
RESERVED = 8.0
_BOTH = {"lock_scope": "queued+running", "lock_queued_ttl": RESERVED}

#: The options of each.
SCOPED: dict[str, dict[str, Any]] = {
    "scoped": {**_BOTH, "on_conflict": Queue()},
    "scoped_published": {**_BOTH, "on_conflict": Queue(), "on_queued_conflict": "publish"},
    "retry_scoped": {**_BOTH, "on_conflict": Queue()},
    "queued_only": {"lock_scope": "queued", "lock_queued_ttl": RESERVED},
}


def define(app: Celery, name: str, body: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Define a locked task of the bench. A template key: tasks share the locks."""
    defaults = {"base": SingletonTask, "bind": True, "lock_key": "{key}", "max_retries": 5}
    return app.task(**{**defaults, "name": name, **options})(body)


def for_sender(app: Celery) -> dict[str, Any]:
    """These tasks as a sender knows them, by name."""
    return {name: define(app, name, _never_run, options) for name, options in SCOPED.items()}


def _never_run(
    self: Any,
    key: str,
    seconds: float = 0.2,
    how: str = "return",
    retries: int = 0,
    countdown: float = 0.0,
) -> None:
    raise AssertionError("it runs where it is sent")
