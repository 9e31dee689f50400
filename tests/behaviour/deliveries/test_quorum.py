"""RabbitMQ's quorum queues, where a countdown is the broker's and takes whole seconds."""

from __future__ import annotations

import contextlib
import gc
import uuid

import pytest

from tests.behaviour.deliveries.conftest import APP, lines_of
from tests.support.waiting import eventually, never
from tests.support.workers import make_app

pytest.importorskip("celery.utils.quorum_queues", reason="this Celery has no delayed delivery")


def quorum_conf(rabbitmq, queue):
    """What Celery's documentation says of native delayed delivery."""
    return {
        "broker_url": rabbitmq.url,
        "broker_transport_options": {"confirm_publish": True},
        "task_default_queue": queue,
        "task_default_queue_type": "quorum",
        "task_default_exchange_type": "topic",
        "task_default_routing_key": queue,
    }


@pytest.fixture(scope="module")
def app_of(conf):
    """Makes an app that sends with these settings, too."""
    with contextlib.ExitStack() as stack:
        known = {k: v for k, v in conf.items() if not k.startswith("test_")}
        yield lambda settings: stack.enter_context(make_app({**known, **settings}))
        gc.collect()


@pytest.fixture(scope="module")
def shared(start_module_worker, rabbitmq, app_of):
    """A worker of a quorum queue, and how to send to it."""
    name = f"quorum-{uuid.uuid4().hex}"
    settings = quorum_conf(rabbitmq, name)
    worker = start_module_worker(app=APP, queues=name, conf=settings, concurrency=3)
    app = app_of(settings)
    return worker, lambda task, *args: app.send_task(task, args)


def test_a_duplicate_that_is_deferred_for_less_than_a_second_runs_later_once(
    shared, journal, label, started
):
    """It is deferred more than once: the broker has given it back under another routing key."""
    worker, send = shared
    holder = send("defer_half", label, None)
    started()
    duplicate = send("defer_half", label)
    eventually(
        lambda: duplicate.ready() or len(lines_of(worker, duplicate.id, "received")) > 2,
        "it was deferred, and deferred again",
    )
    assert not duplicate.ready(), duplicate.state
    journal.let_go(holder.id)
    assert duplicate.get(timeout=30) == label
    never(lambda: journal.count(label, "start") > 2, "it runs twice", 1.5)
    assert journal.overlaps(label) == []
