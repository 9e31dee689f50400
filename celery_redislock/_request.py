"""The worker's main process: it mints the tokens, and frees what a dead child cannot.

A child that is killed has no chance to release its lock. The main process knows key and token
of what each child runs, and releases it once the process is gone.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from billiard.einfo import ExceptionWithTraceback
from celery import signals as celery_signals
from celery.worker.request import Request

from ._app import app_locks
from ._children import ChildWatch
from ._delivery import stamp
from ._keys import lock_keys
from ._lock import logger
from ._run import Skipped
from ._store import Claim
from .errors import LockUnavailable

if TYPE_CHECKING:
    from ._task import SingletonTask

_children: Final = ChildWatch()


class LockRequest(Request):
    """A request for a locked task."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lock_token = stamp(self._request_dict)

    def on_accepted(self, pid: int, time_accepted: float) -> Any:
        """The pool took the task. In a pool of processes, each runs one task at a time."""
        # First of all: what follows may terminate the child.
        if self.task.runs_in_children:
            claim = (self.task, self._args, self._kwargs, self.id, self._lock_token)
            _children.on_exit(pid, partial(_release_of_dead, pid, *claim))
        return super().on_accepted(pid, time_accepted)

    def on_failure(
        self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False
    ) -> Any:
        """The task failed, or was skipped."""
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        if isinstance(error, Skipped):
            self._announce_skipped()
        return super().on_failure(exc_info, send_failed_event, return_ok)

    def _announce_skipped(self) -> None:
        fields = {"terminated": False, "signum": None, "expired": False}
        self.send_event("task-revoked", **fields)
        celery_signals.task_revoked.send(sender=self.task, request=self._context, **fields)


@cache
def lock_request(base: type[Any]) -> type[Any]:
    """The request class of a locked task that has this one without a lock."""
    if issubclass(base, LockRequest):
        return base
    if base is Request:
        return LockRequest
    return type(f"Lock{base.__name__}", (LockRequest, base), {})


def _release_of_dead(
    pid: int, task: SingletonTask, args: Any, kwargs: Any, task_id: str, token: str
) -> None:
    """Release the lock of the last task that this process took, if it still has it."""
    try:
        locks = app_locks(task.app)
        keys = lock_keys(locks.prefix, task.lock_name(args, kwargs))
        if locks.store.release(Claim(keys, token, task.lock_options.lock_ttl, "", task_id)):
            logger.warning("redislock: released %s, whose holder, pid %d, is dead", keys.lock, pid)
    except LockUnavailable as exc:
        logger.error("redislock: could not release the lock of dead pid %d: %s", pid, exc)
    except Exception:
        logger.exception("redislock: could not release the lock of dead pid %d", pid)
