"""Retries and redeliveries: never lost as its own duplicate, never running beside itself."""

from __future__ import annotations

import os
import signal
import uuid

import kombu.transport.redis
import pytest

from celery_redislock.protocol.keys import lock_keys
from tests.support.waiting import eventually, never
from tests.support.workers import make_app

#: The broker gives an unacknowledged message back after a second, and looks every second.
IMPATIENT = {
    "broker_transport_options": {
        "visibility_timeout": 1,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": 1,  # a worker may be killed as it restores
    }
}
QUEUE = "retries"

needs_impatience = pytest.mark.skipif(
    not hasattr(kombu.transport.redis.Channel, "unacked_restore_throttle"),
    reason="this kombu looks for unacknowledged messages only every 100 s",
)


@pytest.fixture(scope="module")
def worker(start_module_worker):
    return start_module_worker(queues=QUEUE, concurrency=4)


def test_a_retry_at_once_never_loses_to_its_own_earlier_attempt(worker, sender, journal, label):
    labels = [f"{label}-{number}" for number in range(60)]
    results = [
        sender.send_task("retries", [each], {"times": 2, "countdown": 0}, queue=QUEUE)
        for each in labels
    ]
    assert [result.get(timeout=60) for result in results] == [2] * 60
    for each in labels:
        assert [entry.retries for entry in journal.read(each, "start")] == [0, 1, 2]
        assert journal.overlaps(each) == []


def test_the_lock_is_free_during_a_retrys_countdown(worker, sender, journal, label):
    retrying = sender.send_task("retries", [label], {"countdown": 4}, queue=QUEUE)
    eventually(lambda: journal.count(label, "end") == 1, "its first attempt ended")
    other = sender.send_task("retries", [label], {"times": 0}, queue=QUEUE)
    assert other.get(timeout=20) == 0
    assert retrying.get(timeout=20) == 1
    ran = [entry.task_id for entry in journal.read(label, "start")]
    assert ran == [retrying.id, other.id, retrying.id], "it ran before the retry"


def test_a_lock_held_across_retries_refuses_others_and_lets_the_retry_in(
    worker, sender, journal, label
):
    retrying = sender.send_task("retries_held", [label], {"countdown": 4}, queue=QUEUE)
    eventually(lambda: journal.count(label, "end") == 1, "its first attempt ended")
    other = sender.send_task("retries_held", [label], {"times": 0}, queue=QUEUE)
    eventually(lambda: other.state == "REVOKED", "the other one is skipped")
    assert retrying.get(timeout=20) == 1
    third = sender.send_task("retries_held", [label], {"times": 0}, queue=QUEUE)
    assert third.get(timeout=20) == 0, "the last attempt released the lock"


def test_a_held_lock_lives_through_a_countdown_longer_than_its_ttl(
    start_worker, sender, queue, client, journal, label, locks_of
):
    start_worker(queues=queue, concurrency=1)
    # lock_ttl is 6 s.
    result = sender.send_task("retries_held", [label], {"countdown": 100}, queue=queue)
    eventually(lambda: journal.count(label, "end") == 1, "its first attempt ended")

    (key,) = eventually(lambda: locks_of(result.id), "the lock stands")
    eventually(lambda: client.pttl(key) > 6000, "it is kept for the retry")
    assert 100_000 < client.pttl(key) <= 106_000


def test_a_retry_does_not_run_beside_an_earlier_attempt_that_goes_on(
    worker, sender, journal, label
):
    result = sender.send_task("retries_and_goes_on", [label, 3.0], queue=QUEUE)
    eventually(lambda: journal.count(label, "end") == 2, "both attempts ended")
    assert journal.overlaps(label) == []
    assert [entry.retries for entry in journal.read(label, "start")] == [0, 1]
    eventually(lambda: result.state == "SUCCESS", "it has a result")


@needs_impatience
def test_a_redelivered_copy_waits_for_the_holder_and_does_not_run_again(
    start_worker, sender, queue, journal, label
):
    """Redis broker: the visibility timeout is shorter than the task."""
    workers = [start_worker(queues=queue, concurrency=1, conf=IMPATIENT) for _ in range(2)]
    result = sender.send_task("late_hour", [label, 5.0], queue=queue)

    def redelivered():
        return any("redelivered" in worker.log() for worker in workers)

    eventually(redelivered, "another copy met the lock")
    assert result.get(timeout=30)
    assert result.state == "SUCCESS"
    never(lambda: journal.count(label, "start") > 1, "the copy ran", 6.0)


