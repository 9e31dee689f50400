"""The broker's queues with messages that have a lock or their turn, and who reads them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from ..protocol.log import logger
from .locks import Found
from .rooms import waiting

#: Seconds for which a message has waited before its queue is looked at.
WAITED: Final = 10.0
#: Of how many locks the waiting rooms are read.
ROOMS: Final = 20
#: Seconds for which workers may answer.
ANSWERS: Final = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class InQueue:
    """Messages of one task that wait in a queue."""

    task: str
    queue: str
    is_named: bool  # by the messages; else it is the task's own
    count: int  # how many such messages are known
    since: float  # Unix time at which the first was sent, by the lock server's clock
    messages: int  # in the queue, of all tasks, as the broker counts them
    is_read: bool  # by a worker; an empty one counts as read


def in_queues(app: Any, found: Sequence[Found], now: float) -> list[InQueue]:
    """The queues where messages have waited for long; asks broker and workers only if needed."""
    sent: dict[tuple[str, str, bool], list[float]] = {}
    for task, queue, is_named, since in (*_kept(app, found), *_in_turn(app, found)):
        if queue is not None and since < now - WAITED:
            sent.setdefault((task, queue, is_named), []).append(since)
    told = _states_of(app, {queue for _, queue, _ in sent})
    unread = {name for name, each in told.items() if each.messages and not each.consumers}
    unread -= _read_by_workers(app) if unread else set()
    return [
        InQueue(*which, len(times), min(times), told[which[1]].messages, which[1] not in unread)
        for which, times in sorted(sent.items())
    ]


def with_depths(app: Any, found: Iterable[Found]) -> list[Found]:
    """The same locks; with those that messages have, their queue and its length."""
    found = list(found)
    route = functools.cache(functools.partial(_route, app))
    queues = {each.key: each.queue or route(each.task) for each in found if each.state == "queued"}
    told = _states_of(app, {each for each in queues.values() if each is not None})
    return [
        each
        if (queue := queues.get(each.key)) is None
        else dataclasses.replace(each, queue=queue, queue_depth=told[queue].messages)
        for each in found
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


class _QueueState(NamedTuple):
    """What the broker tells of a queue. Some brokers know no consumers."""

    messages: int = 0
    consumers: int = 0


def _states_of(app: Any, queues: Collection[str]) -> dict[str, _QueueState]:
    """What the broker tells of these queues. A queue that is not there has no messages."""
    told = dict.fromkeys(queues, _QueueState())
    if not queues:
        return told
    with app.connection_for_read() as connection:
        for name in sorted(queues):
            with (
                contextlib.suppress(*connection.channel_errors),  # there is no such queue
                connection.channel() as channel,
            ):
                queue = channel.queue_declare(name, passive=True)
                told[name] = _QueueState(queue.message_count, queue.consumer_count)
    return told


def _read_by_workers(app: Any) -> set[str]:
    """The queues that the workers read which answer."""
    replies = app.control.broadcast("active_queues", reply=True, timeout=ANSWERS) or ()
    return {
        queue["name"]
        for reply in replies
        for queues in reply.values()
        if isinstance(queues, list)
        for queue in queues
    }
