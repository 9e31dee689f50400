"""Publishing a message again as it came."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from celery.app.task import Context
from celery.signals import before_task_publish

from celery_redislock import ConfigError
from celery_redislock.app.again import message_options, publish_again
from celery_redislock.app.delivery import KEY, Delivery
from celery_redislock.app.entries import CorruptEntry, Entry


@pytest.fixture
def app():
    app = Celery("again", broker="memory://", set_as_current=False)
    app.conf.task_default_queue = "again"
    app.task(name="job", shared=False)(job)
    return app


def job() -> None:
    """Not run here."""


def received(app: Celery) -> dict[str, Any]:
    """The headers of the message that is in the queue. Its properties are noted in `app`."""
    with app.connection_for_read() as connection, connection.SimpleQueue("again") as queue:
        message = queue.get(timeout=5)
        message.ack()
        app.properties = message.properties
        return message.headers


def again(app: Celery, headers: dict[str, Any], queue: str | None = "again") -> dict[str, Any]:
    """The headers of a message that came with these."""
    raw = {"properties": {}, **headers, "delivery_info": {"routing_key": "again"}}
    request = Context(raw, args=(), kwargs={}, called_directly=False)
    delivery = Delivery("a token", queue=queue)
    options = message_options(raw, request, {KEY: {"v": 2}}, delivery)
    publish_again(app, "job", (), {}, options)
    return received(app)


@pytest.fixture
def tool():
    """Does what tools that trace do."""

    def add(headers, **kwargs):
        headers.update(trace="the publisher's", more="of it", headers={"trace": "the publisher's"})

    before_task_publish.connect(add)
    yield
    before_task_publish.disconnect(add)


@pytest.mark.parametrize(
    "own", [{}, {"trace": "a"}, {"headers": {"trace": "b"}}, {"trace": "a", "headers": {"b": "b"}}]
)
def test_it_has_the_headers_with_which_it_came_and_no_others(app, tool, own):
    app.send_task("job", task_id="its-id", shadow="its-shadow")
    first = {k: v for k, v in received(app).items() if k not in ("trace", "more", "headers")}
    second = again(app, {**first, **own})
    assert second.pop(KEY) == {"v": 2}
    assert second.keys() == {*first, *own}, "Celery's are all there"
    assert {name: second[name] for name in own} == own
    assert (second["id"], second["shadow"]) == ("its-id", "its-shadow")
    third = again(app, second)
    assert {name: third[name] for name in own} == own


def test_it_has_the_properties_with_which_it_came_and_no_others(app):
    its_own = {"correlation_id": "c", "app_id": "a", "delivery_mode": 1, "MessageGroupId": "g"}
    of_one = {"user_id": "sender", "MessageDeduplicationId": "d", "DelaySeconds": 9}
    app.conf.task_compression = "zlib"
    headers = again(app, {"id": "its-id", "properties": {**its_own, **of_one}})
    added_by_kombu = {"priority", "delivery_info", "delivery_tag", "body_encoding"}
    assert app.properties.keys() == {*its_own, *added_by_kombu}
    assert {name: app.properties[name] for name in its_own} == its_own
    assert "compression" not in headers


@pytest.mark.parametrize("expires", [None, 60])
def test_it_lives_as_long_as_it_was_to_live(app, expires):
    """What the task's expiry says is computed anew, since part of it is over."""
    own = {"expires": expires} if expires else {}
    again(app, {"id": "its-id", "properties": {"expiration": "5000"}, **own})
    assert app.properties["expiration"] == ("60000" if expires else "5000")


def test_a_time_to_live_that_is_none_is_left_out(app):
    again(app, {"id": "its-id", "properties": {"expiration": "soon"}})
    assert "expiration" not in app.properties


def test_its_event_of_being_sent_is_celerys_own(app):
    app.conf.task_send_sent_event = True
    with app.connection_for_read() as connection:
        events = []
        receiver = app.events.Receiver(connection, handlers={"*": events.append})
        with receiver.consumer_context():
            again(app, {"id": "its-id", "tenant": "blue", "properties": {"app_id": "a"}})
            receiver.capture(limit=1, timeout=5, wakeup=False)
    assert [(event["type"], event["queue"]) for event in events] == [("task-sent", "again")]


def test_a_message_whose_queue_is_not_known_is_not_published_by_a_guess(app):
    with pytest.raises(ConfigError, match="name the queue's bindings in task_queues"):
        again(app, {"id": "its-id"}, queue=None)


@pytest.mark.parametrize("options", [{}, {"queue": None}, {"queue": "again", "properties": "x"}])
def test_a_waiting_task_whose_queue_is_not_known_is_not_published_by_a_guess(app, options):
    entry = Entry.of(app.tasks["job"], (), {}, {"task_id": "its-id", **options})
    with pytest.raises(CorruptEntry):
        entry.load_for(app).check_route()
