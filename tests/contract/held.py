"""Locks that nobody runs under, in every state."""

from __future__ import annotations

from typing import Any

from celery_redislock.app.entries import Entry
from celery_redislock.protocol import calls, holders, rooms
from celery_redislock.protocol.claims import Acquired, Claim, Parking
from celery_redislock.protocol.keys import lock_keys


def claim(app: Any, task: str, label: str, **more: Any) -> Claim:
    """The claim of a run of this task."""
    given = {"task_id": f"id-of-{label}", "token": f"token-of-{label}", "node": "w@one", **more}
    options = app.tasks[task].lock_options
    name = app.tasks[task].lock_name([label], {})
    prefix = app.conf.redislock_prefix
    value = holders.encode(
        given["token"],
        ttl_ms=60_000,
        task=task,
        task_id=given["task_id"],
        node=given["node"],
        queued=given.get("queued", False),
        label=given.get("lock_label"),
    )
    keys = lock_keys(prefix, name, options.lock_limit)
    return Claim(keys, given["token"], 60.0, value, given["task_id"])


def take(app: Any, task: str, label: str, **more: Any) -> tuple[Claim, Acquired]:
    """Hold the lock of that call, for a minute."""
    made = claim(app, task, label, **more)
    reply = app.tasks[task].app_locks.server.run(calls.acquire(made))
    assert isinstance(reply, Acquired)
    return made, reply


def park(app: Any, task: str, label: str, task_id: str) -> None:
    """Let another call of the task wait for the lock."""
    made = claim(app, task, label, task_id=task_id, token=f"token-of-{task_id}")
    entry = Entry.of(app.tasks[task], [label], {}, {"task_id": task_id, "headers": {}})
    app.tasks[task].app_locks.server.run(rooms.park(made, Parking(entry.dump())))
