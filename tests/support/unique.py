"""Options of tasks that are unique from when they are sent: for the worker and for senders."""

from __future__ import annotations

import os
import signal
from typing import Any

from celery_redislock import Queue

_MAIN = os.getpid()


def kill_child(label: str) -> str:
    """A lock name that a pool process dies of, before it asks for the lock."""
    if os.getpid() != _MAIN:
        os.kill(os.getpid(), signal.SIGKILL)
    return label


#: Unique from when they are sent. A sender defines them with the same options.
UNIQUE: dict[str, dict[str, Any]] = {
    "unique": {"lock_scope": "queued+running"},
    "unique_queued": {"lock_scope": "queued"},
    "unique_or_raise": {"lock_scope": "queued+running", "on_queued_conflict": "raise"},
    "unique_skip": {"lock_scope": "queued+running", "on_queued_conflict": "publish"},
    "unique_killed": {
        "lock_scope": "queued+running",
        "lock_key": kill_child,
        "on_conflict": Queue(),
    },
    "unique_short": {"lock_scope": "queued+running", "lock_ttl": 1, "lock_queued_ttl": 30},
    "unique_lost": {"lock_scope": "queued+running", "lock_ttl": 10, "lock_queued_ttl": 1},
    "unique_limited": {"lock_scope": "queued+running", "time_limit": 1},
}
