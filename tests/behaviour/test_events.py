"""Celery events of what became of a lock, as monitors get them, and what they make of them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections import defaultdict

import pytest
from celery.events.state import State

from celery_redislock.operations import break_locks, list_locks
from tests.support.waiting import eventually
from tests.support.workers import make_app

QUEUE = "events"


class Monitor:
    """What `celery events` and Flower are built on."""

    def __init__(self, app):
        self.state = State()
        self.seen = defaultdict(list)
        self._app = app
        self._connection = app.connection_for_read()
        self._receiver = app.events.Receiver(self._connection, handlers={"*": self._note})
        self._stop = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        with self._receiver.consumer_context(wakeup=False) as (connection, _, _):
            while not self._stop:
                with contextlib.suppress(TimeoutError):
                    connection.drain_events(timeout=0.2)

    def _note(self, event):
        self.state.event(event)
        self.seen[event.get("uuid")].append(event)

    def close(self):
        self._stop = True
        self._thread.join(10)
        self._connection.release()

    def kinds(self, result):
        return [event["type"] for event in self.seen[result.id]]

    def await_kind(self, result, kind):
        """The event of that type."""
        eventually(lambda: kind in self.kinds(result), f"{kind} of {result.id}")
        return next(event for event in self.seen[result.id] if event["type"] == kind)

    def shows(self, result, state):
        def shown():
            task = self.state.tasks.get(result.id)
            return task is not None and task.state == state

        eventually(shown, f"{result.id} is shown as {state}: {self.kinds(result)}")


@pytest.fixture(scope="module")
def monitor(sender):
    monitor = Monitor(sender)
    yield monitor
    monitor.close()


@pytest.fixture(scope="module", autouse=True)
def worker(start_module_worker, monitor):
    return start_module_worker("-E", queues=QUEUE, concurrency=4)


@pytest.fixture
def start(send, journal, label):
    def start(name, seconds):
        result = send(name, label, seconds)
        return result, eventually(lambda: journal.read(label, "start"), "it runs")[-1]

    return start


def test_a_skipped_task_is_shown_as_skipped_and_by_whom(monitor, send, start, label):
    first, _ = start("skip", 3.0)
    second = send("skip", label)
    event = monitor.await_kind(second, "task-lock-skipped")
    assert event["name"] == "skip"
    assert event["redislock_outcome"] == "skipped"
    assert event["redislock_holder_task_id"] == first.id
    assert label not in event["redislock_key"], "the key is a digest"
    monitor.await_kind(second, "task-revoked")
    monitor.shows(second, "LOCK-SKIPPED")
    assert first.id in monitor.state.tasks[second.id].exception
    monitor.shows(first, "SUCCESS")
    assert not [kind for kind in monitor.kinds(first) if kind.startswith("task-lock")]


@pytest.mark.parametrize(
    ("name", "kind"), [("defer", "deferred"), ("queued", "queued"), ("coalesced", "coalesced")]
)
def test_who_runs_later_is_shown_as_waiting_and_then_as_what_it_ended_in(
    monitor, send, start, label, name, kind
):
    start(name, 4.0)
    second = send(name, label)
    monitor.shows(second, f"LOCK-{kind.upper()}")
    assert monitor.await_kind(second, f"task-lock-{kind}")["redislock_outcome"] == kind
    monitor.await_kind(second, "task-lock-acquired")
    monitor.shows(second, "SUCCESS")


def test_one_that_is_terminated_for_a_newer_run_is_shown_as_replaced(monitor, send, start, label):
    first, _ = start("replaced", 20.0)
    second = send("replaced", label)
    monitor.await_kind(second, "task-lock-replacing")
    event = monitor.await_kind(first, "task-lock-replaced")
    assert event["redislock_holder_task_id"] == second.id
    monitor.shows(first, "LOCK-REPLACED")
    monitor.shows(second, "SUCCESS")


def test_a_lock_that_vanished_and_was_taken_again_is_recovered(
    monitor, start, client, locks_of, label
):
    first, _ = start("short_ttl", 4.0)
    client.delete(*locks_of(first.id))
    event = monitor.await_kind(first, "task-lock-recovered")
    assert event["redislock_reason"] == "retaken"
    monitor.shows(first, "SUCCESS")


def test_a_lost_lock_is_an_event_while_the_body_runs(monitor, start, client, locks_of, label):
    first, _ = start("watches_lock", 20.0)
    client.set(*locks_of(first.id), "another's", px=3000)
    event = monitor.await_kind(first, "task-lock-lost")
    assert event["redislock_reason"]
    monitor.shows(first, "SUCCESS")


def test_a_lock_that_an_operator_broke_is_lost_and_says_who_did(
    monitor, worker, start, locks_of, redis_server, label
):
    first, _ = start("watches_lock", 20.0)
    (key,) = locks_of(first.id)
    with make_app({"redislock_url": redis_server.url}) as operator:
        ours = [each for each in list_locks(operator) if each.key == key]
        assert break_locks(operator, ours, by="anna@host") == ours
    event = monitor.await_kind(first, "task-lock-lost")
    assert event["redislock_reason"] == "an operator broke it: anna@host"
    monitor.shows(first, "SUCCESS")
    (line,) = [each for each in worker.log().splitlines() if f"LOST {key}" in each]
    assert line.endswith(": an operator broke it: anna@host")


def test_a_dead_childs_lock_is_recovered_and_the_task_shown_as_failed(monitor, start, label):
    first, entry = start("skip", 60.0)
    os.kill(entry.pid, signal.SIGKILL)
    assert monitor.await_kind(first, "task-lock-recovered")["redislock_reason"] == "freed"
    monitor.shows(first, "FAILURE")


@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_other_pools_send_them_too(monitor, start_worker, queue, sender, journal, label, pool):
    start_worker("-E", queues=queue, pool=pool, concurrency=4)
    sender.send_task("skip", [label, 2.0], queue=queue)
    eventually(lambda: journal.read(label, "start"), "it runs")
    second = sender.send_task("skip", [label], queue=queue)
    monitor.await_kind(second, "task-lock-skipped")


def test_a_task_that_sends_no_events_switches_off_only_its_own(monitor, send, journal, label):
    first = send("long_ttl", label, 60.0)
    (entry,) = eventually(lambda: journal.read(label, "start"), "it runs")
    holder = send("quiet", f"{label}-quiet", 2.0)
    eventually(lambda: journal.read(f"{label}-quiet", "start"), "the other one runs")
    second = send("quiet", f"{label}-quiet")
    assert second.get(timeout=20, propagate=False) is not None

    os.kill(entry.pid, signal.SIGKILL)
    monitor.await_kind(first, "task-lock-recovered")
    kinds = [kind for each in (holder, second) for kind in monitor.kinds(each)]
    assert not [kind for kind in kinds if kind.startswith("task-lock")]
