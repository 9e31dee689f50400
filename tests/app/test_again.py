"""Publishing a message again as it came."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from celery.app.task import Context
from celery.signals import before_task_publish

from celery_redislock.app.again import message_options, publish_again
from celery_redislock.app.delivery import KEY


@pytest.fixture
def app():
    app = Celery("again", broker="memory://", set_as_current=False)
    app.conf.task_default_queue = "again"
    app.task(name="job", shared=False)(job)
    return app


def job() -> None:
    """Not run here."""


def received(app: Celery) -> dict[str, Any]:
    """The headers of the message that is in the queue."""
    with app.connection_for_read() as connection, connection.SimpleQueue("again") as queue:
        message = queue.get(timeout=5)
        message.ack()
        return message.headers


def again(app: Celery, headers: dict[str, Any]) -> dict[str, Any]:
    """The headers of a message that came with these."""
    raw = {**headers, "properties": {}, "delivery_info": {"routing_key": "again"}}
    request = Context(raw, args=(), kwargs={}, called_directly=False)
    options = message_options(app.tasks["job"], raw, request, {KEY: {"v": 2}}, None)
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
