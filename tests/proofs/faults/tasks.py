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
from kombu import Connection
from kombu.transport.redis import Transport as RedisTransport

from celery_redislock import lock_conflict, lock_lost, lock_released
from tests.proofs.faults.kinds import KINDS, define
from tests.proofs.faults.witness import Witness
from tests.proofs.history import History

CONF: dict[str, Any] = json.loads(os.environ.get("TEST_CONF", "{}"))

#: Seconds between two signs of life of a body.
STEP = 0.02
#: Seconds for which a body that is being ended from outside goes on cleaning up.
CLEANING_UP = 0.2

# The main process imports this; its children are forked from it.
MAIN = os.getpid()

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


class _Run:
    """What one body writes down."""

    def __init__(self, task: Any, key: str) -> None:
        self.name = uuid.uuid4().hex
        self._lock = task.lock
        self._step = 0
        self._told = False
        request = task.request
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
            pid=os.getpid(),
            main=MAIN,
            redelivered=bool((request.delivery_info or {}).get("redelivered")),
        )

    def live(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, STEP))
            self._step += 1
            self._lock.describe(f"step {self._step}")
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


for _name, (_, _options) in KINDS.items():
    define(app, _name, body, _options)


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
        suspended=details.suspension is not None,
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


def _hear_that_a_connection_broke() -> None:
    """If an acknowledgement is the first to find the connection broken, kombu connects anew where
    messages are awaited without an event loop: as nobody consumes there, none ever comes.
    """
    drain = Connection.drain_events

    @wraps(drain)
    def drains(self: Any, **kwargs: Any) -> Any:
        if self._connection is not None and not self.connected:
            raise OSError("an acknowledgement has found the connection broken")
        return drain(self, **kwargs)

    Connection.drain_events = drains


if CONF.get("bench_pool") == "gevent":
    # Without an event loop kombu looks for unacknowledged messages only when a poll of two
    # seconds brought nothing, and its BRPOP brings something every second.
    RedisTransport.brpop_timeout = 4
    _hear_that_a_connection_broke()

_witness_acknowledgements()
witness.begin()
