"""Which queue a message came from, as kombu's own transports and RabbitMQ's let one tell."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from kombu import Connection, Consumer, Exchange, Queue, binding
from kombu.common import Broadcast

from celery_redislock.app.delivery import Source, restore_route
from celery_redislock.worker import source
from celery_redislock.worker.source import source_of

TOPIC = Exchange("topic", type="topic")
DIRECT = Exchange("direct", type="direct")
FANOUT = Exchange("fanout", type="fanout")


@pytest.fixture
def consuming():
    """Consumes from these queues, and finds where a message with this route came from."""
    with Connection("memory://") as connection:

        def consuming(*queues):
            consumer = Consumer(connection.default_channel, queues, accept=["json"])
            consumer.consume()
            worker = SimpleNamespace(task_consumer=consumer)

            def find(exchange, routing_key, first=None, **more):
                came_by = {"exchange": exchange, "routing_key": routing_key, **more}
                return source_of(worker, came_by, exchange if first is None else first)

            find.consumer = consumer
            return find

        yield consuming


@pytest.mark.parametrize(
    ("exchange", "routing_key", "queue"),
    [
        ("", "orders", "orders"),
        ("topic", "orders.new", "orders"),
        ("topic", "bills.new", "bills"),
        ("direct", "not the queue", "others"),
        ("topic", "both.new", "bills"),
        ("topic", "no.binding", None),
        ("unknown", "orders", None),
    ],
)
def test_the_bindings_tell_the_queue(consuming, exchange, routing_key, queue):
    def bound(*keys):
        return [binding(TOPIC, routing_key=key) for key in keys]

    find = consuming(
        Queue("orders", bindings=bound("orders.#", "both.#")),
        Queue("bills", bindings=bound("bills.*", "both.#")),
        Queue("others", DIRECT, "not the queue"),
    )
    assert find(exchange, routing_key) == Source(queue)
    assert find(exchange, routing_key) == Source(queue), "also when it is remembered"


def test_a_worker_of_one_queue_has_all_from_there(consuming):
    assert consuming(Queue("only"))("of another", "service") == Source("only")


def test_what_came_through_a_fanout_exchange_has_no_queue_of_this_worker_alone(consuming):
    find = consuming(Queue("orders"), Broadcast("fanout", exchange=FANOUT))
    assert find("fanout", "") == Source(None, fanout=True)
    assert find("", "orders") == Source("orders")


def test_rabbitmq_says_by_which_consumer_it_came(consuming):
    find = consuming(Queue("orders"), Queue("mine", FANOUT))
    tags = find.consumer._active_tags
    assert find("any", "key", consumer_tag=tags["orders"]) == Source("orders")
    assert find("fanout", "", consumer_tag=tags["mine"]) == Source("mine", fanout=True)
    # Put off to its own queue, it is still a copy.
    assert find("", "mine", "fanout", consumer_tag=tags["mine"]) == Source("mine", fanout=True)
    assert find("", "mine", consumer_tag=tags["mine"]) == Source("mine")
    assert find("any", "key", consumer_tag="cancelled") == Source(None)
    assert find("", "gone", consumer_tag="cancelled") == Source("gone")


@pytest.mark.parametrize("route", [None, 7, "by", [["x"], "y"], [], {"a": 1}, [None, None], "xy"])
def test_a_header_that_is_not_ours_does_no_harm(route):
    raw = {"redislock": {"route": route}, "delivery_info": {"exchange": "", "routing_key": "q"}}
    restore_route(raw)
    assert raw["delivery_info"] == {"exchange": "", "routing_key": "q"}


def test_routes_without_end_are_not_all_remembered(consuming, monkeypatch):
    monkeypatch.setattr(source, "MOST", 3)
    find = consuming(Queue("orders", TOPIC, "#"))
    for number in range(10):
        assert find("topic", f"order.{number}") == Source("orders")
    assert len(source._known[find.consumer]) <= 3
