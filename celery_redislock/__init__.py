"""Celery tasks that run at most once at a time: a Redis lock for each task signature."""

from .core.holders import Holder
from .core.redis_lock import RedisLock
from .errors import (
    ConfigError,
    LockConflict,
    LockError,
    LockLost,
    LockUnavailable,
    TaskReplaced,
    TaskSkipped,
)
from .policies import Coalesce, Conflict, Defer, Policy, Queue, Raise, Replace, Skip, Wait
from .signals import (
    lock_acquired,
    lock_conflict,
    lock_extended,
    lock_lost,
    lock_recovered,
    lock_released,
    lock_waiting,
)
from .tasks.current import current_lock
from .tasks.task import SingletonTask
from .worker import start as _start  # noqa: F401  connects receivers for a worker's start

__all__ = [
    "Coalesce",
    "ConfigError",
    "Conflict",
    "Defer",
    "Holder",
    "LockConflict",
    "LockError",
    "LockLost",
    "LockUnavailable",
    "Policy",
    "Queue",
    "Raise",
    "RedisLock",
    "Replace",
    "SingletonTask",
    "Skip",
    "TaskReplaced",
    "TaskSkipped",
    "Wait",
    "current_lock",
    "lock_acquired",
    "lock_conflict",
    "lock_extended",
    "lock_lost",
    "lock_recovered",
    "lock_released",
    "lock_waiting",
]
