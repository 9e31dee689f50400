"""Each pool takes the lock and keeps it for as long as the body runs; who lost it learns it."""

from __future__ import annotations

import os
import signal

import pytest

from celery_redislock import LockLost, TaskSkipped
from tests.conftest import POOLS
from tests.support.waiting import eventually, never

QUEUE = "lost"


#: What is not of a pool is asked of the one with processes.
in_prefork = pytest.mark.parametrize("pool", ["prefork"], indirect=True)


@pytest.fixture(scope="module", params=POOLS)
def pool(request, start_module_worker):
    """A worker of each pool, or two that run one task each; and their queue."""
    queue = f"{QUEUE}-{request.param}"
    for concurrency in (1, 1) if request.param == "solo" else (4,):
        start_module_worker(queues=queue, pool=request.param, concurrency=concurrency)
    return request.param, queue


@pytest.fixture
def start(sender, journal, label, pool):
    """Starts a task and gives its result and the entry of its start."""

    def start(name, *args, **kwargs):
        result = sender.send_task(name, [label, *args], kwargs, queue=pool[1])
        return result, journal.await_start(label, result.id)

    return start


@pytest.fixture
def key_of(locks_of):
    """The key of a task's lock."""

    def key_of(task_id):
        (key,) = locks_of(task_id)
        return key

    return key_of


@in_prefork
def test_a_duplicate_is_skipped(start, sender, journal, label, pool):
    first, _ = start("skip", 2.0)
    for _ in range(3):
        with pytest.raises(TaskSkipped):
            sender.send_task("skip", [label], queue=pool[1]).get(timeout=30)
    assert first.get(timeout=20)
    assert journal.overlaps(label) == []


def test_the_lock_outlives_its_ttl_while_the_body_runs(start, client, key_of):
    result, _ = start("short_ttl", 2.5)
    key = key_of(result.id)
    token = client.get(key)

    def gone():
        return result.state not in ("SUCCESS",) and client.get(key) not in (token, None)

    never(gone, "somebody else had the lock", 1.0)
    assert result.get(timeout=20)


def test_a_thief_is_noticed(start, client, key_of):
    result, _ = start("watches_lock")
    key = key_of(result.id)
    client.set(key, "thief")
    assert result.get(timeout=20) == f"lost {key}"
    assert client.get(key) == "thief", "what is not ours is not deleted"
    client.delete(key)


@in_prefork
def test_a_broken_lock_is_noticed_and_not_taken_again(start, client, key_of):
    result, _ = start("watches_lock")
    client.delete(key := key_of(result.id))
    # Without a break the missing key is taken again: the holder wins.
    eventually(lambda: client.exists(key), "it was taken again")
    client.set(key, "broken", px=3000)
    assert result.get(timeout=20).startswith("lost")


def test_abort_ends_the_body_and_the_worker_goes_on(
    start, sender, client, key_of, journal, label, pool
):
    # In a thread a blocking call cannot be ended: there the body sleeps in short steps.
    how = "steps" if pool[0] == "threads" else "sleep"
    result, _ = start("aborts", 60.0, how)
    client.set(key := key_of(result.id), "thief")
    with pytest.raises(LockLost) as caught:
        result.get(timeout=50)
    assert caught.value.key == key
    assert caught.value.holder.task_id == result.id
    assert journal.count(label, "aborted") == 1
    client.delete(key)
    again = sender.send_task("aborts", [label, 0.1], queue=pool[1])
    assert again.get(timeout=20) == "kept"


@in_prefork
def test_fences_rise_in_the_order_of_the_runs(sender, journal, label, pool):
    results = [sender.send_task("wait", [label, 0.01], queue=pool[1]) for _ in range(8)]
    for result in results:
        result.get(timeout=30)
    fences = [entry.data["fence"] for entry in journal.read(label, "start")]
    assert fences == sorted(set(fences))
    assert len(fences) == 8


@in_prefork
def test_a_hung_body_holds_no_longer_than_it_may(start, locks_of, journal, label):
    result, entry = start("max_hold", 4.0)
    assert entry.data["fence"], "it had the lock"
    eventually(lambda: not locks_of(result.id), "the lock lapsed")
    assert not journal.read(label, "end"), "long before the body ends"
    assert result.get(timeout=20)


def test_a_worker_that_is_stopped_beyond_its_ttl_learns_that_it_lost(
    sender, start_worker, queue, journal, label, locks_of
):
    worker = start_worker(queues=queue, concurrency=2)
    first = sender.send_task("watches_lock", [label], queue=queue)
    eventually(lambda: journal.read(label, "start"), "it runs")
    os.killpg(worker.pid, signal.SIGSTOP)
    try:
        eventually(lambda: not locks_of(first.id), "the lock lapsed")
        start_worker(queues=queue, concurrency=2)
        second = sender.send_task("watches_lock", [label, 4.0], queue=queue)
        eventually(lambda: journal.count(label, "start") == 2, "another one has the lock")
    finally:
        os.killpg(worker.pid, signal.SIGCONT)
    assert first.get(timeout=20).startswith("lost")
    assert second.get(timeout=20) == "kept", "the loser did not release the winner's lock"
    fences = [e.data["fence"] for e in journal.read(label, "start")]
    assert fences[0] < fences[1], "the resource can tell them apart"


@pytest.mark.parametrize("pool", ["gevent"], indirect=True)
def test_a_greenlet_that_computes_does_not_starve_the_heartbeat(start):
    """A patched heartbeat thread would be a greenlet and stand still."""
    result, _ = start("computes", 4.0)
    assert result.get(timeout=30) is False, "its lock, with a ttl of 2 s, was not lost"
