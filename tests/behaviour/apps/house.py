"""Tasks that wait for a lock in every way, alone and together."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any

from celery import Celery

from celery_redislock import Debounce, Policy, SingletonTask, Wait

from .bodies import CONF, add_tasks, client, new_app


class Forgetful(Policy):
    """Waits, and forgets to say what is to become of the task."""

    def act(self, conflict: Any) -> Any:
        conflict.wait(0.1)


def fatal_key(label: str, how: str | float = 0.0) -> str:
    """A process dies of it if the test said so: before its run has the lock."""
    if CONF and client.lpop(f"go:{label} dies") is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"fatal:{label}"


def limit_of_now(label: str, how: str | float) -> int:
    """What the test says, for workers; here it is 1."""
    return int(client.get(f"limit:{label}") or 3) if CONF else 1


#: Each task's options. Where the key is a template, the tasks of that template share a lock.
TASKS: dict[str, dict[str, Any]] = {
    "job": {"on_conflict": "queue"},
    "long_job": {"on_conflict": "queue", "lock_ttl": 60},
    "quick_job": {"on_conflict": "queue", "lock_ttl": 2},
    "runs_unlocked": {"on_conflict": "queue", "on_redis_error": "run", "lock_ttl": 3},
    "raises_unlocked": {"on_conflict": "queue", "on_redis_error": "raise", "lock_ttl": 3},
    "queues": {"on_conflict": "queue", "lock_key": "shared:{label}"},
    "waits": {"on_conflict": Wait(), "lock_key": "shared:{label}"},
    "retries_and_waits": {"on_conflict": Wait(), "lock_across_retries": "hold"},
    "forgets": {"on_conflict": Forgetful()},
    "settles": {"on_conflict": Debounce(quiet=60, max_wait=600)},
    "describes": {"lock_ttl": 2},
    "pauses": {"lock_pause": 1.5},
    "pauses_as_asked": {"on_conflict": Wait()},
    "pauses_and_skips": {},
    "dies_and_holds": {
        "lock_across_retries": "hold",
        "lock_ttl": 60,
        "lock_key": fatal_key,
    },
    "fewer_later": {
        "lock_limit": limit_of_now,
        "lock_ttl": 60,
        "lock_across_retries": "hold",
    },
    "fewer_later_kept": {"lock_limit": limit_of_now, "lock_scope": "queued+running"},
    "fewer_later_short": {"lock_limit": limit_of_now, "lock_ttl": 3},
}


def house(conf: Mapping[str, Any]) -> Celery:
    app = new_app("house", conf)
    add_tasks(app, SingletonTask, TASKS)
    return app


app = house(CONF)
