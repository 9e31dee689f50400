"""The state of a task that waits is the one that monitors and callers may rely on."""

from __future__ import annotations

import pytest

from tests.behaviour.deliveries.conftest import APP, await_line
from tests.support.waiting import eventually, never


@pytest.fixture(scope="module")
def queue():
    return "states"


@pytest.fixture(scope="module", autouse=True)
def worker(start_module_worker, queue):
    return start_module_worker(
        app=APP, queues=queue, concurrency=6, conf={"task_track_started": True}
    )


@pytest.mark.parametrize("policy", ["wait", "queue", "defer"])
def test_a_waiting_task_is_pending_and_started_while_its_body_runs(
    worker, send_here, journal, label, started, policy
):
    holder = send_here(policy, label, None)
    started()
    eventually(lambda: holder.state == "STARTED", "who runs has started")
    duplicate = send_here(policy, label, None)
    await_line(worker, duplicate.id, "received")
    never(lambda: duplicate.state != "PENDING", "it is more than pending", 1.5)
    journal.let_go(holder.id)
    assert started(2).task_id == duplicate.id
    eventually(lambda: duplicate.state == "STARTED", "it has started")
    journal.let_go(duplicate.id)
    assert duplicate.get(timeout=10) == label
