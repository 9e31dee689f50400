"""The app of the bench's workers: tasks of every policy on a few shared locks, and the witnesses.

The witnesses write down what the library does where the bodies cannot: extensions, conflicts,
acknowledgements. They only listen. What `bench_breakage` names breaks the lock on purpose.
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
    Defer,
    Raise,
    SingletonTask,
    Skip,
    Wait,
    lock_conflict,
    lock_lost,
    lock_released,
)
from celery_redislock._clock import clock
from celery_redislock._store import NOT_OURS, Extended, Store
from tests.faults import breakages
from tests.faults.history import History

CONF: dict[str, Any] = json.loads(os.environ.get("TEST_CONF", "{}"))

#: Seconds between two signs of life of a body.
STEP = 0.02
#: Seconds for which a body that is being ended from outside goes on cleaning up.
CLEANING_UP = 0.2

# The main process imports this; its children are forked from it.
MAIN = os.getpid()

history = History(CONF.get("bench_history", os.devnull))
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


class _Run:
    """What one body writes down."""

    def __init__(self, task: Any, key: str) -> None:
        self.name = uuid.uuid4().hex
        self._lock = task.lock
        self._told = False
        request = task.request
        history.write(
            "start",
            run=self.name,
            id=request.id,
            task=task.name,
            attempt=request.retries,
            key=self._lock.key or key,
            token=self._lock.token,
            fence=self._lock.fence,
            asked=_monotonic(getattr(self._lock, "acquired_at", 0.0)),
            right=_monotonic(getattr(self._lock, "deadline", 0.0)),
            ttl=self._lock.ttl,
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

    def _ask(self, kind: str, **fields: Any) -> None:
        asked = time.monotonic()
        lost = self._lock.lost
        if lost and not self._told:
            history.write("told", run=self.name, by="body")
            self._told = True
        history.write(kind, run=self.name, lost=lost, asked=asked, **fields)


def _offset() -> float:
    """What the library's clock is ahead of the history's."""

    def measure() -> tuple[float, float]:
        before, ahead, after = time.monotonic(), clock(), time.monotonic()
        return after - before, ahead - before

    return min(measure() for _ in range(20))[1]


_OFFSET = _offset()


def _monotonic(at: float) -> float:
    """A time on the library's clock as one on the history's."""
    return at - _OFFSET


def singleton(name: str, **options: Any) -> Any:
    # A template: all the tasks share the locks.
    defaults = {"base": SingletonTask, "bind": True, "lock_key": "{key}", "max_retries": 5}
    return app.task(**{**defaults, "name": name, **options})(body)


_patiently = Defer(delay=0.2, backoff=1.3, max_delay=0.6)

skip = singleton("skip")
skip_result = singleton("skip_result", on_conflict=Skip(result="skipped"))
defer = singleton("defer", on_conflict=_patiently)
defer_briefly = singleton(
    "defer_briefly", on_conflict=Defer(delay=0.2, backoff=1.0, max_wait=0.5, then=Skip())
)
wait = singleton("wait", on_conflict=Wait(timeout=3.0, then=Raise()))
wait_then_defer = singleton("wait_then_defer", on_conflict=Wait(timeout=0.5, then=_patiently))
refuse = singleton("refuse", on_conflict=Raise(), on_redis_error="raise")
abort = singleton("abort", on_lock_lost="abort")
retry_released = singleton("retry_released", on_conflict=_patiently)
retry_held = singleton("retry_held", on_conflict=_patiently, lock_across_retries="hold")


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
    history.write("told", fence=details.fence, key=details.key, by="signal")


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


def _witness_extensions() -> None:
    """Every extension that succeeded, in whichever process: until when the lock is now ours."""
    extend = Store.extend

    @wraps(extend)
    def witnessed(self: Any, extensions: Any, *args: Any, **kwargs: Any) -> Any:
        sent_at = time.monotonic()
        replies = extend(self, extensions, *args, **kwargs)
        for extension, reply in zip(extensions, replies, strict=True):
            if isinstance(reply, Extended) and reply.outcome != NOT_OURS:
                claim = extension.claim
                until = sent_at + claim.ttl
                history.write("beat", token=claim.token, sent=sent_at, until=until, pid=os.getpid())
        return replies

    Store.extend = witnessed  # type: ignore[method-assign]


@signals.task_received.connect(weak=False)
def _on_received(request: Any, **kwargs: Any) -> None:
    delivery = request.delivery_info or {}
    history.write(
        "received", id=request.id, main=MAIN, redelivered=bool(delivery.get("redelivered"))
    )


def _witness_acknowledgements() -> None:
    """In the main process: from here on the broker does not have the message any more."""
    acknowledge, reject = Request.acknowledge, Request.reject

    @wraps(acknowledge)
    def acknowledged(self: Any) -> Any:
        if not self.acknowledged:
            history.write("acked", id=self.id, main=MAIN)
        return acknowledge(self)

    @wraps(reject)
    def rejected(self: Any, requeue: bool = False) -> Any:
        if not self.acknowledged:
            history.write("rejected", id=self.id, main=MAIN, requeue=requeue)
        return reject(self, requeue)

    Request.acknowledge, Request.reject = acknowledged, rejected


@signals.task_revoked.connect(weak=False)
def _on_revoked(request: Any, **kwargs: Any) -> None:
    history.write("revoked", id=request.id, main=MAIN)


if CONF.get("bench_pool") == "gevent":
    # Without an event loop kombu looks for unacknowledged messages only when a poll of two
    # seconds brought nothing, and its BRPOP brings something every second.
    RedisTransport.brpop_timeout = 4

_witness_extensions()
_witness_acknowledgements()
breakages.apply(CONF.get("bench_breakage"))
