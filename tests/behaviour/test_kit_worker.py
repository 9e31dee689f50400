"""What users test with, beside a worker in the tests' own process: one for all of this module."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker

from celery_redislock import Coalesce, LockLost, Queue, SingletonTask, Wait
from celery_redislock.testing import (
    HeldLock,
    MemoryLocks,
    assert_free,
    assert_locked,
    memory_locks,
)
from tests.support.waiting import eventually

Hold = Callable[..., HeldLock]

began: dict[str, threading.Event] = {}
go_on: dict[str, threading.Event] = {}
ran: dict[str, list[int]] = {}


def watches(self: Any, label: str) -> bool:
    began[label].set()
    while not go_on[label].wait(0.01):
        pass
    return bool(self.lock.lost)


def notes(label: str, number: int = 0) -> float:
    ran.setdefault(label, []).append(number)
    return time.monotonic()


@pytest.fixture(scope="module")
def working() -> Iterator[tuple[Any, MemoryLocks]]:
    """The tasks of a worker in a thread of this process, and the locks that it shares with us."""
    app = Celery("kit", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.broker_transport_options = {"polling_interval": 0.01}

    def define(name: str, body: Any, **options: Any) -> None:
        defaults = {"base": SingletonTask, "shared": False, "lock_key": ["label"]}
        # Shared tasks of other tests' apps come to every app.
        app.task(**{**defaults, "name": f"kit.{name}", **options})(body)

    for how in ("flag", "abort"):
        define(how, watches, bind=True, lock_ttl=300, on_lock_lost=how)
    define("wait", notes, on_conflict=Wait(timeout=20))
    define("queue", notes, on_conflict=Queue())
    define("coalesce", notes, on_conflict=Coalesce())
    define("queued", notes, lock_scope="queued")
    fit = {"pool": "threads", "concurrency": 3, "perform_ping_check": False}
    with memory_locks() as locks, start_worker(app, shutdown_timeout=20, **fit):
        yield app.tasks, locks
    app.close()


@pytest.mark.parametrize("on_lock_lost", ["flag", "abort"])
def test_a_body_in_a_worker_loses_its_lock_to_the_test(
    working: Any, lose_lock: Any, label: str, on_lock_lost: str
) -> None:
    task = working[0][f"kit.{on_lock_lost}"]
    began[label], go_on[label] = threading.Event(), threading.Event()
    result = task.delay(label)
    assert began[label].wait(20)
    lose_lock(task, label)
    assert_free(task, label)
    if on_lock_lost == "abort":
        with pytest.raises(LockLost):
            result.get(timeout=20)
    else:
        go_on[label].set()
        assert result.get(timeout=20) is True


def test_what_queues_runs_in_its_order_after_the_release(
    working: Any, held_lock: Hold, label: str
) -> None:
    task, locks = working[0]["kit.queue"], working[1]
    held = held_lock(task, label)
    results = []
    for number in range(3):
        results.append(task.delay(label, number))
        eventually(lambda: locks.waiting(task, label) == len(results), "it waits")
    assert label not in ran
    held.release()
    for result in results:
        result.get(timeout=20)
    assert ran[label] == [0, 1, 2]
    assert locks.outcomes(task)[:3] == ["queued"] * 3


def test_a_lock_of_the_queue_is_taken_by_who_sends(working: Any, label: str) -> None:
    task = working[0]["kit.queued"]
    first, second = (task.apply_async((label,), countdown=3) for _ in range(2))
    assert first.id == second.id
    assert assert_locked(task, label).queued
    first.get(timeout=20)
    assert_free(task, label)
    assert len(ran[label]) == 1


def test_a_worker_to_which_its_app_does_not_send_does_not_start() -> None:
    """Its broker was replaced after another test had used it, and the test waited in vain."""
    app = Celery("kit", broker="memory://before", backend="cache+memory://", set_as_current=False)
    task = app.task(base=SingletonTask, shared=False, name="kit.elsewhere")(notes)
    with memory_locks():
        task.delay("label")
        app.conf.broker_url = "memory://now"
        app.conf.broker_transport_options = {"polling_interval": 0.01}
        with (
            pytest.raises(SystemExit, match=r"sends to memory://.*before.*is memory://.*now.* now"),
            start_worker(app, pool="threads", perform_ping_check=False),
        ):
            raise AssertionError("it started")
    app.close()
