"""What our users' own tests do: Celery's fixtures, whose worker is a thread of the process."""

from __future__ import annotations

import pytest
from celery.contrib import pytest as celery_fixtures

from celery_redislock import SingletonTask, TaskSkipped, Wait
from tests.support.waiting import eventually


@pytest.fixture(scope="session")
def celery_config(redis_server):
    return {
        "broker_url": f"{redis_server.url}/4",
        "result_backend": f"{redis_server.url}/5",
        "redislock_url": f"{redis_server.url}/0",
    }


# The plugin's own fixture of that name starts a container, since pytest-celery 1.
celery_worker = celery_fixtures.celery_worker


@pytest.fixture(scope="session")
def celery_worker_parameters():
    return {"perform_ping_check": False, "shutdown_timeout": 20}


@pytest.fixture
def task(celery_app, label):
    @celery_app.task(shared=False, base=SingletonTask, bind=True, name=f"in_users_tests.{label}")
    def task(self, x):
        return x, self.lock.fence

    return task


def test_the_embedded_worker_takes_locks_and_skips_duplicates(
    celery_app, task, celery_worker, client
):
    x, fence = task.delay(5).get(timeout=20)
    assert x == 5
    assert fence > 0
    assert not client.exists(task.lock_key_for(5))

    client.set(task.lock_key_for(5), '{"token":"somebody"}', px=20_000)
    with pytest.raises(TaskSkipped):
        task.delay(5).get(timeout=20)
    assert task.break_lock(5) is True


@pytest.fixture
def waiting(celery_app, label):
    @celery_app.task(
        shared=False,
        base=SingletonTask,
        name=f"in_users_tests.wait.{label}",
        on_conflict=Wait(timeout=20),
    )
    def waiting():
        return "ran"

    return waiting


def test_the_embedded_worker_wakes_who_waits(waiting, celery_worker, client):
    client.set(waiting.lock_key_for(), '{"token":"somebody"}', px=20_000)
    result = waiting.delay()
    eventually(lambda: client.keys("redislock:*:waiters:in_users_tests.wait.*"), "it waits")
    waiting.break_lock()
    assert result.get(timeout=20) == "ran"
