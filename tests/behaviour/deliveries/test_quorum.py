"""RabbitMQ's quorum queues, where a countdown is the broker's and takes whole seconds."""

from __future__ import annotations

import gc
import signal

import pytest

from tests.behaviour.deliveries.conftest import APP, lines_of
from tests.support.waiting import eventually, never
from tests.support.workers import make_app

pytest.importorskip("celery.utils.quorum_queues", reason="this Celery has no delayed delivery")


@pytest.fixture
def quorum(conf, rabbitmq, queue):
    """What Celery's documentation says of native delayed delivery."""
    return {
        "broker_url": rabbitmq.url,
        "broker_transport_options": {"confirm_publish": True},
        "task_default_queue": queue,
        "task_default_queue_type": "quorum",
        "task_default_exchange_type": "topic",
        "task_default_routing_key": queue,
    }


@pytest.fixture
def start_quorum(start_worker, queue, quorum):
    def start_quorum(**options):
        return start_worker(app=APP, queues=queue, conf=quorum, **options)

    return start_quorum


@pytest.fixture
def send_quorum(conf, quorum):
    known = {k: v for k, v in conf.items() if not k.startswith("test_")}
    app = make_app({**known, **quorum})
    yield lambda name, *args, **options: app.send_task(name, args, **options)
    gc.collect()
    app.close()


def test_a_duplicate_that_is_deferred_for_less_than_a_second_runs_later_once(
    start_quorum, send_quorum, journal, label, started
):
    """It is deferred more than once: the broker has given it back under another routing key."""
    worker = start_quorum(concurrency=2)
    holder = send_quorum("defer_half", label, None)
    started()
    duplicate = send_quorum("defer_half", label)
    eventually(
        lambda: duplicate.ready() or len(lines_of(worker, duplicate.id, "received")) > 2,
        "it was deferred, and deferred again",
    )
    assert not duplicate.ready(), duplicate.state
    journal.let_go(holder.id)
    assert duplicate.get(timeout=30) == label
    never(lambda: journal.count(label, "start") > 2, "it runs twice", 3)
    assert journal.overlaps(label) == []


def test_several_duplicates_run_one_after_another_once_each(
    start_quorum, send_quorum, journal, label, started
):
    start_quorum(concurrency=2)
    holder = send_quorum("defer_half", label, None)
    started()
    duplicates = [send_quorum("defer_half", label, 0.0) for _ in range(3)]
    never(lambda: any(each.ready() for each in duplicates), "one ended too early", 1.5)
    journal.let_go(holder.id)
    assert [each.get(timeout=60) for each in duplicates] == [label] * 3
    never(lambda: journal.count(label, "start") > 4, "one runs twice", 3)
    assert journal.overlaps(label) == []


def test_a_redelivered_message_is_put_off_and_runs_when_the_dead_holders_lock_has_lapsed(
    start_quorum, send_quorum, journal, label, started
):
    first = start_quorum(concurrency=1)
    result = send_quorum("late", label, None)
    entry = started()
    second = start_quorum(concurrency=1)
    first.signal(signal.SIGKILL)
    journal.killed(entry)
    eventually(lambda: lines_of(second, result.id, "received"), "the copy came", 60)
    journal.let_go(result.id)
    assert result.get(timeout=40) == label
    never(lambda: journal.count(label, "start") > 2, "a further copy runs", 3)
    assert journal.overlaps(label) == []


def test_a_duplicate_is_put_off_to_the_queue_from_which_it_came_only(
    start_worker, conf, quorum, journal, label, queue, started
):
    """Celery's own way of delaying would give it to both queues of its exchange, each time."""
    how = {"exchange": f"x{queue}", "exchange_type": "topic", "routing_key": f"k{queue}"}
    how["queue_arguments"] = {"x-queue-type": "quorum"}
    names = [queue, f"{queue}-2"]
    both = {**quorum, "task_queues": dict.fromkeys(names, how)}
    worker = start_worker(app=APP, queues=",".join(names), conf=both, concurrency=4)
    with make_app({k: v for k, v in {**conf, **both}.items() if not k.startswith("test_")}) as app:
        holder = app.send_task("defer_half", (label, None), queue=queue)
        started()
        duplicate = app.send_task("defer_half", (label,), queue=queue)
        eventually(lambda: len(lines_of(worker, duplicate.id, "received")) > 5, "deferred twice")
        journal.let_go(holder.id)
        assert duplicate.get(timeout=30) == label
    assert len(lines_of(worker, duplicate.id, "received")) < 40, "twice each time: thousands"
    assert journal.overlaps(label) == []
