"""A task of each policy and scope, for an operator to suspend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Celery

from celery_redislock import (
    Queue,
    Raise,
    Replace,
    SingletonTask,
    Skip,
    Wait,
)

from .bodies import CONF, add_tasks, new_app

TASKS: dict[str, dict[str, Any]] = {
    "skips": {"on_conflict": Skip(), "lock_label": "account {label}"},
    "raises": {"on_conflict": Raise()},
    "waits": {"on_conflict": Wait()},
    "waits_briefly": {"on_conflict": Wait(timeout=2, then=Raise())},
    "queues": {"on_conflict": Queue()},
    "replaces": {"on_conflict": Replace(grace=0.3)},
    "unique": {"on_conflict": Queue(), "lock_scope": "queued+running"},
    "unique_until_it_starts": {"lock_scope": "queued"},
    "first_of_two": {"lock_key": "shared:{label}"},
}


def suspendable(conf: Mapping[str, Any]) -> Celery:
    app = new_app("suspendable", conf)
    add_tasks(app, SingletonTask, TASKS)
    return app


app = suspendable(CONF)
