"""Events that a pool process sends, beside its tasks."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace

import pytest
from celery import Task

from celery_redislock.app import events as module
from celery_redislock.app.events import events
from celery_redislock.app.housekeeper import housekeeper
from celery_redislock.protocol.suspensions import Suspension
from tests.support.waiting import eventually


@pytest.fixture
def wanted(monkeypatch):
    """This is a pool process of a worker that sends events."""
    monkeypatch.setattr(events, "_consumer", None)  # of an embedded worker, of another test
    events.learn(True, "w@h")
    yield
    events.learn(False, None)


@pytest.fixture
def task(make_app):
    app = make_app(broker_url="redis://127.0.0.1:1/0", broker_connection_timeout=1)

    @app.task(shared=False, name="a task")
    def task() -> None:
        """Never run."""

    return app.tasks[task.name]


@pytest.mark.usefixtures("wanted")
def test_a_broker_that_is_away_neither_fails_nor_delays_a_task(task, caplog):
    events.emit("skipped", "skipped", "a key", task, "an id", task=task.name)
    said_at_once = "could not send" in caplog.text
    eventually(lambda: not housekeeper.is_busy, "it was tried", 60)

    assert not said_at_once, "the task does not wait for the broker"
    assert "could not send the event task-lock-skipped" in caplog.text


@pytest.mark.usefixtures("wanted")
def test_celery_sends_it_for_the_task_in_another_thread(task, monkeypatch):
    sent = []

    def send_event(self, kind, **fields):
        request = self.request
        sent.append((threading.current_thread().name, kind, request.id, request.hostname, fields))

    monkeypatch.setattr(Task, "send_event", send_event)
    events.emit("skipped", "skipped", "a key", task, "an id", task=task.name, attempt=2)
    events.emit("skipped", "skipped", "a key", "a name only", "an id", task="a name only")
    eventually(lambda: sent and not housekeeper.is_busy, "it is sent")
    ((thread, kind, task_id, node, fields),) = sent
    assert (thread, kind) == ("redislock-courier", "task-lock-skipped")
    assert (task_id, node) == ("an id", "w@h")
    assert (fields["name"], fields["redislock_key"]) == (task.name, "a key")
    assert fields["exception"] == "skipped: a key is held by an unknown holder"


def test_a_forked_process_does_not_send_by_its_parents_connection(monkeypatch):
    """The consumer is the main process's, and so is its connection."""
    monkeypatch.setattr(events, "_consumer", object())
    monkeypatch.setattr(events, "wanted", True)
    if not (pid := os.fork()):
        os._exit(1 if events.wanted or events._consumer is not None else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert events.wanted


@pytest.mark.parametrize("broker", ["not connected", "away", "there"])
def test_what_the_main_process_cannot_send_does_no_harm(task, monkeypatch, caplog, broker):
    sent = []

    def send(kind, **fields):
        sent.append(fields["exception"])
        if broker == "away":
            raise OSError("no route")

    dispatcher = None if broker == "not connected" else SimpleNamespace(send=send)
    monkeypatch.setattr(events, "_consumer", SimpleNamespace(event_dispatcher=dispatcher))
    monkeypatch.setattr(module, "call_in_consumer", lambda consumer, call, *args: call(*args))
    suspension = Suspension(task="a task", by="anna", ends_at=5.0)

    events.emit("skipped", "skipped", "a key", task, "an id", suspension=suspension)

    assert ("could not send the event task-lock-skipped" in caplog.text) is (broker == "away")
    reason = f"skipped: a key is suspended: {suspension}"
    assert sent == ([reason] if dispatcher else [])
