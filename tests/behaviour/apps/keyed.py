"""Tasks whose keys are unusual: of headers, of injected arguments, of text that is none."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from celery.signals import task_prerun

from celery_redislock import SingletonTask

from .bodies import CONF, journal, new_app, run

OF_TENANT: dict[str, Any] = {"lock_key": ["label"], "lock_headers": ["tenant"]}


def key_of_some(label: str, how: str | float = 0.0, text: str = "") -> str | None:
    return None if text == "needs none" else f"some:{label}"


def limit_of_plan(label: str, how: str | float = 0.0, text: str = "") -> Any:
    return {"gold": 2, "wrong": 0}.get(text, 1)


TASKS: dict[str, dict[str, Any]] = {
    "skips": OF_TENANT,
    "queues": {**OF_TENANT, "on_conflict": "queue", "lock_label": "of {headers[tenant]}"},
    "defers": {**OF_TENANT, "on_conflict": "defer"},
    "holds": {**OF_TENANT, "lock_across_retries": "hold"},
    "is_unique": {**OF_TENANT, "lock_scope": "queued+running"},
    "in_text": {"lock_key": "{headers[tenant]}:{label}", "lock_headers": ["tenant"]},
    "some": {"lock_key": key_of_some},
    "some_are_unique": {"lock_key": key_of_some, "lock_scope": "queued+running"},
    "by_plan": {"lock_key": "plan:{label}:{text}", "lock_limit": limit_of_plan},
    "queues_by_plan": {"lock_key": ["label"], "lock_limit": limit_of_plan, "on_conflict": "queue"},
    "by_text": {"lock_key": "text:{label}:{text}", "acks_late": True, "ignore_result": True},
    "waits": {"lock_key": "text:{label}:{text}", "on_conflict": "wait", "ignore_result": True},
    "parks": {"lock_key": "text:{label}:{text}", "on_conflict": "queue", "ignore_result": True},
}

app = new_app("keyed", CONF)


def job(self: Any, label: str, how: str | float = 0.0, text: str = "") -> str:
    headers = self.request.headers or {}
    journal.write("tenant", label, self.request, [headers.get("tenant"), self.lock.key])
    return run(self, label, how)


for name, options in TASKS.items():
    given = {"lock_ttl": 6, **options}
    app.task(bind=True, name=name, base=SingletonTask, **given)(job)


# -- arguments that others give and take ------------------------------------------------------


def with_session(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, session="a session", **kwargs)

    return wrapper


@task_prerun.connect(weak=False)
def give_and_take(task: Any, kwargs: dict[str, Any], **_: Any) -> None:
    if task.name.startswith("receives"):
        kwargs.pop("trace", None)
        kwargs["session"] = "a session"


def receives(self: Any, label: str, session: str) -> str:
    run(self, label)
    return session


for name, lock_key in {
    "receives_any": None,
    "receives_list": ["label"],
    "receives_text": "r",
}.items():
    app.task(bind=True, name=name, base=SingletonTask, lock_key=lock_key, typing=False)(receives)
    app.task(bind=True, name=f"decorated_{name}", base=SingletonTask, lock_key=lock_key)(
        with_session(receives)
    )
