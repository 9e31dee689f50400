"""Which queues nobody reads, as RabbitMQ and the workers tell; test_page.py has it on Redis."""

from __future__ import annotations

import time

from celery_redislock.app.settings import app_locks
from celery_redislock.ops.survey import all_locks
from celery_redislock.ops.web.queues import unread
from tests.support.looking import make_app


def test_a_queue_that_rabbitmq_knows_a_consumer_of_is_read(rabbitmq, redis_server, label):
    app = make_app(redis_server.url, label, broker_url=rabbitmq.url)
    own, other = f"own-{label}", f"other-{label}"
    app.conf.task_routes = {"unique": {"queue": f"gone-{label}"}}
    app.tasks["unique"].apply_async(("1",), queue=own)
    app.tasks["unique"].apply_async(("2",), queue=other)
    app.tasks["unique"].delay("3")
    with app.connection_for_write() as connection, connection.channel() as channel:
        channel.queue_delete(f"gone-{label}")
        found = all_locks(app_locks(app))

        def told(later=60.0):
            seen = unread(app, found, time.time() + later)
            return [(each.task, each.queue, each.is_named, each.count) for each in seen]

        assert told() == [("unique", other, True, 1), ("unique", own, True, 1)]
        assert told(later=0.0) == [], "they have just been sent"
        app.amqp.queues[own](channel).consume(
            callback=None
        )  # as a busy worker that does not answer
        assert told() == [("unique", other, True, 1)]
