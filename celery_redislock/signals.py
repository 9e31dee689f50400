"""Signals, for metrics and alerts: Celery's own `Signal`, with one details object each.

    @lock_conflict.connect
    def count(sender, details, **kwargs):
        DUPLICATES.labels(sender.name, details.outcome).inc()

Each says the lock's whole `key`, and of whom it tells: `task`, `task_id`, `attempt` (its retries).

The sender is the task. A receiver that fails is logged and harms nothing. `lock_lost`,
`lock_extended` and `lock_recovered` are sent from the heartbeat's thread, where a receiver must not
wait for anything (under gevent and eventlet: from a greenlet), and of a lock that was "freed" from
a thread of the worker's main process; the others from where the task runs.
"""

from __future__ import annotations

from typing import NamedTuple

from celery.utils.dispatch import Signal

from .core.holders import Holder


class AcquiredDetails(NamedTuple):
    """The lock was taken.

    Attributes:
        fence: the fencing token.
        waited: seconds since this task first met the held lock; 0.0 if it never did.
        latency: seconds for which taking the lock kept the task from starting, in its pool slot.
    """

    key: str
    task: str
    task_id: str
    attempt: int
    fence: int
    waited: float
    latency: float = 0.0


class ReleasedDetails(NamedTuple):
    """The body ended and the lock was given back.

    Attributes:
        fence: the fencing token.
        held: seconds from the acquisition to the release.
        owned: whether the lock was still ours.
        kept_for_retry: the lock was left to the task's next attempt.
    """

    key: str
    task: str
    task_id: str
    attempt: int
    fence: int
    held: float
    owned: bool
    kept_for_retry: bool


class ConflictDetails(NamedTuple):
    """A task met a held lock, and this is how that ended.

    Attributes:
        holder: who held the lock.
        outcome: "skipped", "skipped with a result", "deferred", "waited" (and then ran),
            "queued", "coalesced", "replacing" (it waits for the holder to end), "replaced" (it ends
            in favour of `holder`), "raised", "redelivered" (a copy of the holder's own message,
            deferred), "retried early" (before its earlier attempt had ended, deferred), "already
            done", or "not sent" (where it was to be sent: `on_queued_conflict`).
        countdown: seconds until the next try, if it was deferred.
    """

    key: str
    task: str
    task_id: str
    attempt: int
    holder: Holder | None
    outcome: str
    countdown: float | None = None


class LostDetails(NamedTuple):
    """The ownership of a lock could no longer be confirmed while the body ran.

    Attributes:
        fence: the fencing token of the lost acquisition.
        reason: why, for people.
        replaced: it is not lost, but its run is told to end, in favour of a newer one.
    """

    key: str
    task: str
    task_id: str
    attempt: int
    fence: int
    reason: str = ""
    replaced: bool = False


class RecoveredDetails(NamedTuple):
    """A lock that would have stood in the way, or stopped to stand, was put right.

    Attributes:
        how: "retaken": it had vanished from the server, which came back empty or evicted it, and
            its holder took it again before anybody else; or "freed": its pool process died,
            and the worker's main process released it.
    """

    key: str
    task: str
    task_id: str
    attempt: int
    how: str


class ExtendedDetails(NamedTuple):
    """The heartbeat extended a lock.

    Attributes:
        late: seconds after it was due.
    """

    key: str
    task: str
    task_id: str
    attempt: int
    late: float


class WaitingDetails(NamedTuple):
    """A task begins to wait in its pool slot, by `Wait`; or it does so no more.

    Attributes:
        waits: whether it begins to.
    """

    key: str
    task: str
    task_id: str
    attempt: int
    waits: bool


lock_acquired = Signal(name="lock_acquired", providing_args={"details"})
lock_released = Signal(name="lock_released", providing_args={"details"})
lock_conflict = Signal(name="lock_conflict", providing_args={"details"})
lock_lost = Signal(name="lock_lost", providing_args={"details"})
lock_recovered = Signal(name="lock_recovered", providing_args={"details"})
lock_extended = Signal(name="lock_extended", providing_args={"details"})
lock_waiting = Signal(name="lock_waiting", providing_args={"details"})
