"""One task in the releases of its project, before and after each change that is tested.

A test imports this too, and asks the task for its keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Celery, Task

from celery_redislock import SingletonTask

from .bodies import new_app, run

#: Of each change: the task's options before and after it.
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "lock_key": ({"lock_key": ["label"]}, {"lock_key": "job:{label}"}),
    "date": ({"lock_key": lambda label, how=0.0: f"monday:{label}"},
             {"lock_key": lambda label, how=0.0: f"tuesday:{label}"}),
    "signature": ({"lock_key": "job:{label}"}, {"lock_key": "job:{label}"}),
    "name": ({"lock_key": "job:{label}"}, {"lock_key": "job:{label}", "name": "renamed_job"}),
    "alias": ({"lock_key": "job:{label}"}, {"lock_key": "job:{label}", "name": "renamed_job"}),
    "base": ({"lock_key": "job:{label}"}, {"base": Task}),
    "disabled": ({"lock_key": "job:{label}"}, {"lock_key": "job:{label}"}),
}  # fmt: skip


def of_two_parameters(self: Any, label: str, how: str | float = 0.0) -> str:
    return run(self, label, how)


def of_three_parameters(self: Any, label: str, how: str | float, account: int) -> str:
    return run(self, label, how)


def release(number: int, change: str, conf: Mapping[str, Any]) -> Celery:
    """The app of the release before this change (1), or after it (2)."""
    settings: dict[str, Any] = {}
    if change == "disabled" and number == 2:
        settings["redislock_enabled"] = False
    app = new_app("releases", {**conf, **settings})
    options: dict[str, Any] = {"name": "job", "base": SingletonTask}
    options.update(OPTIONS[change][number - 1])
    if options["base"] is SingletonTask:
        options.update(lock_ttl=2, on_conflict="queue")
    changed = change == "signature" and number == 2
    body = of_three_parameters if changed else of_two_parameters
    app.task(bind=True, shared=False, **options)(body)
    if change == "alias":  # also under its old name, as docs/deploying.md has it
        app.task(bind=True, shared=False, **{**options, "name": "job"})(body)
    return app
