"""The errors of the package. Each keeps its data as attributes, and survives pickle and JSON.

A JSON result backend rebuilds an exception as ``cls(*args)`` from the class's `__module__`. So
`args` holds plain data, and `__module__` is the package.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery.exceptions import ImproperlyConfigured, TaskRevokedError

from .protocol.holders import Holder, one_line
from .protocol.suspensions import Suspension

_HolderLike = Holder | Mapping[str, Any] | None
_SuspensionLike = Suspension | Mapping[str, Any] | None


class LockError(Exception):
    """Base of every error that this package raises.

    Attributes:
        key: the lock's whole key in Redis, or None if the error concerns no lock.
        holder: who held the lock when the error arose, or None if unknown.
        suspension: what an operator has suspended, if that is the reason; else None.
    """

    __module__ = "celery_redislock"
    _reason = "lock error"
    _held_by = "held by"
    _suspended = "the lock is suspended"

    def __init__(
        self,
        key: str | None = None,
        holder: _HolderLike = None,
        suspension: _SuspensionLike = None,
    ) -> None:
        if isinstance(holder, Mapping):
            holder = Holder.from_dict(holder)
        if isinstance(suspension, Mapping):
            suspension = Suspension.from_dict(suspension)
        self.key, self.holder, self.suspension = key, holder, suspension
        more = () if suspension is None else (suspension.to_dict(),)
        super().__init__(key, None if holder is None else holder.to_dict(), *more)

    def __str__(self) -> str:
        if self.key and self.suspension is not None:
            return f"{self._suspended}: {one_line(self.key)} ({self.suspension})"
        text = f"{self._reason}: {one_line(self.key)}" if self.key else self._reason
        return f"{text} ({self._held_by} {self.holder})" if self.holder else text


class LockConflict(LockError):
    """Another run holds the lock; or an operator has suspended it, or the task."""

    __module__ = "celery_redislock"
    _reason = "the lock is held"


class _Reasoned(LockError):
    """An error with a reason, as text; "" if it is not known."""

    __module__ = "celery_redislock"

    def __init__(
        self, key: str | None = None, holder: _HolderLike = None, reason: str = ""
    ) -> None:
        super().__init__(key, holder)
        self.reason = reason
        self.args = (*self.args, reason)

    def __str__(self) -> str:
        return f"{super().__str__()}: {self.reason}" if self.reason else super().__str__()


class LockLost(_Reasoned):
    """The run held the lock, and can no longer confirm that it does.

    Attributes:
        holder: the run that lost it.
        reason: why ownership is in doubt, as text; "" if it is not known.
    """

    __module__ = "celery_redislock"
    _reason = "the lock was lost"
    _held_by = "was held by"


class LockUnavailable(_Reasoned):
    """The lock server did not answer, so it is unknown whether the lock is free.

    Attributes:
        reason: the error text of the server or the network.
    """

    __module__ = "celery_redislock"
    _reason = "the lock server is not available"


class TaskSkipped(LockError, TaskRevokedError):
    """The task ended without running: it was a duplicate, or an operator has suspended it, or
    dropped it from its waiting room. Its state is REVOKED.
    """

    __module__ = "celery_redislock"
    _reason = "skipped as a duplicate, because another run holds the lock"
    _suspended = "skipped, because the lock is suspended"

    def __str__(self) -> str:
        if self.holder is None and self.suspension is None and self.key:
            return f"skipped without running: {one_line(self.key)}"
        return super().__str__()


class TaskReplaced(TaskSkipped):
    """A newer run replaced the task (`Replace`). Its state is REVOKED.

    Attributes:
        holder: the newer run, which holds the lock or waits for it.
    """

    __module__ = "celery_redislock"
    _reason = "replaced by a newer run"

    def __str__(self) -> str:
        text = f"{self._reason} of {one_line(self.key)}" if self.key else self._reason
        by = self.holder
        return text if by is None or by.task_id is None else f"{text}: {by}"


class ConfigError(LockError, ImproperlyConfigured, ValueError):
    """An option or a setting is wrong. Raised where the task is defined, and at each of its uses.

    The message names the task, the option, and what is accepted.
    """

    __module__ = "celery_redislock"

    def __init__(self, message: str = "") -> None:
        super().__init__()
        self.args = (message,)

    def __str__(self) -> str:
        return str(self.args[0])


class RedisLockDeprecationWarning(DeprecationWarning):
    """A later version refuses what was used. The message begins with its name, and says what to
    write instead.

    The changelog lists each. As with every `DeprecationWarning`, pytest shows them, and a worker
    does not: whoever runs it can do nothing about the code.
    """

    __module__ = "celery_redislock"
