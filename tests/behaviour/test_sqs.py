"""Amazon's SQS as the broker: it delivers again by time, and says in its own way what is a copy."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.waiting import eventually, never
from tests.support.workers import make_app

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
    return lambda name, *args: sqs_sender.send_task(name, args, queue=queue)


@pytest.fixture
def start(start_worker, queue, sqs_conf):
    def start(concurrency=1):
        return start_worker(queues=queue, concurrency=concurrency, conf=sqs_conf)

    return start


def test_duplicates_are_skipped_deferred_and_queued(start, send, journal, label):
    start(concurrency=3)
    for name in ("skip", "defer", "queued"):
        holder = send(name, label + name, 1.5)
        eventually(lambda n=name: journal.count(label + n, "start"), "the holder runs")
        duplicate = send(name, label + name, 0.1)
        if name == "skip":
            eventually(lambda: duplicate.state == "REVOKED", "it is skipped")  # noqa: B023
        else:
            assert duplicate.get(timeout=20)
        assert holder.get(timeout=20)
        assert journal.count(label + name, "start") == (1 if name == "skip" else 2)
        assert journal.overlaps(label + name) == []


def test_a_deferral_is_no_longer_than_half_of_the_visibility_timeout(start, send, journal, label):
    start(concurrency=2)
    send("defer_long", label, 1.0)
    eventually(lambda: journal.count(label, "start"), "the holder runs")
    assert send("defer_long", label, 0.1).get(timeout=20), "its delay is a minute"
    assert journal.overlaps(label) == []


def test_a_task_that_runs_for_longer_than_the_visibility_timeout_runs_once(
    start, send, journal, label
):
    workers = [start() for _ in range(2)]
    result = send("late_hour", label, 2.5 * VISIBLE)
    eventually(lambda: any("redelivered" in each.log() for each in workers), "a copy met the lock")
    assert result.get(timeout=30)
    never(lambda: journal.count(label, "start") > 1, "the copy ran", VISIBLE + 1)


def test_the_copy_of_a_killed_workers_message_runs(start, send, journal, label):
    first, second = start(), start()
    result = send("late_hour", label, 2.0)
    entry = eventually(lambda: journal.read(label, "start"), "it runs")[0]
    killed = first if entry.pid in first.children() else second
    killed.signal(signal.SIGKILL)
    os.kill(entry.pid, signal.SIGKILL)
    journal.killed(entry)
    assert result.get(timeout=60)
    assert [each.task_id for each in journal.read(label, "start")] == [result.id] * 2
    assert journal.overlaps(label) == []


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
