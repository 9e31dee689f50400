"""With `celery_session_worker`, locks on Redis and in memory. `test_embedded.py` runs this."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from celery_redislock.testing import assert_free, assert_locked, assert_skipped, memory_locks
from tests.project.e2e import tasks

IN = ("redis", "memory")


@pytest.fixture(scope="session")
def celery_config() -> dict[str, Any]:
    url = os.environ["REDIS_URL"]
    return {"broker_url": f"{url}/8", "result_backend": f"{url}/9", "redislock_url": f"{url}/0"}


@pytest.fixture(scope="session")
def celery_worker_parameters() -> dict[str, Any]:
    return {"perform_ping_check": False, "shutdown_timeout": 20, "concurrency": 2}


@pytest.fixture(scope="session")
def celery_worker_pool() -> str:
    return "threads"


@pytest.fixture(params=IN)
def locks_in(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where the locks are. Nothing runs while that changes."""
    if request.param == "memory":
        with memory_locks():
            yield request.param
    else:
        yield request.param


@pytest.fixture
def label() -> str:
    return uuid.uuid4().hex


def test_a_duplicate_is_skipped(locks_in, label, celery_session_worker, held_lock):
    held = held_lock(tasks.skip, label)
    assert assert_locked(tasks.skip, label).task_id == "held-by-test-1"
    assert_skipped(tasks.skip.delay(label))
    held.release()
    assert tasks.skip.delay(label).get(timeout=20)
    assert_free(tasks.skip, label)


def test_what_queues_runs_after_the_release(locks_in, label, celery_session_worker, held_lock):
    held = held_lock(tasks.queue, label)
    results = [tasks.queue.delay(label, 0.1) for _ in range(2)]
    held.release()
    (_, first_ended), (second_began, _) = sorted(result.get(timeout=20) for result in results)
    assert second_began >= first_ended
