"""Tasks that wait for a lock in every way, alone and together."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any

from celery import Celery

from celery_redislock import SingletonTask, Wait

from .bodies import CONF, add_tasks, client, new_app


def fatal_key(label: str, how: str | float = 0.0) -> str:
    """A process dies of it if the test said so: before its run has the lock."""
    if CONF and client.lpop(f"go:{label} dies") is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"fatal:{label}"


#: Each task's options. Where the key is a template, the tasks of that template share a lock.
TASKS: dict[str, dict[str, Any]] = {
    "job": {"on_conflict": "queue"},
    "long_job": {"on_conflict": "queue", "lock_ttl": 60},
    "quick_job": {"on_conflict": "queue", "lock_ttl": 2},
    "runs_unlocked": {"on_conflict": "queue", "on_redis_error": "run", "lock_ttl": 3},
    "raises_unlocked": {"on_conflict": "queue", "on_redis_error": "raise", "lock_ttl": 3},
    "queues": {"on_conflict": "queue", "lock_key": "shared:{label}"},
    "waits": {"on_conflict": Wait(), "lock_key": "shared:{label}"},
    "describes": {"lock_ttl": 2},
    "pauses": {"lock_pause": 1.5},
    "pauses_and_skips": {},
    "dies_and_holds": {
        "lock_across_retries": "hold",
        "lock_ttl": 60,
        "lock_key": fatal_key,
    },
}


def house(conf: Mapping[str, Any]) -> Celery:
    app = new_app("house", conf)
    add_tasks(app, SingletonTask, TASKS)
    return app


app = house(CONF)
