"""The waiting room: queued duplicates run in order, coalesced ones once; nothing is lost on the way."""

from __future__ import annotations

import os
import signal

import pytest

from celery_redislock import LockConflict, TaskSkipped
from tests.support.waiting import eventually, never

QUEUE = "rooms"


@pytest.fixture(scope="module", autouse=True)
def worker(start_module_worker):
    return start_module_worker("-E", queues=QUEUE, concurrency=4)


@pytest.fixture
def send(sender):
    def send(name, *args, **options):
        return sender.send_task(name, args, queue=QUEUE, **options)

    return send


@pytest.fixture
def hold(send, journal, label):
    """Starts a run that holds the label's lock."""

    def hold(name, seconds=2.0):
        result = send(name, label, seconds)
        eventually(lambda: journal.count(label, "start") == 1, "the holder runs")
        return result

    return hold


@pytest.fixture
def waiting(client, label):
    """How many wait for the label's lock."""

    def waiting(task="queued"):
        keys = [key for key in client.scan_iter("redislock:*:room:*", _type="list")]
        return {key: client.llen(key) for key in keys}

    return waiting


def test_queued_duplicates_run_one_after_another_in_their_order(send, hold, journal, label):
    first = hold("queued", 1.0)
    others = [send("queued", label, 0.05) for _ in range(8)]
    for result in (first, *others):
        assert result.get(timeout=30)[0] == label
    ran = [entry.task_id for entry in journal.read(label, "start")]
    assert sorted(ran) == sorted([first.id, *(o.id for o in others)])
    assert journal.overlaps(label) == []


def test_of_coalesced_duplicates_the_newest_runs(send, hold, journal, label):
    first = hold("coalesced", 1.5)
    others = [send("coalesced", label, 0.05) for _ in range(5)]
    results = []
    for result in others:
        try:
            results.append(result.get(timeout=30))
        except TaskSkipped as exc:
            results.append(exc)
    skipped = [r for r in results if isinstance(r, TaskSkipped)]
    assert len(skipped) == 4
    assert {r.holder.task_id for r in skipped} <= {o.id for o in others}
    assert first.get(timeout=20)
    assert journal.count(label, "start") == 2


def test_one_more_than_the_limit_meets_the_next_policy(send, hold, journal, label):
    hold("queued_two", 1.5)
    results = [send("queued_two", label, 0.05) for _ in range(4)]
    failed = 0
    for result in results:
        try:
            result.get(timeout=30)
        except LockConflict:
            failed += 1
    assert failed == 2


def test_who_waited_long_enough_meets_the_next_policy(send, hold, label):
    first = hold("queued_briefly", 6.0)
    second = send("queued_briefly", label, 0.05)
    with pytest.raises(LockConflict) as caught:
        second.get(timeout=5.5)
    assert caught.value.holder.task_id == first.id
    assert first.get(timeout=20)
