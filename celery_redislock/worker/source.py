"""Finds the queue that a message came from, by the consumer of the worker's main process."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from ..app.delivery import Source
from ..app.internals import queues_by_tag

#: The sources by route, for each of kombu's consumers: every connection has its own consumer.
_known: Final[WeakKeyDictionary[Any, dict[Any, Source]]] = WeakKeyDictionary()
#: The most routes remembered: some exchanges have a routing key for each order.
MOST: Final = 1000


def source_of(consumer: Any, delivery_info: Mapping[str, Any], exchange: str | None) -> Source:
    """Where a message came from, by the broker's delivery info and its first exchange."""
    tasks = consumer.task_consumer
    known = _known.get(tasks)
    if known is None:
        known = _known[tasks] = {}
    came_by = delivery_info.get("exchange") or "", delivery_info.get("routing_key") or ""
    tag = delivery_info.get("consumer_tag")
    route = (tag or came_by, exchange)
    source = known.get(route)
    if source is None:
        source = _find(tasks, tag, *came_by, exchange or "")
        if source.queue is not None or source.fanout:
            if len(known) >= MOST:
                known.clear()
            known[route] = source
    return source


def _find(tasks: Any, tag: str | None, came_by: str, routing_key: str, exchange: str) -> Source:
    fanout = {queue.name: list(_fanouts(queue)) for queue in tasks.queues}
    queues = queues_by_tag(tasks)
    if tag is not None:
        # A queue that was cancelled meanwhile is known only if its name is the routing key.
        queue = queues.get(tag) or (None if came_by else routing_key)
        return Source(queue, exchange in fanout.get(queue or "", ()))
    if any(came_by in exchanges for exchanges in fanout.values()):
        # With Redis, such a queue is a channel: every listening worker gets the message.
        return Source(None, True)
    if not came_by:
        return Source(routing_key or None)
    consumed = {queue for queue in queues.values() if not fanout.get(queue)}
    if len(consumed) > 1:
        consumed &= _bound(tasks.channel, came_by, routing_key)
    # If there are more, each has had its copy, and the message may come back to any of them: this
    # worker consumes them all.
    return Source(min(consumed, default=None))


def _bound(channel: Any, exchange: str, routing_key: str) -> set[str]:
    """The queues to which a transport of kombu's own gives such a message."""
    try:
        table = channel.get_table(exchange)
    except (AttributeError, KeyError):  # not a transport of kombu's; or nothing is bound
        return set()
    return {
        queue
        for key, pattern, queue in table
        if key == routing_key or (pattern and re.match(pattern, routing_key))
    }


def _fanouts(queue: Any) -> Iterator[str]:
    """The names of the fanout exchanges to which the queue is bound."""
    for exchange in (queue.exchange, *(each.exchange for each in queue.bindings)):
        if exchange is not None and exchange.type == "fanout":
            yield exchange.name
