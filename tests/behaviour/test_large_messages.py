"""A message that is too large for the lock server's `proto-max-bulk-len`: not an outage."""

from __future__ import annotations

import pytest

from celery_redislock import RedisLock
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

QUEUE = "large-messages"
APP = "tests.behaviour.apps.every_policy"
#: The body's seconds, as text: more than Redis takes here.
LARGE = f"{' ' * 1_500_000}0.1"
#: The same, which every server takes.
FITS = f"{' ' * 900_000}0.1"


@pytest.fixture(scope="module")
def small_server():
    with RedisServer() as server:
        with server.client() as client:
            client.config_set("proto-max-bulk-len", "1mb")
        yield server


@pytest.fixture(scope="module", autouse=True)
def worker(start_module_worker, small_server):
    conf = {"redislock_url": f"{small_server.url}/0"}
    return start_module_worker(app=APP, queues=QUEUE, concurrency=2, conf=conf)


@pytest.fixture
def lock(small_server, label):
    return lambda name: RedisLock(f"{small_server.url}/0", f"{name}:{label}")


def said(worker, result):
    """What the worker said of this task at WARNING and above."""
    lines = worker.log().splitlines()
    return [
        line for line in lines if result.id in line and (": WARNING/" in line or ": ERROR/" in line)
    ]


@pytest.mark.parametrize("name", ["queue", "debounce", "replace"])
def test_it_waits_for_the_lock_outside_of_the_room(worker, lock, send, label, name):
    with lock(name):
        result = send(name, label, LARGE)
        eventually(lambda: f"[{result.id}] deferred" in worker.log(), "it is deferred", 20)
    assert result.get(timeout=30) == label
    why = "the lock server did not take its message of 15"
    assert all(why in line for line in said(worker, result))
    assert said(worker, result)


@pytest.mark.parametrize("name", ["debounce", "queued_running", "skip"])
def test_it_runs_at_once_if_the_lock_is_free(worker, send, label, name):
    result = send(name, label, LARGE)
    assert result.get(timeout=20) == label
    assert f"[{result.id}] deferred" not in worker.log()


@pytest.mark.parametrize("name", ["queue", "debounce"])
def test_one_that_fits_waits_in_the_room(worker, lock, send, label, name):
    with lock(name):
        result = send(name, label, FITS)
        waits = {"queue": "queued", "debounce": "is debounced"}[name]
        eventually(lambda: f"[{result.id}] {waits}" in worker.log(), "it waits in the room", 20)
    assert result.get(timeout=30) == label
    assert said(worker, result) == []
