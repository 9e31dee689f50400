"""What is kept, said and stored at the edges of a delivery is true."""

from __future__ import annotations

import re
import signal

import pytest

from celery_redislock import TaskReplaced
from tests.behaviour.deliveries.conftest import APP, await_line
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def queue():
    return "said"


@pytest.fixture(scope="module")
def worker(start_module_worker, queue):
    return start_module_worker(app=APP, queues=queue, concurrency=3)


def retries_elsewhere(label, other="", countdown=60):
    """As the worker's."""


@pytest.fixture
def elsewhere(worker, define):
    return define(
        retries_elsewhere, name="retries_elsewhere", lock_across_retries="hold", max_retries=3
    )


def test_a_retry_with_other_arguments_does_not_keep_the_lock_of_the_old_ones(
    elsewhere, journal, label
):
    retrying = elsewhere.delay(label, f"{label}-other", 60)
    eventually(lambda: journal.count(label, "end") == 1, "its first attempt ended")
    eventually(lambda: elsewhere.lock_holder(label) is None, "the old arguments' lock is free")
    again = elsewhere.delay(label)
    assert again.get(timeout=10) == label
    assert not retrying.ready()


def test_a_retry_with_other_arguments_runs_under_their_lock(elsewhere, journal, label):
    other = f"{label}-other"
    assert elsewhere.delay(label, other, 0).get(timeout=20) == other
    assert journal.count(other, "start") == 1
    eventually(lambda: elsewhere.lock_holder(other) is None, "its lock is free")


def test_a_waiter_that_was_superseded_is_told_so_and_not_that_the_lock_is_held_by_a_waiter(
    worker, send_here, journal, label, started
):
    holder = send_here("coalesce", label, None)
    started()
    second = send_here("coalesce", label)
    await_line(worker, second.id, "coalesced")
    last = send_here("coalesce", label)
    eventually(second.ready, "the one that waited has ended")
    said = worker.log()
    journal.let_go(holder.id)
    with pytest.raises(TaskReplaced) as caught:
        second.get(timeout=10)
    assert second.state == "REVOKED"
    assert caught.value.holder.task_id == last.id
    assert "held by" not in str(caught.value)
    assert re.findall(rf"held by [^\n]*{last.id}[^\n]*", said) == [], "it only waits"
    assert last.get(timeout=10) == label


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_bad_arguments_and_a_shutdown_are_no_error_of_ours(start, sender, label, pool):
    queue = f"said-{label}"
    worker = start(pool=pool, queues=queue, concurrency=1)
    result = sender.send_task("skip", [label, 0.1, "one too many"], queue=queue)
    with pytest.raises(TypeError):
        result.get(timeout=20)
    assert result.state == "FAILURE"
    worker.signal(signal.SIGTERM)
    worker.wait()
    ours = re.findall(r"^\[[^]]*ERROR[^]]*\] redislock:.*$", worker.log(), re.MULTILINE)
    assert ours == []