@needs_impatience
def test_a_redelivered_copy_runs_if_the_holder_died(start_worker, sender, queue, journal, label):
    """Redis broker: the worker is killed; its copy must survive the dead holder's lock."""
    first, second = (start_worker(queues=queue, concurrency=1, conf=IMPATIENT) for _ in range(2))
    result = sender.send_task("late_hour", [label, 4.0], queue=queue)
    entry = eventually(lambda: journal.read(label, "start"), "it runs")[0]
    killed = first if entry.pid in first.children() else second
    killed.signal(signal.SIGKILL)
    os.kill(entry.pid, signal.SIGKILL)
    journal.killed(entry)
    assert result.get(timeout=60)
    starts = journal.read(label, "start")
    assert [start.task_id for start in starts] == [result.id] * 2
    assert journal.overlaps(label) == []
    never(lambda: journal.count(label, "start") > 2, "a further copy ran", 5.0)


@pytest.fixture
def rabbit_conf(conf, rabbitmq):
    return {**conf, "broker_url": rabbitmq.url}


def test_rabbitmqs_immediate_redelivery_runs_after_the_dead_holders_lock_lapsed(
    start_worker, rabbitmq, rabbit_conf, queue, journal, label
):
    """The dead holder's lock still stands when the copy comes. Skipping it loses the task."""
    sender = make_app({k: v for k, v in rabbit_conf.items() if not k.startswith("test_")})
    first, second = (
        start_worker(queues=queue, concurrency=1, conf={"broker_url": rabbitmq.url})
        for _ in range(2)
    )
    result = sender.send_task("late_hour", [label, 3.0], queue=queue)
    entry = eventually(lambda: journal.read(label, "start"), "it runs")[0]
    killed, other = (first, second) if entry.pid in first.children() else (second, first)
    killed.signal(signal.SIGKILL)
    journal.killed(entry)
    eventually(lambda: "redelivered" in other.log(), "the copy met the dead holder's lock")
    assert result.get(timeout=60)
    assert journal.count(label, "start") == 2


def test_rabbitmq_redelivers_after_a_killed_child_and_the_task_runs_again(
    start_worker, rabbitmq, rabbit_conf, queue, journal, label
):
    sender = make_app({k: v for k, v in rabbit_conf.items() if not k.startswith("test_")})
    start_worker(queues=queue, concurrency=1, conf={"broker_url": rabbitmq.url})
    result = sender.send_task("late", [label, 3.0], queue=queue)
    entry = eventually(lambda: journal.read(label, "start"), "it runs")[0]
    os.kill(entry.pid, signal.SIGKILL)
    journal.killed(entry)
    assert eventually(lambda: journal.read(label, "start")[1:], "it runs again")
    assert journal.count(label, "start") == 2
    eventually(lambda: journal.count(label, "end") == 1, "it ended")
    assert journal.overlaps(label) == []
    eventually(lambda: result.state == "SUCCESS", "it has a result")


@needs_impatience
def test_a_deferred_task_survives_a_visibility_timeout_shorter_than_its_countdown(
    start_worker, sender, queue, journal, label
):
    """A message with a countdown is unacknowledged while it waits, so copies of it appear."""
    for _ in range(2):
        start_worker(queues=queue, concurrency=2, conf=IMPATIENT)
    result = sender.send_task("skip", [label, 0.2], queue=queue, countdown=4)
    assert result.get(timeout=30)
    never(lambda: journal.count(label, "start") > 1, "a copy ran too", 5.0)
    assert result.state == "SUCCESS"


def test_a_task_that_replaces_itself_under_its_own_lock_goes_on(worker, sender, journal, label):
    """A replacement has the id and the retries of what it replaces, and is no copy of it."""
    result = sender.send_task("pages", [label], queue=QUEUE)
    assert result.get(timeout=30) == "last page"
    assert journal.count(label, "start") == 3
    assert journal.overlaps(label) == []


def test_a_task_that_is_sent_again_under_its_own_id_runs_again(worker, sender, journal, label):
    """As operators do with what failed. It is no copy of a message that was delivered before."""
    for number in (1, 2):
        sender.send_task("late", [label, 0.1], queue=QUEUE, task_id=label)
        eventually(lambda number=number: journal.count(label, "end") == number, "it ran")
        eventually(lambda: sender.AsyncResult(label).state == "SUCCESS", "it has a result")


