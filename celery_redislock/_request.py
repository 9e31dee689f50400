"""The worker's main process: it mints the tokens, and does for its children what they cannot.

A child that is killed has no chance to release its lock, and one that holds the interpreter's
lock, or is stopped, none to extend it. The main process knows key and token of what each child
runs: it extends the lock beside the child's own heartbeat, and releases it once the child is gone.
"""

from __future__ import annotations

import weakref
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final

from billiard.einfo import ExceptionWithTraceback
from celery import signals as celery_signals
from celery.worker import state
from celery.worker.request import Request

from ._children import ChildWatch
from ._clock import clock
from ._delivery import stamp
from ._heartbeat import heartbeat
from ._keys import lock_keys
from ._lock import BEAT_EVERY, logger
from ._run import Skipped
from ._store import Claim, Extended, Extension, Store
from .errors import LockUnavailable

if TYPE_CHECKING:
    from ._task import SingletonTask

_children: Final = ChildWatch()


class LockRequest(Request):
    """A request for a locked task."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lock_token = stamp(self._request_dict)
        self._child_ends = False

    @property
    def child_runs(self) -> bool:
        """Whether a child may still run the body. Celery forgets a request that is revoked, or
        over its hard limit, before the child is gone.
        """
        return self._child_ends or self in state.active_requests

    def on_accepted(self, pid: int, time_accepted: float) -> Any:
        """The pool took the task. In a pool of processes, each runs one task at a time."""
        # First of all: what follows may terminate the child.
        if self.task.runs_in_children:
            lease = ChildLease(pid, self, self._lock_token)
            _children.on_exit(pid, lease.child_ended)
        accepted = super().on_accepted(pid, time_accepted)
        if self.task.runs_in_children:
            heartbeat.add(lease)
        return accepted

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        """A time limit was exceeded. If it is the hard one, the child is killed next."""
        self._child_ends = self._child_ends or not soft
        return super().on_timeout(soft, timeout)

    def terminate(self, pool: Any, signal: Any = None) -> Any:
        """The task was revoked, and its child is to end."""
        self._child_ends = True
        return super().terminate(pool, signal)

    def cancel(self, pool: Any, signal: Any = None, **kwargs: Any) -> Any:
        """The connection to the broker was lost, and the child is to end."""
        self._child_ends = True
        return super().cancel(pool, signal, **kwargs)

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


class ChildLease:
    """What the main process knows of a lock that a child may hold: enough to extend it, and to
    release it when the child is dead. Never to take it.
    """

    def __init__(self, pid: int, request: LockRequest, token: str) -> None:
        self._pid = pid
        self._request = weakref.ref(request)
        self._task: SingletonTask = request.task
        self._arguments = (request._args, request._kwargs)
        self._task_id = request.id
        self._child_is_dead = False
        self.token = token
        self.ttl: float = self._task.lock_options.lock_ttl
        self.next_beat = clock() + self.ttl * BEAT_EVERY

    @property
    def store(self) -> Store:
        return self._task.app_locks.store

    @cached_property
    def claim(self) -> Claim:
        """The child's claim. Made when it is needed: most tasks end before."""
        prefix = self._task.app_locks.prefix
        keys = lock_keys(prefix, self._task.lock_name(*self._arguments))
        return Claim(keys, self.token, self.ttl, "", self._task_id)

    def child_ended(self) -> None:
        """The child is gone, and this was the last that it took: release what it left."""
        self._child_is_dead = True
        heartbeat.discard(self)  # first, or an extension could meet the release
        try:
            if self.store.release(self.claim, stray=True):
                key = self.claim.keys.lock
                logger.warning(
                    "redislock: released %s, whose holder, pid %d, is dead", key, self._pid
                )
        except LockUnavailable as exc:
            logger.error("redislock: could not release the lock of dead pid %d: %s", self._pid, exc)
        except Exception:
            logger.exception("redislock: could not release the lock of dead pid %d", self._pid)

    # -- for the heartbeat ----------------------------------------------------------------

    def may_extend(self, now: float) -> bool:
        """Whether the child may still run the task, and it is known which lock that takes."""
        request = self._request()
        if self._child_is_dead or request is None or not request.child_runs:
            return False
        try:
            return bool(self.claim)
        except Exception:
            logger.exception("redislock: %s: no lock name", self._task_id)
            return False

    def stop_extending(self) -> None:
        heartbeat.discard(self)

    def extension(self, now: float) -> Extension:
        """Never takes a lock that is missing: the child may just have released it."""
        max_hold = self._task.lock_options.lock_max_hold
        return Extension(self.claim, self.claim.opening, 0, retake=False, max_hold=max_hold)

    def beat_succeeded(self, sent_at: float, reply: Extended) -> None:
        self.next_beat = sent_at + self.ttl * BEAT_EVERY

    def beat_denied(self) -> None:
        # It still waits for the lock, or has lost or released it, which is for the child to say.
        self.next_beat = clock() + self.ttl * BEAT_EVERY

    def beat_failed(self, error: LockUnavailable, again_at: float) -> None:
        logger.debug("redislock: could not extend for pid %d: %s", self._pid, error)
        self.next_beat = again_at

    def undo_retake(self) -> None:
        """It never retakes."""


@cache
def lock_request(base: type[Any]) -> type[Any]:
    """The request class of a locked task that has this one without a lock."""
    if issubclass(base, LockRequest):
        return base
    if base is Request:
        return LockRequest
    return type(f"Lock{base.__name__}", (LockRequest, base), {})
