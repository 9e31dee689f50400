"""Retries and redeliveries: never lost as its own duplicate, never running beside itself."""

from __future__ import annotations

import signal

import kombu.transport.redis
import pytest
from celery.exceptions import WorkerLostError

from tests.behaviour.looking import kill_runner, received
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


@pytest.fixture(scope="module", autouse=True)
def worker(start_module_worker):
    return start_module_worker(queues=QUEUE, concurrency=4)


@pytest.fixture(scope="module")
def impatient(start_module_worker):
    """Two workers of a queue whose broker is impatient."""
    options = {"queues": f"{QUEUE}-impatient", "concurrency": 2, "conf": IMPATIENT}
    return [start_module_worker(**options) for _ in range(2)]


@pytest.fixture
def send_impatiently(impatient, sender):
    """Sends to them."""

    def send(name, *args, **options):
        return sender.send_task(name, args, queue=f"{QUEUE}-impatient", **options)

    return send


def test_a_retry_at_once_never_loses_to_its_own_earlier_attempt(sender, journal, label):
    labels = [f"{label}-{number}" for number in range(20)]
    results = [
        sender.send_task("retries", [each], {"times": 2, "countdown": 0}, queue=QUEUE)
        for each in labels
    ]
    assert [result.get(timeout=60) for result in results] == [2] * 20
    for each in labels:
        assert [entry.retries for entry in journal.read(each, "start")] == [0, 1, 2]
        assert journal.overlaps(each) == []


@pytest.mark.parametrize("pauses", [False, True], ids=["held", "paused"])
def test_a_lock_held_for_a_retry_whose_process_dies_before_it_has_it_is_not_held_on(
    start_house, tasks, sender, queue, journal, label, pauses
):
    start_house(concurrency=1)
    task, how = tasks["dies_and_holds"], "pause long and retry later" if pauses else "retry later"
    result = sender.send_task(task.name, [label, how], queue=queue)
    eventually(lambda: journal.count(label, "end") == 1, "its first attempt ended")
    eventually(lambda: task.lock_holder(label).held_for_retry, "the lock is kept")
    journal.let_go(f"{label} dies")
    with pytest.raises(WorkerLostError):
        result.get(timeout=30)

    def is_given_back():
        holder = task.lock_holder(label)
        return holder is None or holder.cooling_down

    eventually(is_given_back, "the lock, with a ttl of 60 s, is given back", 15)
    assert bool(task.lock_holder(label)) == pauses


@needs_impatience
def test_a_redelivered_copy_waits_for_the_holder_and_does_not_run_again(
    impatient, send_impatiently, journal, label
):
    """Redis broker: the visibility timeout is shorter than the task. Each copy that is put off
    sleeps unacknowledged, and so is copied in its turn.
    """
    result = send_impatiently("late_hour", label, "stand")
    copies = f"late_hour[{result.id}] redelivered"
    eventually(lambda: sum(each.log().count(copies) for each in impatient) > 3, "copies met it")
    journal.let_go(result.id)
    assert result.get(timeout=30)
    assert result.state == "SUCCESS"
    never(lambda: journal.count(label, "start") > 1, "a copy ran", 1.5)
    assert sum(received(each.log(), result.id) for each in impatient) < 50, "they multiply"


@needs_impatience
def test_a_redelivered_copy_runs_if_the_holder_died(start_worker, sender, queue, journal, label):
    """Redis broker: the worker is killed; its copy must survive the dead holder's lock."""
    workers = [start_worker(queues=queue, concurrency=1, conf=IMPATIENT) for _ in range(2)]
    result = sender.send_task("late_hour", [label, "stand"], queue=queue)
    entry = journal.await_start(label, result.id)
    kill_runner(workers, journal, entry)
    journal.let_go(result.id)
    assert result.get(timeout=60)
    starts = journal.read(label, "start")
    assert [start.task_id for start in starts] == [result.id] * 2
    assert journal.overlaps(label) == []
    never(lambda: journal.count(label, "start") > 2, "a further copy ran", 1.0)


@pytest.fixture
def send_by_rabbit(conf, rabbitmq, queue):
    with make_app({**conf, "broker_url": rabbitmq.url}) as app:
        yield lambda name, *args: app.send_task(name, args, queue=queue)


def test_rabbitmqs_immediate_redelivery_runs_after_the_dead_holders_lock_lapsed(
    start_worker, rabbitmq, send_by_rabbit, queue, journal, label
):
    """The dead holder's lock still stands when the copy comes. Skipping it loses the task."""
    first, second = (
        start_worker(queues=queue, concurrency=1, conf={"broker_url": rabbitmq.url})
        for _ in range(2)
    )
    result = send_by_rabbit("late_hour", label, "stand")
    entry = journal.await_start(label, result.id)
    killed, other = (first, second) if entry.pid in first.children() else (second, first)
    killed.signal(signal.SIGKILL)
    journal.killed(entry)
    eventually(lambda: "redelivered" in other.log(), "the copy met the dead holder's lock")
    journal.let_go(result.id)
    assert result.get(timeout=60)
    assert journal.count(label, "start") == 2
