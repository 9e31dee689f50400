"""The app of the bench's workers: tasks of every policy on a few shared locks, and what writes down
what becomes of them: the bodies, signals, Celery's acknowledgements, and the `Witness`. They only
listen, but for the steps and what `bench_broken` breaks on purpose.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from functools import wraps
from typing import Any

from celery import Celery, signals
from celery.exceptions import Reject, Retry
from celery.worker.request import Request
from kombu.transport.redis import Transport as RedisTransport

from celery_redislock import (
    Coalesce,
    Debounce,
    Defer,
    Queue,
    Raise,
    Replace,
    Skip,
    Wait,
    lock_conflict,
    lock_lost,
    lock_released,
)
from tests.proofs.faults.load import SCOPED, define
from tests.proofs.faults.witness import Witness
from tests.proofs.history import History

CONF: dict[str, Any] = json.loads(os.environ.get("TEST_CONF", "{}"))

#: Seconds between two signs of life of a body.
STEP = 0.02
#: Seconds for which a body that is being ended from outside goes on cleaning up.
CLEANING_UP = 0.2

# The main process imports this; its children are forked from it.
MAIN = os.getpid()

#: Which release of the tasks this worker runs, and which fleet's.
RELEASE: int = CONF.get("bench_release", 1)
FLEET: str = CONF.get("bench_fleet", "first")

history = History(CONF.get("bench_history", os.devnull))
witness = Witness(history, MAIN, CONF.get("bench_broken", {}))
app = Celery("bench")
app.conf.update({k: v for k, v in CONF.items() if not k.startswith("bench_")})


def body(
    self: Any,
    key: str,
    seconds: float = 0.2,
    how: str = "return",
    retries: int = 0,
    countdown: float = 0.0,
) -> str:
    """One run: it writes down its start, signs of life, what it knows of its lock, and its end."""
    run = _Run(self, key)
    outcome = "ended"
    try:
        run.live(seconds)
        if how == "raise":
            raise ValueError("the body failed")
        if self.request.retries < retries:
            raise self.retry(countdown=countdown)
        outcome = "returned"
        return run.name
    except Retry:
        outcome = "retried"
        raise
    except Reject:  # so Celery ends a retry that it cannot publish
        outcome = "rejected"
        raise
    except Exception:
        outcome = "raised"
        raise
    except BaseException:
        # A hard time limit, or a cold shutdown: as real code, it has something to tidy up.
        run.live(CLEANING_UP)
        raise
    finally:
        run.end(outcome)


class NoLock:
    """What a task without a lock knows of it."""

    key = token = None
    ttl = 0.0
    fence = 0
    lost = False


class _Run:
    """What one body writes down."""

    def __init__(self, task: Any, key: str) -> None:
        self.name = uuid.uuid4().hex
        # The next release of a task may have no lock.
        self._lock = getattr(task, "lock", NoLock)
        self._told = False
        request = task.request
        options = OPTIONS.get(task.name, {})
        policy = options.get("on_conflict")
        _, asked, right = witness.lock_of(self._lock.key or "", self._lock.fence)
        history.write(
            "start",
            run=self.name,
            id=request.id,
            task=task.name,
            attempt=request.retries,
            key=self._lock.key or key,
            token=self._lock.token,
            fence=self._lock.fence,
            asked=asked,
            right=right,
            ttl=self._lock.ttl,
            limit=options.get("lock_limit", 1),
            min_hold=options.get("lock_min_hold", 0.0),
            quiet=[policy.quiet, policy.max_wait] if isinstance(policy, Debounce) else None,
            pid=os.getpid(),
            main=MAIN,
            redelivered=bool((request.delivery_info or {}).get("redelivered")),
        )

    def live(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, STEP))
            self._ask("alive")

    def end(self, outcome: str) -> None:
        self._ask("end", outcome=outcome)
        witness.body_is_over(self._lock.token or "")

    def _ask(self, kind: str, **fields: Any) -> None:
        asked = time.monotonic()
        lost = self._lock.lost
        if lost and not self._told:
            history.write("told", run=self.name, by="body")
            self._told = True
        history.write(kind, run=self.name, lost=lost, asked=asked, **fields)


#: Of each task with a lock.
OPTIONS: dict[str, dict[str, Any]] = {}


def singleton(name: str, function: Any = body, **options: Any) -> None:
    OPTIONS[name] = options
    define(app, name, function, options)


DEBOUNCED = {
    "debounce": Debounce(quiet=0.4, max_wait=1.5),
    "debounce_steadily": Debounce(quiet=0.6, max_wait=1.5),
    "retry_debounced": Debounce(quiet=0.3, max_wait=1.0),
}
_patiently = Defer(delay=0.2, backoff=1.3, max_delay=0.6)


def _first_fleet() -> None:
    singleton("skip")
    singleton("skip_result", on_conflict=Skip(result="skipped"))
    singleton("defer", on_conflict=_patiently)
    singleton("defer_briefly", on_conflict=Defer(delay=0.2, backoff=1.0, max_wait=0.5, then=Skip()))
    singleton("wait", on_conflict=Wait(timeout=3.0, then=Raise()))
    singleton("wait_then_defer", on_conflict=Wait(timeout=0.5, then=_patiently))
    singleton("refuse", on_conflict=Raise(), on_redis_error="raise")
    singleton("abort", on_lock_lost="abort")
    singleton("retry_released", on_conflict=_patiently)
    singleton("retry_held", on_conflict=_patiently, lock_across_retries="hold")
    singleton("queue", on_conflict=Queue())
    singleton("queue_limited", on_conflict=Queue(limit=2, then=Skip()))
    singleton("queue_briefly", on_conflict=Queue(max_wait=0.8, then=Skip()))
    singleton("queue_then_defer", on_conflict=Queue(limit=3, max_wait=1.0, then=_patiently))
    singleton("coalesce", on_conflict=Coalesce())
    for name, policy in DEBOUNCED.items():
        singleton(name, on_conflict=policy)
    singleton("retry_queued", on_conflict=Queue())
    singleton("retry_held_queued", on_conflict=Queue(), lock_across_retries="hold")
    singleton("retry_coalesced", on_conflict=Coalesce())
    singleton("pause", on_conflict=Queue(), lock_min_hold=0.8)
    singleton("pause_coalesced", on_conflict=Coalesce(), lock_min_hold=0.6)
    # On keys of their own: who shares a lock agrees on how many may hold it.
    singleton("two", lock_limit=2)
    singleton("two_queued", on_conflict=Queue(), lock_limit=2)
    singleton("two_retried", on_conflict=Queue(), lock_limit=2)
    singleton("two_patient", on_conflict=Wait(timeout=2.0, then=Queue()), lock_limit=2)
    singleton("patient", on_conflict=Wait(timeout=60.0))
    singleton("wait_for_ever", on_conflict=Wait())
    singleton("queue_then_wait", on_conflict=Queue(limit=1, then=Wait()))
    for name, options in SCOPED.items():
        singleton(name, **options)
    # Its child is killed if it has not ended by then.
    singleton("replace", on_conflict=Replace(grace=1.0))
    singleton("replace_gently", on_conflict=Replace(grace=3.0), on_lock_lost="abort")


def _what_a_release_changes() -> None:
    singleton("steady", on_conflict=Queue())
    if RELEASE == 1:
        singleton("moves", on_conflict=Queue())
        singleton("unlocked", on_conflict=Queue())
        singleton("reshaped", _with_note, on_conflict=Queue())
    else:
        singleton("moves", on_conflict=Queue(), lock_key="{key}:moved")
        app.task(name="unlocked", bind=True)(body)
        singleton("reshaped", on_conflict=Queue())


def _with_note(self: Any, key: str, note: str, seconds: float = 0.2, how: str = "return") -> str:
    return body(self, key, seconds, how)


def _other_fleet() -> None:
    """Tasks of the same app that the first fleet does not know. They share its locks."""
    singleton("other_queue", on_conflict=Queue())
    singleton("other_coalesce", on_conflict=Coalesce())
    singleton("other_skip")


if FLEET == "first":
    _first_fleet()
    _what_a_release_changes()
else:
    _other_fleet()


# -- witnesses --------------------------------------------------------------------------------


@lock_conflict.connect(weak=False)
def _on_conflict(sender: Any, details: Any, **kwargs: Any) -> None:
    holder = details.holder
    history.write(
        "conflict",
        id=details.task_id,
        task=details.task,
        attempt=details.attempt,
        key=details.key,
        outcome=details.outcome,
        countdown=details.countdown,
        holder=holder and holder.task_id,
        holder_fence=holder and holder.fence,
        pid=os.getpid(),
    )


@lock_lost.connect(weak=False)
def _on_lost(sender: Any, details: Any, **kwargs: Any) -> None:
    replaced = bool(details.replaced)
    history.write("told", fence=details.fence, key=details.key, by="signal", replaced=replaced)


@lock_released.connect(weak=False)
def _on_released(sender: Any, details: Any, **kwargs: Any) -> None:
    history.write(
        "released",
        id=details.task_id,
        key=details.key,
        fence=details.fence,
        owned=details.owned,
        kept_for_retry=details.kept_for_retry,
    )


@signals.task_received.connect(weak=False)
def _on_received(request: Any, **kwargs: Any) -> None:
    delivery = request.delivery_info or {}
    history.write(
        "received",
        id=request.id,
        main=MAIN,
        redelivered=bool(delivery.get("redelivered")),
        tag=_tag(request),
    )


def _tag(request: Any) -> str:
    """What the broker calls this message. A copy that is published anew has one of its own."""
    return str(getattr(request.message, "delivery_tag", ""))


@signals.after_task_publish.connect(weak=False)
def _on_published(sender: Any, headers: Any, **kwargs: Any) -> None:
    history.write("published", id=headers.get("id"), task=sender, pid=os.getpid(), main=MAIN)


@signals.task_success.connect(weak=False)
def _on_success(sender: Any, result: Any, **kwargs: Any) -> None:
    # Celery sends it when the result is stored.
    value = result if isinstance(result, str) else None
    history.write("stored", id=sender.request.id, value=value, pid=os.getpid())


def _witness_acknowledgements() -> None:
    """In the main process: from here on the broker does not have the message any more."""
    acknowledge, reject, cancel = Request.acknowledge, Request.reject, Request.cancel

    @wraps(acknowledge)
    def acknowledged(self: Any) -> Any:
        if not self.acknowledged:
            history.write("acked", id=self.id, main=MAIN, tag=_tag(self))
        return acknowledge(self)

    @wraps(reject)
    def rejected(self: Any, requeue: bool = False) -> Any:
        if not self.acknowledged:
            history.write("rejected", id=self.id, main=MAIN, requeue=requeue, tag=_tag(self))
        return reject(self, requeue)

    @wraps(cancel)
    def cancelled(self: Any, *args: Any, **kwargs: Any) -> Any:
        history.write("cancelled", id=self.id, main=MAIN)
        return cancel(self, *args, **kwargs)

    Request.acknowledge, Request.reject, Request.cancel = acknowledged, rejected, cancelled


@signals.task_failure.connect(weak=False)
def _on_failed(sender: Any, task_id: str, exception: Any, **kwargs: Any) -> None:
    error = type(getattr(exception, "exc", exception)).__name__
    history.write("failed", id=task_id, error=error, pid=os.getpid())


@signals.task_revoked.connect(weak=False)
def _on_revoked(request: Any, **kwargs: Any) -> None:
    history.write("revoked", id=request.id, main=MAIN, expired=bool(kwargs.get("expired")))


if CONF.get("bench_pool") == "gevent":
    # Without an event loop kombu looks for unacknowledged messages only when a poll of two
    # seconds brought nothing, and its BRPOP brings something every second.
    RedisTransport.brpop_timeout = 4

_witness_acknowledgements()
witness.begin()