def test_a_copy_whose_wait_times_out_while_the_first_runs_is_not_skipped(
    worker, sender, journal, label
):
    sender.send_task("wait_late", [label, 1.0], queue=QUEUE)
    eventually(lambda: journal.count(label, "start") == 1, "another task holds the lock")
    copies = f"{label}-copies"
    for _ in range(2):
        sender.send_task("wait_late", [label, 3.0], queue=QUEUE, task_id=copies)
    result = sender.AsyncResult(copies)
    never(lambda: result.state == "REVOKED", "it was skipped as its own duplicate", 4.0)
    eventually(lambda: result.state == "SUCCESS", "it has a result")
    never(lambda: journal.count(label, "start") > 2, "the copy ran too", 3.0)
    assert journal.overlaps(label) == []


@needs_impatience
def test_copies_of_tasks_with_a_countdown_run_once_each(
    start_worker, sender, queue, journal, label
):
    """Whichever copy comes first, the others know that it ran."""
    for _ in range(2):
        start_worker(queues=queue, concurrency=2, conf=IMPATIENT)
    labels = [f"{label}-{number}" for number in range(40)]
    results = [sender.send_task("skip", [each, 0.0], queue=queue, countdown=3) for each in labels]
    for result in results:
        assert result.get(timeout=30)

    def ran_twice():
        return [each for each in labels if journal.count(each, "start") > 1]

    never(ran_twice, "a copy ran too", 4.0)


@needs_impatience
def test_copies_of_a_message_do_not_multiply(start_worker, sender, queue, journal, label):
    """Each copy that is put off sleeps unacknowledged, and so is copied in its turn."""
    workers = [start_worker(queues=queue, concurrency=1, conf=IMPATIENT) for _ in range(2)]
    result = sender.send_task("late_hour", [label, 20.0], queue=queue)

    def received():
        return sum(worker.log().count("received") for worker in workers)

    assert result.get(timeout=60)
    # Three a second or so; unchecked it is hundreds by now, and thousands soon.
    assert received() < 150
    assert journal.count(label, "start") == 1


def copy_of(result, sender, queue, name, label, *args):
    """What a broker that did not hear of an acknowledgement delivers again."""
    mark = {"redislock": {"redelivered": True}}
    sender.send_task(name, [label, *args], queue=queue, task_id=result.id, headers=mark)


def test_a_deferred_task_and_the_copy_of_what_it_was_deferred_from_run_once(
    worker, sender, journal, label
):
    """The broker did not hear that the deferred one was acknowledged."""
    holder = sender.send_task("defer", [label, 4.0], queue=QUEUE)
    eventually(lambda: journal.count(label, "start") == 1, "it holds the lock")
    result = sender.send_task("defer", [label, 0.1], queue=QUEUE)
    eventually(lambda: "defer[" + result.id in worker.log(), "it is deferred")
    assert holder.get(timeout=20)
    assert result.get(timeout=20)
    copy_of(result, sender, QUEUE, "defer", label, 0.1)
    never(lambda: journal.count(label, "start") > 2, "it ran twice", 2.0)


def test_a_copy_of_a_skipped_task_does_not_run_instead(worker, sender, journal, label):
    holder = sender.send_task("late", [label, 4.0], queue=QUEUE)
    eventually(lambda: journal.count(label, "start") == 1, "it holds the lock")
    skipped = sender.send_task("late", [label, 0.1], queue=QUEUE)
    eventually(lambda: skipped.state == "REVOKED", "it is skipped")
    assert holder.get(timeout=20)
    copy_of(skipped, sender, QUEUE, "late", label, 0.1)
    never(lambda: journal.count(label, "start") > 1, "a copy ran", 2.0)
    assert skipped.state == "REVOKED"


def test_a_copy_of_what_a_solo_worker_ran_does_not_run(start_worker, sender, queue, journal, label):
    """Its loop acknowledges after the body, and the broker may not hear of it."""
    start_worker(queues=queue, pool="solo", concurrency=1)
    result = sender.send_task("skip", [label, 0.1], queue=queue)
    assert result.get(timeout=20)
    copy_of(result, sender, queue, "skip", label, 0.1)
    never(lambda: journal.count(label, "start") > 1, "a copy ran", 2.0)


def test_an_earlier_attempts_state_is_not_taken_for_the_result_of_a_later_one(
    worker, sender, client, label
):
    """The later attempt ended, and its process died before Celery stored what it ended in."""
    task_id = str(uuid.uuid4())
    keys = lock_keys("redislock", f"named:{label}")
    client.set(keys.done_by(f"{task_id}:0.1"), "1", ex=3600)  # left 600 s ago
    sender.backend.store_result(task_id, ValueError("tried"), "RETRY")
    copy = {"task_id": task_id, "retries": 1, "headers": {"redislock": {"redelivered": True}}}
    result = sender.send_task("queued_named", [label, 0.0], queue=QUEUE, **copy)
    assert result.get(timeout=20)[0] == label
