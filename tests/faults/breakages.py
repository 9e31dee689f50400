"""Locks that are broken on purpose, in a worker's processes only: what the bench must notice."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from celery_redislock import _request, _store
from celery_redislock._heartbeat import Heartbeat
from celery_redislock._keys import lock_keys
from celery_redislock._lock import Lease
from celery_redislock._request import LockRequest
from celery_redislock._run import Run
from celery_redislock._store import Claim
from celery_redislock.policies import NO_RESULT


def apply(name: str | None) -> None:
    """Break the lock in this process, and in those that it forks."""
    if name is not None:
        BREAKAGES[name]()


def no_heartbeat() -> None:
    """A lock with an expiry, and nobody who extends it or looks whether it is over."""
    Heartbeat.add = lambda self, lease: None  # type: ignore[method-assign]
    Lease.lost = property(lambda self: self._lost)  # type: ignore[assignment,method-assign]


def plain_del() -> None:
    """A release that does not look whose lock it deletes."""
    _rewrite(
        _store._RELEASE,
        "type(current) == 'string' and string.sub(current, 1, #ARGV[1]) == ARGV[1]",
        "type(current) == 'string'",
    )


def token_is_task_id() -> None:
    """A token that a redelivered message, and a retry, share with the run that they belong to."""

    def stamp(request_dict: dict[str, Any]) -> str:
        _stamp(request_dict)
        token: str = request_dict["id"]
        request_dict["properties"]["redislock"]["token"] = token
        return token

    _stamp, _request.stamp = _request.stamp, stamp


def release_before_death() -> None:
    """A main process that releases when Celery reports a hard limit, and not when the child is
    gone.
    """
    on_timeout = LockRequest.on_timeout

    def releasing(self: Any, soft: bool, timeout: float) -> Any:
        if not soft:
            locks, task = self.task.app_locks, self.task
            keys = lock_keys(locks.prefix, task.lock_name(self._args, self._kwargs))
            claim = Claim(keys, self._lock_token, task.lock_options.lock_ttl, "", self.id)
            locks.store.release(claim)
        return on_timeout(self, soft, timeout)

    LockRequest.on_timeout = releasing  # type: ignore[method-assign]


def skip_on_redelivery() -> None:
    """A copy of a message that meets its own lock is taken for a duplicate."""
    Run._redelivered = lambda self, busy: self.skip(busy.holder, NO_RESULT)  # type: ignore


def _rewrite(script: Any, old: str, new: str) -> None:
    assert script.text.count(old) == 1, f"the script has changed: no {old!r}"
    script.text = script.text.replace(old, new)
    script.sha = hashlib.sha1(script.text.encode(), usedforsecurity=False).hexdigest()


BREAKAGES: dict[str, Callable[[], None]] = {
    f.__name__: f
    for f in (no_heartbeat, plain_del, token_is_task_id, release_before_death, skip_on_redelivery)
}
