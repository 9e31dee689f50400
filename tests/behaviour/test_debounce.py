"""Debounce: of a burst of calls the last one runs, once it is quiet, or after the longest wait."""

from __future__ import annotations

import itertools
import signal
import time

import pytest

from celery_redislock import TaskReplaced
from celery_redislock.protocol.keys import lock_keys
from tests.behaviour.looking import Room
from tests.support.lateness import elapsed
from tests.support.waiting import eventually

QUEUE = "debounced"
#: Seconds, as `debounced` has them.
QUIET, LONGEST = 1.0, 3.0
#: Seconds that a start may be late.
LATE = 2.0


@pytest.fixture(scope="module")
def worker(start_module_worker):
    return start_module_worker(queues=QUEUE, concurrency=4)


@pytest.fixture
def keys(label):
    return lock_keys("redislock", f"debounced:{label}")


@pytest.fixture
def room(client, keys):
    """The waiting room of the label's lock."""
    return Room(client, keys.lock)


def starts(journal, label):
    return [(entry.task_id, entry.at) for entry in journal.read(label, "start")]


@pytest.mark.usefixtures("worker")
def test_of_a_burst_the_last_runs_when_it_is_quiet_and_the_others_name_their_successors(
    send, room, journal, label
):
    results = []
    for _ in range(5):
        sent = time.monotonic()
        results.append(send("debounced", label, 0.0))
        eventually(lambda: room.ids() == [results[-1].id], "it is the one that waits")
    last = time.monotonic()
    assert results[-1].get(timeout=20)[0] == label
    ((ran, at),) = starts(journal, label)
    assert ran == results[-1].id
    assert at >= sent + QUIET - 0.2, "it was not quiet yet"
    assert elapsed(last + QUIET, at) < LATE
    for replaced, successor in itertools.pairwise(results):
        with pytest.raises(TaskReplaced) as caught:
            replaced.get(timeout=10)
        assert caught.value.holder.task_id == successor.id
    eventually(room.is_empty, "nothing waits")


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("task", ["debounced", "coalesced", "replaced_sometime"])
def test_of_calls_in_a_row_the_last_runs(send, journal, label, task):
    """The pool processes ask in any order; the worker got the messages in this one."""
    names = [f"{label}-{number}" for number in range(40)]
    bursts = [[send(task, name, 0.0) for _ in range(3)] for name in names]
    eventually(lambda: all(each.ready() for burst in bursts for each in burst), "all end", 60)
    ran = [[task_id for task_id, _ in starts(journal, name)] for name in names]
    assert all(burst[-1].id in each for each, burst in zip(ran, bursts, strict=True))
    if task == "debounced":  # a machine that stands still for a second makes two bursts of one
        assert sum(len(each) == 1 for each in ran) > 30


@pytest.mark.usefixtures("worker")
def test_under_steady_traffic_it_runs_each_time_the_longest_wait_is_over(send, journal, label):
    began, results = time.monotonic(), []
    while time.monotonic() < began + 2.5 * LONGEST:
        results.append(send("debounced", label, 0.0))
        time.sleep(0.05)  # the traffic
    results[-1].get(timeout=20)
    at = [began, *(at for _, at in starts(journal, label))]
    assert len(at) > 2, "it ran seldom"
    for before, after in itertools.pairwise(at):
        assert elapsed(before + LONGEST, after) < LATE
    assert starts(journal, label)[-1][0] == results[-1].id, "the last call runs"


@pytest.mark.usefixtures("worker")
def test_what_is_called_during_a_run_is_the_next_burst(send, room, journal, label):
    first = send("debounced", label, 2.0)
    eventually(lambda: starts(journal, label), "it runs")
    others = [send("debounced", label, 0.0) for _ in range(3)]
    assert first.get(timeout=20)[0] == label, "it is not replaced"
    eventually(lambda: all(each.ready() for each in others), "all have ended")
    assert [each.state for each in others].count("SUCCESS") == 1
    assert journal.overlaps(label) == []
    assert len(starts(journal, label)) == 2
    eventually(room.is_empty, "nothing waits")


@pytest.mark.usefixtures("worker")
def test_one_call_alone_waits_and_another_tasks_run_does_not_wait_for_it(send, journal, label):
    called = time.monotonic()
    result = send("debounced", label, 0.0)
    assert result.get(timeout=20)[0] == label
    assert starts(journal, label)[0][1] >= called + QUIET - 0.2


@pytest.mark.usefixtures("worker")
def test_a_retry_does_not_wait_for_quiet(send, journal, label):
    result = send("debounced_retries", label, 0.0, kwargs={"times": 1})
    assert result.get(timeout=20) == 1
    (_, first), (_, second) = starts(journal, label)
    assert elapsed(first, second) < QUIET


def test_what_waits_outlives_its_worker(start_worker, sender, room, journal, label, queue):
    doomed = start_worker(queues=queue, concurrency=2)
    result = sender.send_task("debounced_late", [label, 0.0], queue=queue)
    eventually(lambda: room.ids() == [result.id], "it waits")
    doomed.kill()
    start_worker(queues=queue, concurrency=2)
    assert result.get(timeout=30)[0] == label
    assert len(starts(journal, label)) == 1


def test_a_call_whose_place_has_vanished_runs(
    start_worker, sender, client, keys, room, label, queue
):
    """Its message was published, and then somebody emptied Redis."""
    worker = start_worker(queues=queue, concurrency=1)
    result = sender.send_task("debounced", [label, 0.0], queue=queue)
    eventually(lambda: room.ids() == [result.id], "it waits")
    worker.signal(signal.SIGSTOP)
    other = start_worker(queues=f"{queue}-other", concurrency=1)
    eventually(lambda: client.exists(keys.sent), "it is published")
    client.delete(keys.room, keys.entries, keys.sent, keys.rooms)
    worker.signal(signal.SIGCONT)
    assert result.get(timeout=20)[0] == label
    assert other.node
