"""The demo's Celery app, for its workers, its beat and its callers.

The bodies write down when they start and end: that, and not the lock's opinion, is what the
figures count. The package's signals tell what became of the duplicates.
"""

# Celery has no types, and so no typed decorators.
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import os
import time
from typing import Any, Final

from celery import Celery, Task, signals

from celery_redislock import (
    Defer,
    SingletonTask,
    Skip,
    Wait,
    lock_acquired,
    lock_conflict,
    lock_lost,
    lock_released,
)
from celery_redislock.signals import (
    AcquiredDetails,
    ConflictDetails,
    LostDetails,
    ReleasedDetails,
    WaitingDetails,
    lock_waiting,
)

from . import scenes
from .events import Event, Log

#: The embedded server, and which of the demo's processes this is. Port 0 is nobody's: imported
#: outside the demo, the module must not reach anybody's server.
URL: Final = os.environ.get("REDISLOCK_DEMO_URL", "redis://127.0.0.1:0")
NODE: Final = os.environ.get("REDISLOCK_DEMO_NODE", "caller")

log: Final = Log(f"{URL}/3")

# The page tells what to type with this name.
app = Celery(__name__)
app.conf.update(
    broker_url=f"{URL}/0",
    redislock_url=f"{URL}/2",
    redislock_ttl=scenes.LOCK_TTL,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"socket_timeout": 5, "socket_connect_timeout": 2},
    worker_prefetch_multiplier=1,
    beat_schedule={
        scenes.REPORT: {"task": scenes.REPORT, "schedule": scenes.REPORT_EVERY},
    },
)


# -- the tasks: these twenty lines are all that a user writes ---------------------------------


@app.task(base=SingletonTask, bind=True, name=scenes.REPORT, on_conflict=Skip())
def report(self: Task) -> None:
    """Is fired every second, and takes three."""
    _work(self, scenes.row_of(scenes.REPORT), scenes.REPORT_TAKES)


@app.task(
    base=SingletonTask,
    bind=True,
    name=scenes.SYNC,
    lock_key="account:{account}",
    on_conflict=Defer(delay=scenes.SYNC_DEFERRED_FOR),
)
def sync(self: Task, account: int) -> None:
    """One at a time for each account; no call is lost."""
    _work(self, scenes.row_of(scenes.SYNC, account), scenes.SYNC_TAKES)


@app.task(base=SingletonTask, bind=True, name=scenes.IMPORT, on_conflict=Wait())
def import_prices(self: Task) -> None:
    """Waits for its turn, and starts as soon as the lock is free."""
    _work(self, scenes.row_of(scenes.IMPORT), scenes.IMPORT_TAKES)


# -- what they write down ---------------------------------------------------------------------


def record(
    kind: str,
    *,
    at: float | None = None,
    node: str = NODE,
    pid: int | None = None,
    task_id: str = "",
    row: str = "",
    **data: Any,
) -> None:
    """Write an event; by default it is of this process, and of now."""
    log.write(
        Event(
            kind=kind,
            at=time.monotonic() if at is None else at,
            node=node,
            pid=os.getpid() if pid is None else pid,
            task_id=task_id,
            row=row,
            data=data,
        )
    )


def _work(task: Any, row: str, seconds: float) -> None:
    task_id = task.request.id
    record("start", task_id=task_id, row=row, fence=task.lock.fence)
    try:
        time.sleep(seconds)
    finally:
        record("end", task_id=task_id, row=row)


def record_what_is_fired() -> None:
    """Write down every task that this process sends from now on.

    Not in the workers: they also send deferred tasks, which are not fired again.
    """
    signals.before_task_publish.connect(_before_publish, weak=False)
    signals.after_task_publish.connect(_after_publish, weak=False)


_sent_at: dict[str, float] = {}


def _before_publish(headers: dict[str, Any], **kwargs: Any) -> None:
    _sent_at[headers["id"]] = time.monotonic()


def _after_publish(sender: str, headers: dict[str, Any], body: Any, **kwargs: Any) -> None:
    # Only now it has really been sent. A worker may have written its start already.
    task_id, (args, *_) = headers["id"], body
    record("fired", at=_sent_at.pop(task_id), task_id=task_id, row=scenes.row_of(sender, *args))


def _on_beat_init(**kwargs: Any) -> None:
    record_what_is_fired()
    record("ready")


def _on_worker_ready(**kwargs: Any) -> None:
    record("ready")


def _on_arrival(task: Any, task_id: str, args: list[Any], **kwargs: Any) -> None:
    record("arrived", task_id=task_id, row=scenes.row_of(task.name, *args))


def _on_waiting(sender: Any, details: WaitingDetails, **kwargs: Any) -> None:
    # Celery's signal of a run comes when the wait is over.
    if details.waits:
        _on_arrival(sender, details.task_id, sender.request.args)


def _on_acquired(details: AcquiredDetails, **kwargs: Any) -> None:
    record("acquired", task_id=details.task_id, fence=details.fence)


def _on_released(details: ReleasedDetails, **kwargs: Any) -> None:
    record("released", task_id=details.task_id, owned=details.owned)


def _on_conflict(details: ConflictDetails, **kwargs: Any) -> None:
    record(
        "conflict",
        task_id=details.task_id,
        outcome=details.outcome,
        countdown=details.countdown,
        holder_node=None if details.holder is None else details.holder.node,
    )


def _on_lost(details: LostDetails, **kwargs: Any) -> None:
    record("lost", task_id=details.task_id)


signals.beat_init.connect(_on_beat_init, weak=False)
signals.worker_ready.connect(_on_worker_ready, weak=False)
signals.task_prerun.connect(_on_arrival, weak=False)
lock_acquired.connect(_on_acquired, weak=False)
lock_released.connect(_on_released, weak=False)
lock_conflict.connect(_on_conflict, weak=False)
lock_lost.connect(_on_lost, weak=False)
lock_waiting.connect(_on_waiting, weak=False)
