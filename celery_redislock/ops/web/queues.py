"""Which queues nobody reads: messages that have their locks already wait there, and hold these."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, Final

from ...protocol.log import get_logger
from ..survey import Found

logger = get_logger()

#: Seconds for which a message has waited before its queue is looked at.
WAITED: Final = 10.0
#: Seconds for which workers may answer.
ANSWERS: Final = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Unread:
    """Messages of one task in a queue that no worker reads.

    Attributes:
        task: the task's name.
        queue: the queue's name.
        is_named: whether the calls named the queue; else it is the task's own.
        count: how many of the task's locks these messages have.
        since: Unix time at which the first of them was sent, by the lock server's clock.
    """

    task: str
    queue: str
    is_named: bool
    count: int
    since: float


def unread(app: Any, found: Iterable[Found], now: float) -> list[Unread]:
    """The queues that no worker reads, with the tasks whose messages wait there. Asks the broker
    and the workers, and only if messages have waited for a while.

    Args:
        app: the Celery app.
        found: the locks.
        now: Unix time, by the lock server's clock.
    """
    waiting: dict[tuple[str, str, bool], list[float]] = {}
    for each, since in _waiting(found, now - WAITED):
        queue = each.queue or _route(app, each.task)
        if queue is not None:
            waiting.setdefault((each.task, queue, bool(each.queue)), []).append(since)
    full = set(_without_consumers(app, {queue for _, queue, _ in waiting})) if waiting else set()
    read = _read(app) if full else set()
    return [
        Unread(task, queue, is_named, len(times), min(times))
        for (task, queue, is_named), times in sorted(waiting.items())
        if queue in full - read
    ]


def _waiting(found: Iterable[Found], before: float) -> Iterator[tuple[Found, float]]:
    """The locks of messages that were sent before then, and when that was."""
    for each in found:
        since = None if each.holder is None else each.holder.acquired_at
        if each.state == "queued" and since is not None and since < before:
            yield each, since


def _route(app: Any, name: str) -> str | None:
    """The queue to which calls of this task go that name none; None if that is not known."""
    task = app.tasks.get(name)
    given = {what: getattr(task, what, None) for what in ("queue", "exchange", "routing_key")}
    if given["exchange"] and not given["queue"]:
        return None
    try:
        queue = app.amqp.router.route({k: v for k, v in given.items() if v}, name)["queue"]
    except Exception as exc:  # a route may be the project's own function
        logger.debug("redislock: the route of %s is not known: %r", name, exc)
        return None
    return str(queue.name)


def _without_consumers(app: Any, queues: Iterable[str]) -> Iterator[str]:
    """Those of these queues that have messages and, as far as the broker knows, no consumer."""
    with app.connection_for_read() as connection:
        for name in sorted(queues):
            with connection.channel() as channel:
                try:
                    queue = channel.queue_declare(name, passive=True)
                except connection.channel_errors:  # there is no such queue
                    continue
                if queue.message_count and not queue.consumer_count:
                    yield name


def _read(app: Any) -> set[str]:
    """The queues that the workers read which answer."""
    replies = app.control.broadcast("active_queues", reply=True, timeout=ANSWERS) or ()
    return {
        queue["name"]
        for reply in replies
        for queues in reply.values()
        if isinstance(queues, list)
        for queue in queues
    }
