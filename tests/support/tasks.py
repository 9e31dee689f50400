"""The app of the workers that tests start, configured by the environment.

`label` names a test's own journal and lock; the bodies do what their arguments say.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from uuid import UUID

import redis
from celery import Celery, shared_task
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from celery.signals import task_postrun

from celery_redislock import (
    Coalesce,
    Defer,
    LockLost,
    Queue,
    Raise,
    Replace,
    SingletonTask,
    Skip,
    Wait,
    current_lock,
    lock_conflict,
)
from tests.support.journal import Journal
from tests.support.unique import UNIQUE

CONF: dict[str, Any] = json.loads(os.environ.get("TEST_CONF", "{}"))

app = Celery("tests")
app.conf.update({k: v for k, v in CONF.items() if not k.startswith("test_")})
if "test_task_cls" in CONF:
    app.task_cls = CONF["test_task_cls"]

if port := CONF.get("test_metrics_port"):
    from celery_redislock import prometheus

    prometheus.instrument(app, port=port)

if beat := CONF.get("test_beat"):
    app.conf.beat_schedule = {
        "job": {
            "task": beat.get("task", "skip"),
            "schedule": beat["every"],
            "args": [beat["label"], beat["seconds"]],
            "options": beat.get("options", {}),
        }
    }

journal = Journal(redis.Redis.from_url(CONF.get("test_journal", "redis://"), decode_responses=True))


def pause(seconds: float) -> None:
    """Sleep, in short steps, so that a time limit or an abort finds a bytecode soon. A step that a
    busy machine ends late counts for no more: who is to meet this run is late there too.
    """
    while seconds > 0:
        time.sleep(step := min(seconds, 0.05))
        seconds -= step


def spend(self: Any, seconds: float | str) -> None:
    """Sleep for so long; or "stand" until the test lets it go."""
    if seconds == "stand":
        journal.await_go(self.request.id)
    else:
        pause(float(seconds))


def body(self: Any, label: str, seconds: float | str = 0.2, how: str = "return") -> Any:
    """One run: written down at its start and end, whatever the end is."""
    try:  # who sees the start may end it before the line below is over
        journal.write("start", label, self.request, {"fence": self.lock.fence})
        spend(self, seconds)
        if how == "raise":
            raise ValueError("the body failed")
        if how == "ignore":
            raise Ignore
        if how == "reject":
            raise Reject("rejected", requeue=False)
        if how == "exit":
            raise SystemExit(1)
        return [label, self.lock.fence]
    finally:
        journal.write("end", label, self.request, {"lost": self.lock.lost})


@lock_conflict.connect
def note_conflict(sender: Any, details: Any, **kwargs: Any) -> None:
    """Do something in the middle of a conflict."""
    if sender.name == "lingers":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what cancels it is not to end it
        journal.await_go(details.task_id)
    if sender.name == "queued_and_killed" and details.outcome == "queued":
        os.kill(os.getpid(), signal.SIGKILL)


@task_postrun.connect
def linger(sender: Any, task_id: str, **kwargs: Any) -> None:
    """Between a result that is stored and a main process that is told."""
    if sender.name == "lingers":
        journal.await_go(task_id)


def singleton(**options: Any) -> Any:
    defaults = {"base": SingletonTask, "bind": True, "lock_key": ["label"], "lock_ttl": 6}
    return app.task(**{**defaults, **options})


skip = singleton(name="skip")(body)
quiet = singleton(name="quiet", send_events=False)(body)
skip_warned = singleton(name="skip_warned", lock_ttl=0.5)(body)
skip_result = singleton(name="skip_result", on_conflict=Skip(result="skipped"))(body)
defer = singleton(name="defer", on_conflict=Defer(delay=0.2, backoff=1.0))(body)
defer_long = singleton(name="defer_long", on_conflict=Defer(delay=60))(body)
wait = singleton(name="wait", on_conflict=Wait())(body)
wait_long = singleton(name="wait_long", lock_ttl=60, on_conflict=Wait())(body)
wait_briefly = singleton(name="wait_briefly", on_conflict=Wait(timeout=0.3, then=Raise()))(body)
queued = singleton(name="queued", on_conflict="queue")(body)
queued_named = singleton(name="queued_named", lock_key="named:{label}", on_conflict="queue")(body)
queued_long = singleton(name="queued_long", lock_ttl=60, on_conflict="queue")(body)
queued_and_killed = singleton(name="queued_and_killed", on_conflict="queue")(body)
queued_late = singleton(
    name="queued_late", acks_late=True, reject_on_worker_lost=True, on_conflict=Queue()
)(body)
queued_two = singleton(name="queued_two", on_conflict=Queue(limit=2, then=Raise()))(body)
coalesced = singleton(name="coalesced", on_conflict="coalesce")(body)
# A message's body can carry these results, and AMQP's headers cannot.
coalesced_uuid = singleton(name="coalesced_uuid", on_conflict=Coalesce(result=UUID(int=42)))(body)
replaced_uuid = singleton(name="replaced_uuid", on_conflict=Replace(grace=0, result=UUID(int=42)))(
    body
)
two_at_once = singleton(name="two_at_once", lock_limit=2)(body)
pauses = singleton(name="pauses", lock_min_hold=6)(body)
refuse = singleton(name="refuse", on_conflict="raise")(body)
warning = {"lock_key": "warns:{label}", "lock_ttl": 0.5}
warns = singleton(name="warns", **warning)(body)
late = singleton(name="late", acks_late=True, reject_on_worker_lost=True)(body)
lingers = singleton(name="lingers", lock_key="{label}", acks_late=True)(body)
late_hour = singleton(name="late_hour", acks_late=True, lock_ttl=5)(body)
limited = singleton(name="limited", lock_ttl=60, soft_time_limit=1)(body)
long_ttl = singleton(name="long_ttl", lock_ttl=60)(body)
short_ttl = singleton(name="short_ttl", lock_ttl=1)(body)
max_hold = singleton(name="max_hold", lock_ttl=1, lock_max_hold=1)(body)
runs_unlocked = singleton(name="runs_unlocked", on_redis_error="run")(body)
raises_unlocked = singleton(name="raises_unlocked", on_redis_error="raise")(body)


replaced = singleton(name="replaced", on_conflict=Replace(grace=0))(body)
replaced_late = singleton(
    name="replaced_late", acks_late=True, reject_on_worker_lost=True, on_conflict=Replace(grace=0)
)(body)
replaced_late_result = singleton(
    name="replaced_late_result",
    acks_late=True,
    on_conflict=Wait(timeout=0.01, then=Replace(grace=0, result=["replaced"])),
)(body)
replaced_sometime = singleton(name="replaced_sometime", on_conflict=Replace(grace=60))(body)


def end_gently(self: Any, label: str, seconds: float = 60.0, how: str = "ensure") -> Any:
    """Looks whether it is to end, and ends as it is told."""
    journal.write("start", label, self.request)
    until = time.monotonic() + seconds
    while not self.lock.lost and time.monotonic() < until:
        time.sleep(0.02)
    journal.write("end", label, self.request)
    if self.lock.lost and how == "retry":
        raise self.retry(countdown=1, max_retries=3)
    if how == "ensure":
        self.lock.ensure()
    return label


replaced_gently = singleton(name="replaced_gently", on_conflict=Replace(grace=60))(end_gently)
replaced_gently_result = singleton(
    name="replaced_gently_result", on_conflict=Replace(grace=60, result=["replaced"])
)(end_gently)


@singleton(name="named", lock_key="{label}")
def named(self: Any, label: str, seconds: float = 0.2) -> None:
    """Leaves its name out of what it returns: Celery logs that, as it is."""
    body(self, label, seconds)


@singleton(name="stubborn", on_conflict=Replace(grace=0))
def stubborn(self: Any, label: str, seconds: float = 60.0) -> Any:
    """Ignores the signal that is to end it."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        return body(self, label, seconds)
    finally:
        signal.signal(signal.SIGTERM, before)


