"""A reservation ends with its message, also if that never comes to ask for the lock."""

from __future__ import annotations

import pytest

from tests.behaviour.deliveries.conftest import APP, await_line
from tests.support.waiting import eventually, never


@pytest.fixture(scope="module")
def queue():
    return "reservations"


@pytest.fixture(scope="module", autouse=True)
def worker(start_module_worker, queue):
    return start_module_worker(app=APP, queues=queue, concurrency=2)


def newer(label, added=None):
    """The sender's code, which has a new argument."""


def body(label, seconds=0.1):
    """Has the worker's signature, and runs there only."""


def own_key(label, seconds=0.1):
    """The sender's `lock_key`."""
    return label


def await_failure(result, error):
    eventually(result.ready, "it has failed")
    assert result.state == "FAILURE"
    with pytest.raises(error):
        result.get(timeout=5)


def test_arguments_that_the_worker_does_not_know_leave_no_reservation(define, journal, label):
    task = define(newer, name="grown", lock_scope="queued+running")
    first = task.delay(label, added=1)
    await_failure(first, TypeError)
    eventually(lambda: task.lock_holder(label) is None, "its reservation is gone")
    second = task.delay(label, added=2)
    assert second.id != first.id
    await_failure(second, TypeError)
    eventually(lambda: task.lock_holder(label) is None, "its reservation is gone")
    third = task.delay(label)
    assert third.get(timeout=10) == label
    assert [entry.task_id for entry in journal.read(label, "start")] == [third.id]


def test_a_lock_key_that_fails_in_the_worker_leaves_no_reservation(define, label):
    task = define(body, name="keyless", lock_key=own_key, lock_scope="queued+running")
    first = task.delay(label)
    await_failure(first, LookupError)
    eventually(lambda: task.lock_holder(label) is None, "its reservation is gone")
    second = task.delay(label)
    assert second.id != first.id
    await_failure(second, LookupError)


def test_a_task_with_an_eta_that_is_revoked_leaves_no_reservation(
    worker, web, define, journal, label
):
    task = define(body, name="reserved", lock_scope="queued+running")
    first = task.apply_async((label,), countdown=300)
    assert task.lock_holder(label).task_id == first.id
    await_line(worker, first.id, "received")
    web.control.revoke(first.id)
    eventually(lambda: task.lock_holder(label) is None, "its reservation is gone")
    second = task.delay(label)
    assert second.id != first.id
    assert second.get(timeout=10) == label
    never(lambda: journal.count(label, "start") > 1, "the revoked one runs", 0.5)
