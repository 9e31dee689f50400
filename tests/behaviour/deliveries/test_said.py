"""What is kept, said and stored at the edges of a delivery is true."""

from __future__ import annotations

import re
import signal

import pytest

from tests.behaviour.deliveries.conftest import APP
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


def test_a_retry_with_other_arguments_runs_under_their_lock(elsewhere, journal, label):
    other = f"{label}-other"
    assert elsewhere.delay(label, other, 0).get(timeout=20) == other
    assert journal.count(other, "start") == 1
    eventually(lambda: elsewhere.lock_holder(other) is None, "its lock is free")


def test_bad_arguments_and_a_shutdown_are_no_error_of_ours(start, sender, label):
    queue = f"said-{label}"
    worker = start(queues=queue, concurrency=1)
    result = sender.send_task("skip", [label, 0.1, "one too many"], queue=queue)
    with pytest.raises(TypeError):
        result.get(timeout=20)
    assert result.state == "FAILURE"
    worker.signal(signal.SIGTERM)
    worker.wait()
    ours = re.findall(r"^\[[^]]*ERROR[^]]*\] redislock:.*$", worker.log(), re.MULTILINE)
    assert ours == []
