"""Publishes a task's message again as it came, in any process.

The message goes only to the queue from which it came. Its exchange could give it to other queues
too, which have had their copies, or to none: a headers exchange looks at headers, not at a key. It
keeps its own headers and properties, and gets no new ones but Celery's: tracing tools would add the
trace of this process, which may run the lock's holder, or be an operator's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from celery.app.task import Context
from kombu import Exchange, Queue
from kombu.common import Broadcast
from kombu.transport.native_delayed_delivery import CELERY_DELAYED_DELIVERY_EXCHANGE

from ..errors import ConfigError
from .delivery import KEY, Delivery
from .internals import least_countdown, outside_of_tasks, serializer_of

#: A header that contains headers. Sentry, for one, looks for its own headers there.
_NESTED: Final = "headers"
#: Properties of one sending or delivery. RabbitMQ checks that the user is the publisher, and SQS
#: drops a message whose deduplication id it has seen before.
_OF_ONE: Final = frozenset(
    {
        *(KEY, "delivery_info", "delivery_tag", "body_encoding", "user_id"),
        *("content_type", "content_encoding", "application_headers"),
        *("MessageDeduplicationId", "DelaySeconds", "delay_seconds"),
    }
)
#: Celery's options for publishing. All its other options are properties of a new message.
_OF_PUBLISHING: Final = (
    *("exchange", "routing_key", "declare", "serializer", "retry", "retry_policy"),
    *("expiration", "timeout", "confirm_timeout", "mandatory", "immediate"),
)


def message_options(
    raw: Mapping[str, Any],
    request: Any,
    header: Mapping[str, Any],
    delivery: Delivery,
) -> dict[str, Any]:
    """The options with which a task is published again as it came. The request is given as Celery
    hands it to the tracer, and as the task sees it. Raises `ConfigError` if its queue is not known.
    """
    if delivery.queue is None:
        raise ConfigError(
            "the message cannot be published again: this worker does not know to which of its"
            f" queues it was given, by exchange {delivery.route[0]!r} and routing key"
            f" {delivery.route[1]!r}; name the queue's bindings in task_queues"
        )
    options = {**request.as_execution_options(), "queue": delivery.queue}
    known = request.__dict__
    if "ignore_result" in known:  # Celery 5.5 leaves it out
        options["ignore_result"] = request.ignore_result
    for name in ("argsrepr", "kwargsrepr"):
        if known.get(name):
            options[name] = known[name]
    serializer = serializer_of(delivery.content_type)
    if serializer is not None:
        options["serializer"] = serializer
    options["compression"] = raw.get("compression")
    came_with = (raw.get("properties") or {}).items()
    options["properties"] = {k: v for k, v in came_with if k not in _OF_ONE and v is not None}
    options["headers"] = {**_headers(raw, options.get("headers")), **header}
    return options


def publish_again(app: Any, name: str, args: Any, kwargs: Any, options: Mapping[str, Any]) -> None:
    """Publish a task with these `message_options`, without a parent task or a new trace."""
    options = dict(options)
    properties, compression = options.pop("properties", {}), options.pop("compression", None)
    headers = options["headers"]
    with outside_of_tasks(), app.producer_or_acquire() as producer:
        options.update(_straight_to(options["queue"], app, "countdown" in options))
        app.send_task(
            name,
            args,
            kwargs,
            **{**options, "headers": {k: v for k, v in headers.items() if k != _NESTED}},
            add_to_parent=False,
            producer=_AsItCame(producer, headers, properties, compression),
            router=_Routed,
        )


def _straight_to(name: str, app: Any, is_delayed: bool) -> dict[str, Any]:
    """The options that publish to this queue only, through RabbitMQ's default exchange."""
    # Not of type "direct": with a direct exchange, Celery would choose the route itself, and would
    # not let RabbitMQ delay the message.
    queue = Queue(name, Exchange("", type="topic"), routing_key=name)
    # As Celery does for a queue that is given by name. Only consumers can declare other queues.
    known = app.amqp.queues.get(name)
    declare = [] if known is None or isinstance(known, Broadcast) else [known]
    if is_delayed and least_countdown(app):
        # kombu declares an `auto_delete` queue each time: it may have been created anew.
        bound = _BoundForDelays(name, auto_delete=True)
        queue.routing_key = bound.key
        declare.append(bound)
    return {"queue": queue, "exchange": "", "routing_key": name, "declare": declare}


class _BoundForDelays(Queue):  # type: ignore[misc, unused-ignore]
    """Adds a binding to an existing queue: RabbitMQ gives messages that are delayed with this key
    to this queue only. Celery would bind an exchange, which has other queues too.
    """

    @property
    def key(self) -> str:
        return f"redislock-{hashlib.sha256(self.name.encode()).hexdigest()[:32]}"

    def declare(self, nowait: bool = False, channel: Any = None) -> Any:
        self.bind_to(CELERY_DELAYED_DELIVERY_EXCHANGE, f"#.{self.key}", channel=channel)
        return self.name


class _Routed:
    """A router that keeps the route which a message already has."""

    @staticmethod
    def route(options: dict[str, Any], *args: Any) -> dict[str, Any]:
        return options


class _AsItCame:
    """A producer that sends these headers and properties, and Celery's. Celery calls it last."""

    def __init__(
        self,
        producer: Any,
        headers: Mapping[str, Any],
        properties: Mapping[str, Any],
        compression: str | None,
    ) -> None:
        self._producer = producer
        self._headers = headers
        self._properties = dict(properties)
        self._compression = compression
        # Milliseconds, as text: only RabbitMQ reads it, and refuses other text. If the task
        # expires, Celery passes the seconds that are left instead.
        ttl = str(self._properties.pop("expiration", None))
        self._ttl = int(ttl) / 1000 if ttl.isdecimal() else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, *, headers: Mapping[str, Any], **options: Any) -> Any:
        if isinstance(body, dict) and body.get("type") == "task-sent":  # Celery's event
            return self._producer.publish(body, headers=headers, **options)
        added = custom_headers(headers)
        celerys = {k: v for k, v in headers.items() if k != _NESTED and k not in added}
        kept = {k: v for k, v in options.items() if k in _OF_PUBLISHING}
        if self._ttl is not None:
            kept.setdefault("expiration", self._ttl)
        return self._producer.publish(
            body,
            headers={**celerys, **self._headers},
            compression=self._compression,
            **kept,
            **self._properties,
        )


def _headers(raw: Mapping[str, Any], shown: Mapping[str, Any] | None) -> dict[str, Any]:
    """The headers with which a message came, without Celery's and ours. `shown` are those that the
    task sees and a retry sends: only the nested ones, if any.
    """
    headers = dict(shown or {})
    if raw.get(_NESTED):
        headers = {**custom_headers(raw), _NESTED: headers}
    for name in (KEY, "compression"):  # whoever compresses the body sets it anew
        headers.pop(name, None)
    return headers


def custom_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The headers at the top level of a message that are not Celery's."""
    others = Context({k: v for k, v in headers.items() if k != _NESTED})
    return others.as_execution_options()["headers"] or {}
