"""The worker's main process: it mints the tokens, and frees what a dead child cannot.

A child that is killed has no chance to release its lock. The main process learns of it within
milliseconds, knows key and token, and releases once the process is really gone: on a hard time
limit it is told some 100 ms before, while the child's `finally` blocks still run.
"""

from __future__ import annotations

import os
import select
import threading
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery import signals as celery_signals
from celery.worker.request import Request

from ._app import app_locks
from ._clock import clock
from ._delivery import stamp
from ._keys import lock_keys
from ._lock import logger
from ._run import Skipped
from ._store import Claim
from .errors import LockUnavailable

if TYPE_CHECKING:
    from ._task import SingletonTask

#: How the end of a process without a chance shows in the main process.
_DEATHS: Final = (WorkerLostError, Terminated, TimeLimitExceeded, SystemExit, KeyboardInterrupt)
#: Seconds between looks at a process where the kernel has no pidfd.
_LOOK_EVERY: Final = 0.02


class LockRequest(Request):
    """A request for a locked task."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lock_token = stamp(self._request_dict)

    def on_failure(
        self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False
    ) -> Any:
        """The task failed, was skipped, or its process died."""
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        if isinstance(error, Skipped):
            self._announce_skipped()
        elif isinstance(error, _DEATHS):
            self._release_when_gone()
        return super().on_failure(exc_info, send_failed_event, return_ok)

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        """A time limit was exceeded. After a hard one the process is killed."""
        if not soft:
            self._release_when_gone()
        return super().on_timeout(soft, timeout)

    def _announce_skipped(self) -> None:
        fields = {"terminated": False, "signum": None, "expired": False}
        self.send_event("task-revoked", **fields)
        celery_signals.task_revoked.send(sender=self.task, request=self._context, **fields)

    def _release_when_gone(self) -> None:
        pid = self.worker_pid
        if not pid or not self.task.runs_in_children:
            return  # solo, threads, greenlets: the body's own `finally` runs
        # Not a daemon: a worker that shuts down waits for it.
        threading.Thread(
            target=_release_after,
            args=(pid, self.task, self._args, self._kwargs, self.id, self._lock_token),
            name=f"redislock-release-{pid}",
        ).start()


@cache
def lock_request(base: type[Any]) -> type[Any]:
    """The request class of a locked task that has this one without a lock."""
    if issubclass(base, LockRequest):
        return base
    if base is Request:
        return LockRequest
    return type(f"Lock{base.__name__}", (LockRequest, base), {})


def _release_after(
    pid: int,
    task: SingletonTask,
    args: Any,
    kwargs: Any,
    task_id: str,
    token: str,
) -> None:
    try:
        ttl = task.lock_options.lock_ttl
        _await_death(pid, ttl)
        locks = app_locks(task.app)
        keys = lock_keys(locks.prefix, task.lock_name(args, kwargs))
        if locks.store.release(Claim(keys, token, ttl, "", task_id)):
            logger.warning("redislock: released %s, whose holder, pid %d, is dead", keys.lock, pid)
    except LockUnavailable as exc:
        logger.error("redislock: could not release the lock of pid %d: %s", pid, exc)
    except Exception:
        logger.exception("redislock: could not release the lock of pid %d, which is dead", pid)


def _await_death(pid: int, seconds: float) -> None:
    """Return when no code of the process can run any more.

    After `seconds` its heartbeat cannot have gone unnoticed: then the lock's own rules decide.
    """
    give_up = clock() + seconds
    try:
        fd = os.pidfd_open(pid)
    except (AttributeError, OSError):
        while _is_alive(pid) and clock() < give_up:
            threading.Event().wait(_LOOK_EVERY)
        return
    try:
        select.select([fd], [], [], seconds)
    finally:
        os.close(fd)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return True  # no /proc here: the worker reaps its children soon