for name, options in UNIQUE.items():
    singleton(name=name, **options)(body)


def try_again(self: Any, label: str, times: int = 1, countdown: float = 0) -> Any:
    try:
        journal.write("start", label, self.request, {"fence": self.lock.fence})
        pause(0.05)
        if self.request.retries < times:
            raise self.retry(countdown=countdown)
        return self.request.retries
    finally:
        journal.write("end", label, self.request)


retries = singleton(name="retries", max_retries=3)(try_again)
retries_held = singleton(name="retries_held", max_retries=3, lock_across_retries="hold")(try_again)


@singleton(name="sends_itself", lock_scope="queued+running")
def sends_itself(self: Any, label: str) -> Any:
    here = self.request.delivery_info["routing_key"]
    return self.apply_async((label,), queue=here).id == self.request.id


def describe(self: Any, label: str, seconds: float | str = 0.0) -> Any:
    """What its own message said."""
    journal.write("start", label, self.request)
    spend(self, seconds)
    request = self.request
    kept = ("retries", "expires", "shadow", "group", "group_index", "parent_id", "root_id")
    told = {name: getattr(request, name) for name in (*kept, "timelimit", "headers", "origin")}
    told["priority"] = request.delivery_info["priority"]
    told["queue"] = request.delivery_info["routing_key"]
    told["callbacks"] = len(request.callbacks or ())
    told["errbacks"] = len(request.errbacks or ())
    told["stamps"] = [request.stamped_headers, request.stamps]
    return told


