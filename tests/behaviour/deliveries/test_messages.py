"""A duplicate that is published again is the message that it was: its serializer and all."""

from __future__ import annotations

import json
import os

import pytest
from celery import signature

from tests.behaviour.deliveries.conftest import APP, await_line, lines_of
from tests.support.waiting import never
from tests.support.workers import make_app

POLICIES = ["defer", "queue"]
#: What JSON cannot carry.
WHAT = {3, 1, 2}


@pytest.fixture(scope="module")
def queue():
    return "messages"


@pytest.fixture(scope="module")
def start_here(start_module_worker, queue):
    """Starts a worker that takes pickles, and whose own settings are not the messages'."""

    def start(**conf):
        os.environ["C_FORCE_ROOT"] = "1"  # Celery refuses pickle to root
        try:
            conf = {"accept_content": ["json", "pickle"], "task_compression": "zlib", **conf}
            return start_module_worker(app=APP, queues=queue, concurrency=3, conf=conf)
        finally:
            del os.environ["C_FORCE_ROOT"]

    return start


@pytest.fixture(scope="module")
def worker(start_here):
    return start_here()


@pytest.mark.parametrize("late", ["", "_late"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_pickled_duplicate_runs_in_the_end_with_its_argument(
    worker, send_here, journal, label, started, policy, late
):
    name = f"describe_{policy}{late}"
    holder = send_here(name, label, None)
    started()
    pickled = send_here(name, label, 0.1, WHAT, serializer="pickle")
    await_line(worker, pickled.id, "received")
    never(pickled.ready, "it ended while the lock was held", 0.7)
    # Once each try; a message that is given back to the broker comes a hundred times a second.
    assert len(lines_of(worker, pickled.id, "received")) < 10
    journal.let_go(holder.id)
    assert pickled.get(timeout=20)["what"] == sorted(WHAT)
    assert holder.get(timeout=60)["what"] == []
    assert journal.count(label, "start") == 2
    assert journal.overlaps(label) == []


def sent_twice(worker, journal, started, send):
    """What the holder returns, and the duplicate, which met it: both sent by `send`. And the
    duplicate's id.
    """
    holder = send(None)
    started()
    duplicate = send(0.1)
    await_line(worker, duplicate.id, "received")
    never(duplicate.ready, "it ended while the lock was held", 0.7)
    journal.let_go(holder.id)
    return holder.get(timeout=60), duplicate.get(timeout=20), duplicate.id


#: All that a caller can say of a message, and tools such as django-celery-beat do say.
SAID = {
    "compression": "gzip",
    "delivery_mode": 1,
    "priority": 6,
    "expiration": 600,
    "correlation_id": "of-the-caller",
    "reply_to": "the-caller",
    "message_id": "its-own",
    "app_id": "the-caller's",
    "type": "a-type",
    "timestamp": 1700000000,
    "cluster_id": "c",
    "periodic_task_name": "nightly",
    "shadow": "its-shadow",
    "root_id": "root",
    "headers": {"tenant": "blue", "trace": {"id": [1, 2]}},
    "argsrepr": "<secret>",
    "parent_id": "parent",
    "time_limit": 300,
    "soft_time_limit": 200,
    "retries": 0,
}


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def broker(request, conf, start_here):
    """The URL of each broker, and a worker that has it."""
    if request.param == "redis":
        return conf["broker_url"], request.getfixturevalue("worker")
    url = request.getfixturevalue("rabbitmq").url
    return url, start_here(broker_url=url)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_property_and_header_is_kept(broker, conf, queue, journal, label, started, policy):
    """Its task sees what the holder's, whose message came straight, sees."""
    url, worker = broker
    known = {k: v for k, v in conf.items() if not k.startswith("test_")}
    with make_app({**known, "broker_url": url}) as app:

        def send(seconds):
            sent = signature(f"show_{policy}", (label, seconds), app=app).stamp(stamped="here")
            return sent.apply_async(queue=queue, **SAID)

        shown, again, duplicate_id = sent_twice(worker, journal, started, send)
    said = {"defer": "deferred for", "queue": "queued"}[policy]
    assert lines_of(worker, duplicate_id, said)
    assert again == shown
    properties = shown["properties"]
    assert properties["message_id"] == "its-own"
    assert properties["delivery_mode"] == 1
    assert shown["correlation_id"] == "of-the-caller"
    assert shown["compression"] == "application/x-gzip"


def test_one_that_cannot_be_published_again_is_given_back_once_a_second_and_runs_in_the_end(
    worker, send_here, redis_server, journal, label, queue, started
):
    holder = send_here("describe_defer_late", label, None)
    started()
    duplicate = send_here("describe_defer_late", label, queue=f"{queue}-aside")
    with redis_server.client(db=1) as broker:
        message = json.loads(broker.rpop(f"{queue}-aside"))
        message["properties"]["delivery_info"]["routing_key"] = queue
        message["properties"]["body"] = "no producer takes that"
        broker.lpush(queue, json.dumps(message))
    await_line(worker, duplicate.id, "could not be published again")
    never(duplicate.ready, "it ended while the lock was held", 1.5)
    assert 2 <= len(lines_of(worker, duplicate.id, "received")) < 10
    journal.let_go(holder.id)
    assert duplicate.get(timeout=20)
    assert journal.count(label, "start") == 2
