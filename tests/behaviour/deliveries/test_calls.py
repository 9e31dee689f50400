"""A `__call__` that calls `self.run` is body: it runs under the lock, with all that it does."""

from __future__ import annotations

import pytest

from celery_redislock import TaskSkipped
from tests.behaviour.apps.contexts import CONTEXTS
from tests.behaviour.deliveries.conftest import APP
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def worker_queue(start_module_worker):
    start_module_worker(app=APP, queues="calls", concurrency=2)
    return "calls"


@pytest.mark.parametrize("where", ["before", "within", "after"])
@pytest.mark.parametrize("name", CONTEXTS)
def test_what_a_call_of_its_own_does_around_run_is_under_the_lock(
    worker_queue, sender, journal, label, name, where
):
    first = sender.send_task(name, (label, where), queue=worker_queue)
    eventually(lambda: journal.count(label, "at") == 1, f"it stands {where} its run")
    second = sender.send_task(name, (label,), queue=worker_queue)
    eventually(second.ready, "the duplicate has ended")
    journal.let_go(first.id)
    assert first.get(timeout=20) == label
    assert journal.overlaps(label) == []
    assert [entry.task_id for entry in journal.read(label, "start")] == [first.id]
    with pytest.raises(TaskSkipped) as caught:
        second.get(timeout=60)
    assert caught.value.holder.task_id == first.id


@pytest.mark.parametrize("name", CONTEXTS)
def test_the_lock_is_free_when_its_call_has_ended(worker_queue, sender, journal, label, name):
    for number in (1, 2):
        result = sender.send_task(name, (label,), queue=worker_queue)
        assert result.get(timeout=20) == label
        assert journal.count(label, "end") == number
