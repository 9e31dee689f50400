"""Debounce: of a burst of calls the last one runs, once it is quiet, or after the longest wait."""

from __future__ import annotations

import itertools
import signal
import time

import pytest

from celery_redislock import RedisLock, TaskReplaced
from tests.behaviour.looking import Keys, Room
from tests.support.waiting import eventually

QUEUE = "debounced"
#: Seconds, as `debounced` has it.
QUIET = 1.0


@pytest.fixture(scope="module", autouse=True)
def worker(start_module_worker):
    return start_module_worker(queues=QUEUE, concurrency=4)


@pytest.fixture
def keys(conf, label):
    return Keys(RedisLock(conf["redislock_url"], f"debounced:{label}").key)


@pytest.fixture
def room(client, keys):
    """The waiting room of the label's lock."""
    return Room(client, keys.lock)


def starts(journal, label):
    return [(entry.task_id, entry.at) for entry in journal.read(label, "start")]


def test_of_a_burst_the_last_runs_when_it_is_quiet_and_the_others_name_their_successors(
    send, room, journal, label
):
    results = []
    for _ in range(5):
        sent = time.monotonic()
        results.append(send("debounced", label, 0.0))
        eventually(lambda: room.ids() == [results[-1].id], "it is the one that waits")
    assert results[-1].get(timeout=20)[0] == label
    ((ran, at),) = starts(journal, label)
    assert ran == results[-1].id
    assert at >= sent + QUIET - 0.2, "it was not quiet yet"
    for replaced, successor in itertools.pairwise(results):
        with pytest.raises(TaskReplaced) as caught:
            replaced.get(timeout=10)
        assert caught.value.holder.task_id == successor.id
    eventually(room.is_empty, "nothing waits")


@pytest.mark.parametrize("task", ["debounced", "coalesced"])
def test_of_calls_in_a_row_the_last_runs(send, journal, label, task):
    """The pool processes ask in any order; the worker got the messages in this one."""
    names = [f"{label}-{number}" for number in range(8)]
    bursts = [[send(task, name, 0.0) for _ in range(3)] for name in names]
    eventually(lambda: all(each.ready() for burst in bursts for each in burst), "all end", 60)
    ran = [[task_id for task_id, _ in starts(journal, name)] for name in names]
    assert all(burst[-1].id in each for each, burst in zip(ran, bursts, strict=True))
    if task == "debounced":  # a machine that stands still for a second makes two bursts of one
        assert sum(len(each) == 1 for each in ran) > 3


def test_a_retry_does_not_wait_for_quiet(send, journal, label):
    results = [
        send("debounced_retries", f"{label}-{n}", 0.0, kwargs={"times": 1}) for n in range(3)
    ]
    assert [result.get(timeout=20) for result in results] == [1] * 3
    runs = [starts(journal, f"{label}-{n}") for n in range(3)]
    assert min(second - first for (_, first), (_, second) in runs) < QUIET


def test_a_call_whose_place_has_vanished_runs(
    start_worker, sender, client, keys, room, label, queue
):
    """Another worker published its message, and then somebody emptied Redis."""
    worker = start_worker(queues=queue, concurrency=1)
    result = sender.send_task("debounced", [label, 0.0], queue=queue)
    eventually(lambda: room.ids() == [result.id], "it waits")
    worker.signal(signal.SIGSTOP)
    eventually(lambda: client.exists(keys.sent), "it is published")
    client.delete(keys.room, keys.entries, keys.sent)
    client.zrem(keys.rooms, keys.lock_id)  # the bucket's, with other tests' rooms
    worker.signal(signal.SIGCONT)
    assert result.get(timeout=20)[0] == label
