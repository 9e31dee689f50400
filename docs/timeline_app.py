"""The app of the worker whose runs `make_timelines.py` records."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import redis
from celery import Celery, signals

from celery_redislock import SingletonTask, lock_conflict
from celery_redislock.signals import lock_waiting
from docs.make_timelines import BODIES, BODY, NOTES, POLICIES

app = Celery("docs.timeline_app")
app.conf.update(json.loads(os.environ["TEST_CONF"]))
notes = redis.Redis.from_url(app.conf.result_backend)


def note(task: Any, what: str, task_id: str | None = None) -> None:
    """Write down what happens to a call. The clock is the machine's, the same for all."""
    notes.rpush(NOTES, json.dumps([time.monotonic(), task_id or task.request.id, what]))


def body(self: Any) -> None:
    note(self, "starts")
    time.sleep(BODIES.get(self.name, BODY))
    note(self, "ends")


for name, (policy, _) in POLICIES.items():
    app.task(base=SingletonTask, bind=True, name=name, lock_key=name, on_conflict=policy)(body)


#: The calls that are in a slot of this process's pool.
inside: set[str] = set()


def arrive(task: Any) -> None:
    """Celery's signal of a run comes when a duplicate's wait, or its end, is known."""
    if task.request.id not in inside:
        inside.add(task.request.id)
        note(task, "arrives")


@lock_conflict.connect
def on_conflict(sender: Any, details: Any, **kwargs: Any) -> None:
    # Of another call, which this one replaces, the housekeeper's thread tells: none runs there.
    if sender.request.id is not None:
        arrive(sender)
    note(sender, details.outcome, details.task_id)


@lock_waiting.connect
def on_waiting(sender: Any, **kwargs: Any) -> None:
    arrive(sender)


@signals.task_prerun.connect
def on_arrival(task: Any, **kwargs: Any) -> None:
    arrive(task)


@signals.task_postrun.connect
def on_leaving(task: Any, **kwargs: Any) -> None:
    inside.discard(task.request.id)
    note(task, "leaves")
