"""Tasks in releases of their project: before and after the change that each is named after.

A test imports this too, and asks the tasks for their keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Celery

from celery_redislock import SingletonTask

from .bodies import CONF, new_app, run

JOB: dict[str, Any] = {"lock_key": "job:{label}"}
#: Of each task: its options before and after the change.
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "signature": (JOB, JOB),
    "name": (JOB, {**JOB, "name": "new_name"}),
    "alias": (JOB, {**JOB, "name": "name_with_an_alias"}),
}
#: Those that a release also has under their old names, as docs/deploying.md says.
ALIASES = {1: (), 2: ("alias",), 3: ("alias", "name")}


def of_two_parameters(self: Any, label: str, how: str | float = 0.0) -> str:
    return run(self, label, how)


def of_three_parameters(self: Any, label: str, how: str | float, account: int) -> str:
    return run(self, label, how)


def release(number: int, conf: Mapping[str, Any]) -> Celery:
    """The app of the release before the changes (1), after them (2), or with all aliases (3)."""
    app = new_app("releases", conf)
    for change, (before, after) in OPTIONS.items():
        options = {"name": change, **(before if number == 1 else after)}
        options |= {"base": SingletonTask, "lock_ttl": 2, "on_conflict": "queue"}
        changed = change == "signature" and number > 1
        body = of_three_parameters if changed else of_two_parameters
        app.task(bind=True, shared=False, **options)(body)
        if change in ALIASES[number]:
            app.task(bind=True, shared=False, **{**options, "name": change})(body)
    return app


app = release(CONF.get("test_release", 1), CONF)
