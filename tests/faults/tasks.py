"""The app of the bench's workers: tasks of every policy on a few shared locks, and the witnesses.

The witnesses write down what the library does where the bodies cannot: extensions, conflicts,
acknowledgements, what enters a waiting room. They only listen, but for `steps`. What
`bench_breakage` names breaks the lock on purpose.
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
    Defer,
    Queue,
    Raise,
    SingletonTask,
    Skip,
    Wait,
    _room,
    _store,
    lock_conflict,
    lock_lost,
    lock_released,
)
from celery_redislock._clock import clock
from celery_redislock._store import EXTENDED, Acquired, Extended, Full, Parked, Store
from tests.faults import breakages, steps
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
            limit=task.lock_options.lock_limit,
            min_hold=task.lock_options.lock_min_hold or 0.0,
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
queue = singleton("queue", on_conflict=Queue())
queue_limited = singleton("queue_limited", on_conflict=Queue(limit=2, then=Skip()))
queue_briefly = singleton("queue_briefly", on_conflict=Queue(max_wait=0.8, then=Skip()))
queue_then_defer = singleton(
    "queue_then_defer", on_conflict=Queue(limit=3, max_wait=1.0, then=_patiently)
)
coalesce = singleton("coalesce", on_conflict=Coalesce())
retry_queued = singleton("retry_queued", on_conflict=Queue())
retry_held_queued = singleton("retry_held_queued", on_conflict=Queue(), lock_across_retries="hold")
retry_coalesced = singleton("retry_coalesced", on_conflict=Coalesce())
pause = singleton("pause", on_conflict=Queue(), lock_min_hold=0.8)
pause_coalesced = singleton("pause_coalesced", on_conflict=Coalesce(), lock_min_hold=0.6)
# On keys of their own: who shares a lock agrees on how many may hold it.
two = singleton("two", lock_limit=2)
two_queued = singleton("two_queued", on_conflict=Queue(), lock_limit=2)
two_retried = singleton("two_retried", on_conflict=Queue(), lock_limit=2)
two_patient = singleton("two_patient", on_conflict=Wait(timeout=2.0, then=Queue()), lock_limit=2)


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
            if isinstance(reply, Extended) and reply.outcome >= EXTENDED:
                claim = extension.claim
                until = sent_at + claim.ttl
                history.write("beat", token=claim.token, sent=sent_at, until=until, pid=os.getpid())
        return replies

    Store.extend = witnessed  # type: ignore[method-assign]


def _who(claim: Any) -> dict[str, Any]:
    return {
        "id": claim.task_id,
        "entry": claim.entry_id,
        "key": claim.keys.lock,
        "pid": os.getpid(),
        "main": MAIN,
    }


def _task_id(entry_id: str) -> str:
    return entry_id.rpartition(":")[0]


def _witness_rooms() -> None:
    """What enters a waiting room and what leaves it. Each is written with when it was asked for,
    also before: whoever is killed in between may have been served.
    """
    park, hand_over = Store.park, Store.hand_over

    def witness_taking(name: str) -> None:
        acquire = getattr(Store, name)

        @wraps(acquire)
        def acquired(self: Any, claim: Any, *args: Any, **kwargs: Any) -> Any:
            asked = time.monotonic()
            who = _who(claim)
            history.write("asks", token=claim.token, **who)
            reply = acquire(self, claim, *args, **kwargs)
            fence = reply.fence if isinstance(reply, Acquired) else 0
            kind = "took" if fence else "refused"
            history.write(kind, token=claim.token, fence=fence, asked=asked, **who)
            return reply

        setattr(Store, name, acquired)

    @wraps(park)
    def parked(self: Any, claim: Any, *args: Any, **kwargs: Any) -> Any:
        asked = time.monotonic()
        history.write("parks", newest=kwargs.get("kind") or "", **_who(claim))
        reply = park(self, claim, *args, **kwargs)
        said = "parked" if isinstance(reply, Parked) else "ask"
        history.write(
            "parked" if isinstance(reply, Parked) else "not parked",
            said="full" if isinstance(reply, Full) else said,
            newest=kwargs.get("kind") or "",
            in_front=bool(kwargs.get("in_front")),
            began=bool(kwargs.get("began")),
            replaced=[] if isinstance(reply, Full) else list(reply.replaced),
            asked=asked,
            **_who(claim),
        )
        if isinstance(reply, Parked):
            steps.step("parked")
        return reply

    @wraps(hand_over)
    def handed_over(self: Any, keys: Any, ttl: float, take_out: str = "", *args: Any) -> Any:
        if take_out:
            history.write("out", entry=take_out, id=_task_id(take_out), key=keys.lock)
        reply = hand_over(self, keys, ttl, take_out, *args)
        if take_out:
            steps.step("gave up")
        if reply.entry_id:
            history.write(
                "handed",
                entry=reply.entry_id,
                id=_task_id(reply.entry_id),
                key=keys.lock,
                gives_up=reply.gives_up,
            )
            steps.step("handed over")
        return reply

    witness_taking("acquire")
    witness_taking("acquire_when_woken")
    Store.park, Store.hand_over = parked, handed_over  # type: ignore


@signals.task_received.connect(weak=False)
def _on_received(request: Any, **kwargs: Any) -> None:
    delivery = request.delivery_info or {}
    history.write(
        "received", id=request.id, main=MAIN, redelivered=bool(delivery.get("redelivered"))
    )


def _witness_acknowledgements() -> None:
    """In the main process: from here on the broker does not have the message any more."""
    acknowledge, reject, cancel = Request.acknowledge, Request.reject, Request.cancel

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

# What others finish that somebody left undone is finished soon, so that a case is short; and
# where nothing was left undone they do it again, so that there are copies.
_store.HAND_OVER_AGAIN, _store.HAND_OVER_MOST = 1.0, 3.0
_room.SWEEP_EVERY = CONF.get("bench_sweep_every", 0.5)

_witness_extensions()
_witness_acknowledgements()
_witness_rooms()
steps.witness(history, MAIN)
breakages.apply(CONF.get("bench_breakage"))
