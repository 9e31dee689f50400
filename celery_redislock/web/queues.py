"""Which queues nobody reads: there wait messages that have their locks already, and hold these, or
whose turn it is in a waiting room.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from ..inspection.locks import Found
from ..inspection.rooms import waiting
from ..protocol.log import get_logger

logger = get_logger()

#: Seconds for which a message has waited before its queue is looked at.
WAITED: Final = 10.0
#: Of how many locks the waiting rooms are read.
ROOMS: Final = 20
#: Seconds for which workers may answer.
ANSWERS: Final = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Unread:
    """Messages of one task in a queue that no worker reads.

    Attributes:
        task: the task's name.
        queue: the queue's name.
        is_named: whether the messages name the queue; else it is the task's own.
        count: how many such messages are known.
        since: Unix time at which the first of them was sent, by the lock server's clock.
    """

    task: str
    queue: str
    is_named: bool
    count: int
    since: float


def unread(app: Any, found: Sequence[Found], now: float) -> list[Unread]:
    """The queues that no worker reads, with the tasks whose messages wait there. Asks the broker
    and the workers, and only if messages have waited for a while.

    Args:
        app: the Celery app.
        found: the locks.
        now: Unix time, by the lock server's clock.

    Raises:
        LockUnavailable: the lock server did not answer, or does not allow it.
    """
    sent: dict[tuple[str, str, bool], list[float]] = {}
    for task, queue, is_named, since in (*_kept(app, found), *_in_turn(app, found)):
        if queue is not None and since < now - WAITED:
            sent.setdefault((task, queue, is_named), []).append(since)
    full = set(_without_consumers(app, {queue for _, queue, _ in sent})) if sent else set()
    read = _read(app) if full else set()
    return [
        Unread(task, queue, is_named, len(times), min(times))
        for (task, queue, is_named), times in sorted(sent.items())
        if queue in full - read
    ]


#: Of a message: its task, its queue if that is known, whether it names this, and when it was sent.
_Sent: TypeAlias = tuple[str, "str | None", bool, float]


def _kept(app: Any, found: Iterable[Found]) -> Iterator[_Sent]:
    """The messages for which locks are kept."""
    route = functools.cache(functools.partial(_route, app))
    for each in found:
        since = None if each.holder is None else each.holder.acquired_at
        if each.state == "queued" and since is not None:
            yield each.task, each.queue or route(each.task), each.queue is not None, since


def _in_turn(app: Any, found: Iterable[Found]) -> Iterator[_Sent]:
    """The messages that were published from waiting rooms, and that no worker has taken."""
    names = sorted({each.name for each in found if each.untaken})[:ROOMS]
    for room in waiting(app, names):
        for each in room.waiting:
            if each.published_for is not None and each.queue is not None and each.task is not None:
                yield each.task, each.queue, True, room.now - each.published_for


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
