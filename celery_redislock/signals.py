"""Signals for metrics and alerts. They are Celery signals, each with one details object.

    @lock_conflict.connect
    def count(sender, details, **kwargs):
        DUPLICATES.labels(sender.name, details.outcome).inc()

All details have the lock's whole `key` and its `label` (None without `lock_label`), and the `task`,
`task_id` and `attempt` (its number of retries). The sender is the task. If a receiver fails, the
error is logged and has no other effect.

`lock_lost`, `lock_extended` and `lock_recovered` are sent from the heartbeat's thread (under gevent
and eventlet: from a greenlet), so their receivers must not block. For a "freed" lock,
`lock_recovered` is sent from a thread of the worker's main process. The others are sent where the
task runs.
"""

# No `from __future__ import annotations`: with it a `NamedTuple` takes twice as long to make.
from typing import NamedTuple

from celery.utils.dispatch import Signal

from .protocol.holders import Holder
from .protocol.suspensions import Suspension


class AcquiredDetails(NamedTuple):
    """The task acquired the lock.

    Attributes:
        fence: the fencing token.
        waited: seconds since the task's first conflict; 0.0 without one.
        latency: seconds by which acquiring the lock delayed the task in its pool slot.
    """

    key: str
    task: str
    task_id: str
    attempt: int
    fence: int
    waited: float
    latency: float = 0.0
    label: str | None = None


class ReleasedDetails(NamedTuple):
    """The body ended and the lock was released.

    Attributes:
        fence: the fencing token.
        held: seconds from the acquisition to the release.
        owned: whether the run still owned the lock.
        kept_for_retry: whether the lock was kept for the task's next attempt.
        how: how the body ended: "succeeded", "failed", "retried", "ignored", "rejected", "replaced"
            (by a newer run) or "terminated" (the worker ends its process).
    """

    key: str
    task: str
    task_id: str
    attempt: int
    fence: int
    held: float
    owned: bool
    kept_for_retry: bool
    label: str | None = None
    how: str = ""


class ConflictDetails(NamedTuple):
    """A task met a held lock, and this is the outcome.

    Attributes:
        holder: who held the lock.
        outcome: "skipped", "skipped with a result", "deferred", "waited" (and then ran),
            "queued", "coalesced", "debounced", "replacing" (it waits for the holder to end),
            "replaced" (it ended in favour of `holder`), "raised", "redelivered" (a copy of the
            holder's own message, deferred), "retried early" (its earlier attempt had not ended,
            deferred), "already done" (a copy of a message that has run), "runs elsewhere" (a copy
            that came through a fanout exchange, while another queue's copy runs), or "not sent" (in
            the sender, by `on_queued_conflict`).
        countdown: seconds until the next try of a deferred task, else None.
        because: why the task could not have the lock: "run", another run has it; "pause", it is
            taken for a while after one; or "suspension", an operator has suspended it.
        suspension: what the operator has suspended, if that is the reason; else None.
    """

    key: str
    task: str
    task_id: str
    attempt: int
    holder: Holder | None
    outcome: str
    countdown: float | None = None
    label: str | None = None
    because: str = "run"
    suspension: Suspension | None = None


class OmittedDetails(NamedTuple):
    """A run without a lock. The key is "" if the call has none.

    Attributes:
        because: "no key": its `lock_key` returned None for the call; or "unavailable": the lock
            server did not answer, and the task has `on_redis_error="run"`.
    """

    key: str
    task: str
    task_id: str
    attempt: int
    because: str
    label: str | None = None


class LostDetails(NamedTuple):
    """The body runs, and its ownership of the lock can no longer be confirmed.

    Attributes:
        fence: the fencing token of the lost acquisition.
        reason: why ownership is in doubt, as text.
        replaced: True if the lock is not lost, but the run must end for a newer run.
    """

    key: str
    task: str
    task_id: str
    attempt: int
    fence: int
    reason: str = ""
    replaced: bool = False
    label: str | None = None


class RecoveredDetails(NamedTuple):
    """A lock that had vanished was taken again, or the lock of a dead process was released.

    Attributes:
        how: "retaken": the lock had vanished from the server (an empty restart, an eviction), and
            its holder took it again before another run did; or "freed": the holder's pool process
            died, and the worker's main process released the lock.
    """

    key: str
    task: str
    task_id: str
    attempt: int
    how: str
    label: str | None = None


class ExtendedDetails(NamedTuple):
    """The heartbeat extended a lock.

    Attributes:
        late: seconds by which the extension was late.
    """

    key: str
    task: str
    task_id: str
    attempt: int
    late: float
    label: str | None = None


class WaitingDetails(NamedTuple):
    """A task begins or ends waiting in its pool slot (`Wait`).

    Attributes:
        waits: True when the wait begins, False when it ends.
    """

    key: str
    task: str
    task_id: str
    attempt: int
    waits: bool
    label: str | None = None


lock_acquired = Signal(name="lock_acquired", providing_args={"details"})
lock_released = Signal(name="lock_released", providing_args={"details"})
lock_conflict = Signal(name="lock_conflict", providing_args={"details"})
lock_omitted = Signal(name="lock_omitted", providing_args={"details"})
lock_lost = Signal(name="lock_lost", providing_args={"details"})
lock_recovered = Signal(name="lock_recovered", providing_args={"details"})
lock_extended = Signal(name="lock_extended", providing_args={"details"})
lock_waiting = Signal(name="lock_waiting", providing_args={"details"})
