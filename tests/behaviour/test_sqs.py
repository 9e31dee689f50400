"""Amazon's SQS as the broker: it delivers again by time, and says in its own way what is a copy."""

from __future__ import annotations

import os
import signal
from functools import partial

import pytest

from tests.support.waiting import eventually, never
from tests.support.workers import make_app

QUEUE = "sqs"
#: Seconds after which a message that is not acknowledged is delivered again.
VISIBLE = 2


@pytest.fixture(scope="module")
def sqs_conf(sqs):
    return sqs.conf(visibility_timeout=VISIBLE)


@pytest.fixture(scope="module")
def sqs_sender(conf, sqs_conf):
    with make_app({**conf, **sqs_conf}) as app:
        yield app


@pytest.fixture
def send(sqs_sender, queue):
    return lambda name, *args, to=queue: sqs_sender.send_task(name, args, queue=to)


@pytest.fixture
def start(start_worker, queue, sqs_conf):
    return partial(start_worker, queues=queue, concurrency=1, conf=sqs_conf)


@pytest.fixture(scope="module")
def workers(start_module_worker, sqs_conf):
    return [start_module_worker(queues=QUEUE, concurrency=3, conf=sqs_conf) for _ in range(2)]


@pytest.mark.usefixtures("workers")
def test_duplicates_are_skipped_deferred_and_queued(send, journal, label):
    names = ("skip", "defer", "queued")
    holders = {name: send(name, label + name, 2.5, to=QUEUE) for name in names}
    for name, holder in holders.items():
        journal.await_start(label + name, holder.id)
    duplicates = {name: send(name, label + name, 0.1, to=QUEUE) for name in names}
    eventually(lambda: duplicates["skip"].state == "REVOKED", "it is skipped")
    for result in (*holders.values(), duplicates["defer"], duplicates["queued"]):
        assert result.get(timeout=20)
    for name in names:
        assert journal.count(label + name, "start") == (1 if name == "skip" else 2)
        assert journal.overlaps(label + name) == []


def test_a_task_that_runs_for_longer_than_the_visibility_timeout_runs_once(
    workers, send, journal, label
):
    result = send("late_hour", label, 2.5 * VISIBLE, to=QUEUE)
    copies = f"late_hour[{result.id}] redelivered"
    eventually(lambda: any(copies in each.log() for each in workers), "a copy met the lock")
    assert result.get(timeout=30)
    never(lambda: journal.count(label, "start") > 1, "the copy ran", VISIBLE + 1)


def test_the_copy_of_a_message_whose_acknowledgement_was_lost_does_not_run(
    start, send, journal, label
):
    first = start()
    result = send("lingers", label, 0.1)
    assert result.get(timeout=20), "its result is stored, and the worker is not told"
    (entry,) = journal.read(label, "start")
    first.signal(signal.SIGKILL)
    os.kill(entry.pid, signal.SIGKILL)
    second = start()
    eventually(lambda: "already" in second.log(), "the copy has come")
    assert journal.count(label, "start") == 1
