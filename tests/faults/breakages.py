"""Locks that are broken on purpose, in a worker's processes only: what the bench must notice."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from celery_redislock import SingletonTask, _request, _room, _store
from celery_redislock._heartbeat import Heartbeat
from celery_redislock._keys import lock_keys
from celery_redislock._lock import Lease
from celery_redislock._request import LockRequest
from celery_redislock._run import Run
from celery_redislock._store import Claim
from celery_redislock.policies import NO_RESULT
from tests.support.waiting import eventually


def apply(name: str | None) -> None:
    """Break the lock in this process, and in those that it forks."""
    if name is not None:
        {**BREAKAGES, **OF_ROOMS}[name]()


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

    def stamp(request_dict: dict[str, Any], *args: Any) -> str:
        _stamp(request_dict, *args)
        token: str = request_dict["id"]
        request_dict["properties"]["redislock"]["token"] = token
        return token

    _stamp, _request.stamp = _request.stamp, stamp


def release_before_death() -> None:
    """A main process that releases when Celery reports a hard limit, and not when the child is
    gone, which is later: when another one is inside.
    """
    from tests.faults.tasks import history

    on_timeout = LockRequest.on_timeout

    def releasing(self: Any, soft: bool, timeout: float) -> Any:
        if not soft:
            locks, task = self.task.app_locks, self.task
            keys = lock_keys(locks.prefix, task.lock_name(self._args, self._kwargs))
            claim = Claim(keys, self._lock_token, task.lock_options.lock_ttl, "", self.id)
            locks.store.release(claim)
            eventually(lambda: len(history.events("start")) == 2, "another one is inside")
        return on_timeout(self, soft, timeout)

    LockRequest.on_timeout = releasing  # type: ignore[method-assign]


def skip_on_redelivery() -> None:
    """A copy of a message that meets its own lock is taken for a duplicate."""
    Run._redelivered = lambda self, busy: self.skip(busy.holder, NO_RESULT)  # type: ignore


def removed_at_hand_over() -> None:
    """A room that forgets whose turn it is as soon as it has said so."""
    _rewrite(
        _store._HAND_OVER,
        "reply = {first, entry, gives_up and '1' or '0'}",
        "reply = {first, entry, gives_up and '1' or '0'} take_out(first, false)",
    )


def newcomers_overtake() -> None:
    """A free lock is anybody's, whoever waits in the room."""
    _rewrite(_store._ACQUIRE, "if first and first ~= entry then", "if false then")


def nobody_hands_over() -> None:
    """A release that does not look into the room, and nobody who looks after it."""
    _rewrite(_store._RELEASE, "redis.call('EXISTS', KEYS[6]) == 1", "false")
    _room.Sweeper.sweep = lambda self: None  # type: ignore[method-assign]


def one_too_many() -> None:
    """A limit that is a counter, and counts wrong: one more gets in."""
    keys_for = SingletonTask.lock_keys_for

    def more(self: Any, *args: Any) -> Any:
        keys = keys_for(self, *args)
        return keys._replace(slots=(*keys.slots, f"{keys.lock}:more")) if keys.slots else keys

    SingletonTask.lock_keys_for = more  # type: ignore[method-assign]


def pause_is_forgotten() -> None:
    """A release that frees the lock at once, whatever `lock_min_hold` says."""
    Run._min_hold = lambda self, retry: 0.0  # type: ignore[method-assign]


def old_replaces_new() -> None:
    """A waiting room in which who comes back replaces what came since."""
    Run._has_begun = lambda self: False  # type: ignore[method-assign]


def failed_waits_on() -> None:
    """A task that a time limit ends while it is parked stays in the room."""
    never = property(lambda self: False, lambda self, value: None)
    Run._parking = never  # type: ignore[attr-defined]


def _rewrite(script: Any, old: str, new: str) -> None:
    assert script.text.count(old) == 1, f"the script has changed: no {old!r}"
    script.text = script.text.replace(old, new)
    script.sha = hashlib.sha1(script.text.encode(), usedforsecurity=False).hexdigest()


BREAKAGES: dict[str, Callable[[], None]] = {
    f.__name__: f
    for f in (no_heartbeat, plain_del, token_is_task_id, release_before_death, skip_on_redelivery)
}
#: Of waiting rooms, limits and pauses.
OF_ROOMS: dict[str, Callable[[], Any]] = {
    f.__name__: f
    for f in (
        *(removed_at_hand_over, newcomers_overtake, nobody_hands_over, one_too_many),
        *(pause_is_forgotten, old_replaces_new, failed_waits_on),
    )
}
