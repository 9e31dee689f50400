"""The tasks of the bench: how often the load sends each, and its options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import Celery

from celery_redislock import (
    Coalesce,
    Debounce,
    Defer,
    Policy,
    Queue,
    Raise,
    Replace,
    SingletonTask,
    Skip,
    Wait,
)

Kind = tuple[int, dict[str, Any]]


def _kind(weight: int, policy: Policy | None = None, **options: Any) -> Kind:
    return weight, {**options, **({"on_conflict": policy} if policy else {})}


_patiently = Defer(delay=0.2, backoff=1.3, max_delay=0.6)
_hold: dict[str, Any] = {"lock_across_retries": "hold"}

#: Calls of this task come steadily, more often than its quiet time, as long as the load runs.
STEADY, STEADILY = "debounce_steadily", 0.3
KINDS: dict[str, Kind] = {
    "skip": _kind(4),
    "skip_result": _kind(2, Skip(result="skipped")),
    "defer": _kind(4, _patiently),
    "defer_briefly": _kind(1, Defer(delay=0.2, backoff=1.0, max_wait=0.5, then=Skip())),
    "wait": _kind(3, Wait(timeout=3.0, then=Raise())),
    "wait_then_defer": _kind(2, Wait(timeout=0.5, then=_patiently)),
    "refuse": _kind(1, Raise(), on_redis_error="raise"),
    "abort": _kind(2, on_lock_lost="abort"),
    "retry_released": _kind(2, _patiently),
    "retry_held": _kind(2, _patiently, **_hold),
    "queue": _kind(3, Queue()),
    "queue_limited": _kind(1, Queue(limit=2, then=Skip())),
    "queue_briefly": _kind(1, Queue(max_wait=0.8, then=Skip())),
    "queue_then_defer": _kind(1, Queue(limit=3, max_wait=1.0, then=_patiently)),
    "coalesce": _kind(3, Coalesce()),
    "debounce": _kind(3, Debounce(quiet=0.4, max_wait=1.5)),
    "retry_debounced": _kind(1, Debounce(quiet=0.3, max_wait=1.0)),
    "retry_queued": _kind(1, Queue()),
    "retry_held_queued": _kind(1, Queue(), **_hold),
    "retry_coalesced": _kind(1, Coalesce()),
    "pause": _kind(1, Queue(), lock_min_hold=0.8),
    "pause_coalesced": _kind(1, Coalesce(), lock_min_hold=0.6),
    # Some hold their slots for a lock that is handed to who waits in its room.
    "wait_for_ever": _kind(2, Wait()),
    "queue_then_wait": _kind(1, Queue(limit=1, then=Wait())),
    # The newer run ends the older one; its child is killed if it has not ended by then.
    "replace": _kind(3, Replace(grace=1.0)),
    "replace_gently": _kind(2, Replace(grace=3.0), on_lock_lost="abort"),
    # Of the soak; and sent steadily.
    "patient": _kind(0, Wait(timeout=60.0)),
    STEADY: _kind(0, Debounce(quiet=0.6, max_wait=1.5)),
}


def _weights(kinds: dict[str, Kind]) -> dict[str, int]:
    return {name: weight for name, (weight, _) in kinds.items() if weight}


TASKS = _weights(KINDS)


def define(app: Celery, name: str, body: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Define a locked task of the bench. A template key: tasks share the locks."""
    defaults = {"base": SingletonTask, "bind": True, "lock_key": "{key}", "max_retries": 5}
    return app.task(**{**defaults, "name": name, **options})(body)