describes = singleton(name="describes", on_conflict=Defer(delay=0.2))(describe)


@singleton(name="hard_limited", lock_ttl=60, time_limit=1)
def hard_limited(self: Any, label: str, finally_for: float = 0.0) -> None:
    """Killed by its time limit, while its `finally` still works."""
    try:
        journal.write("start", label, self.request)
        pause(60)
    finally:
        for step in range(1000):
            journal.write("working", label, self.request, step)
            time.sleep(0.005)


@singleton(name="watches_lock", lock_ttl=2)
def watches_lock(self: Any, label: str, seconds: float = 20.0) -> str:
    """Runs until it learns that its lock was lost."""
    journal.write("start", label, self.request, {"fence": self.lock.fence})
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if self.lock.lost:
            journal.write("lost", label, self.request)
            try:
                current_lock.ensure()
            except LockLost as exc:
                return f"lost {exc.key}"
        time.sleep(0.02)
    journal.write("end", label, self.request)
    return "kept"


def sleep_until_lost(self: Any, label: str, seconds: float = 20.0, how: str = "sleep") -> str:
    """Is ended by `LockLost` in the middle of one long sleep."""
    try:
        journal.write("start", label, self.request)
        if how == "sleep":
            time.sleep(seconds)
        else:
            pause(seconds)
    except LockLost:
        journal.write("aborted", label, self.request)
        raise
    journal.write("end", label, self.request)
    return "kept"


aborts = singleton(name="aborts", lock_ttl=1, on_lock_lost="abort")(sleep_until_lost)


@singleton(name="holds_gil", lock_ttl=2)
def holds_gil(self: Any, label: str, fifo: str) -> Any:
    """Holds the interpreter's lock until somebody writes into a FIFO: not one bytecode runs
    meanwhile, in no thread. A signal interrupts the read, and it begins again.
    """
    opened = os.open(fifo, os.O_RDWR)
    read = partial(ctypes.PyDLL(None).read, opened, ctypes.create_string_buffer(1), 1)
    journal.write("start", label, self.request)
    deque(iter(read, 1), maxlen=0)
    return {"key": self.lock.key, "lost": self.lock.lost}


@singleton(name="soft_limit_in_finally", soft_time_limit=1, lock_ttl=60)
def soft_limited(self: Any, label: str) -> str:
    try:
        journal.write("start", label, self.request)
        pause(60)
    except SoftTimeLimitExceeded:
        journal.write("end", label, self.request)
    return "limited"


@app.task(name="plain", bind=True)
def plain(self: Any, label: str, seconds: float = 0.2) -> str:
    """Not ours: protected by `redislock_tasks` where the test says so."""
    journal.write("start", label, self.request)
    pause(seconds)
    journal.write("end", label, self.request)
    return label


@shared_task(name="shared", base=SingletonTask, bind=True, lock_key=["label"], lock_ttl=6)
def shared(self: Any, label: str, seconds: float = 0.2) -> Any:
    return body(self, label, seconds)


@app.task(base=SingletonTask, name="add", lock_key=["label"], lock_ttl=6)
def add(label: str, x: int, y: int = 0) -> int:
    return x + y


@app.task(name="total")
def total(numbers: list[Any]) -> Any:
    return len(numbers)


@app.task(name="heard")
def heard(value: Any, label: str) -> Any:
    journal.write("heard", label, heard.request, value)
    return value


@app.task(name="failed")
def failed(*args: Any, label: str) -> None:
    journal.write("errback", label, failed.request)


@app.task(name="echo", base=SingletonTask)
def echo(*args: Any, **kwargs: Any) -> str:
    """Its own lock key, as the worker sees it."""
    key = current_lock.key
    assert isinstance(key, str)
    return key


class Hooked(SingletonTask):
    """Writes down who has the lock where Celery calls its own methods of the task."""

    abstract = True

    def _holder_id(self, label: str) -> str | None:
        holder = self.lock_holder(label)
        return holder and holder.task_id

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        journal.write("before_start", *args, self.request, self._holder_id(*args))

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        journal.write("on_success", *args, self.request, self._holder_id(*args))


@singleton(name="hooked", base=Hooked)
def hooked(self: Any, label: str) -> dict[str, bool]:
    """Whether the body, and a thread that it starts, see the lock."""
    with ThreadPoolExecutor() as threads:
        return {"body": bool(current_lock), "thread": threads.submit(bool, current_lock).result()}


@singleton(name="computes", lock_ttl=2)
def computes(self: Any, label: str, seconds: float) -> bool:
    """Never yields to a greenlet's hub. Whether its lock was lost."""
    journal.write("start", label, self.request)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))
    return self.lock.lost
