"""Celery tasks that run at most once at a time: a Redis lock for each task signature.

A program that only sends tasks imports little: `RedisLock` and `AsyncRedisLock` are imported at
first use, and the code that runs tasks when a worker starts or a task first runs eagerly.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from .compat import leftovers as _leftovers  # noqa: F401  refuses other packages' options
from .errors import (
    ConfigError,
    LockConflict,
    LockError,
    LockLost,
    LockUnavailable,
    RedisLockDeprecationWarning,
    TaskReplaced,
    TaskSkipped,
)
from .policies import Coalesce, Debounce, Defer, Policy, Queue, Raise, Replace, Skip, Wait
from .protocol.holders import Holder
from .signals import (
    lock_acquired,
    lock_conflict,
    lock_extended,
    lock_lost,
    lock_omitted,
    lock_recovered,
    lock_released,
    lock_waiting,
)
from .tasks.current import current_lock
from .tasks.task import SingletonTask
from .verbs import (
    NO_RESULT,
    Conflict,
    Decision,
    NoResult,
    ToDefer,
    ToFail,
    ToPark,
    ToReplace,
    ToSkip,
    ToWait,
)
from .worker import start as _start  # noqa: F401  connects receivers for a worker's start

if TYPE_CHECKING:
    __version__: str
    from .lock.async_acquisition import AsyncAcquisition
    from .lock.async_redis_lock import AsyncRedisLock
    from .lock.redis_lock import RedisLock

__all__ = [  # noqa: RUF022  in the plain order of names
    "AsyncAcquisition",
    "AsyncRedisLock",
    "Coalesce",
    "ConfigError",
    "Conflict",
    "Debounce",
    "Decision",
    "Defer",
    "Holder",
    "LockConflict",
    "LockError",
    "LockLost",
    "LockUnavailable",
    "NO_RESULT",
    "NoResult",
    "Policy",
    "Queue",
    "Raise",
    "RedisLock",
    "RedisLockDeprecationWarning",
    "Replace",
    "SingletonTask",
    "Skip",
    "TaskReplaced",
    "TaskSkipped",
    "ToDefer",
    "ToFail",
    "ToPark",
    "ToReplace",
    "ToSkip",
    "ToWait",
    "Wait",
    "current_lock",
    "lock_acquired",
    "lock_conflict",
    "lock_extended",
    "lock_lost",
    "lock_omitted",
    "lock_recovered",
    "lock_released",
    "lock_waiting",
]


if not TYPE_CHECKING:  # a type checker would take any name for one of ours
    _LOCKS = {
        "AsyncAcquisition": "async_acquisition",
        "AsyncRedisLock": "async_redis_lock",
        "RedisLock": "redis_lock",
    }

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            return version("celery-redislock")
        module = _LOCKS.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f".lock.{module}", __name__), name)
        return found
