"""The broker: queues, who has which message, and what comes again. Celery and the package reach it
through kombu's virtual channels.

It is one of two kinds. One is like Redis with kombu: what a worker has not acknowledged comes again
after the visibility timeout, whether the worker lives or not. The other is like RabbitMQ: it comes
again as soon as the connection has ended.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections import Counter
from collections.abc import Callable
from queue import Empty
from typing import Any

from kombu import transport as transports
from kombu.exceptions import OperationalError
from kombu.transport import virtual

from . import baton

#: The least and the most seconds that a message is on its way to the broker, or an acknowledgement.
TAKES = (0.0002, 0.002)
QUEUE = "celery"


class Unacknowledged:
    """A message that a worker has, and has not acknowledged."""

    def __init__(self, queue: str, text: str, priority: int, channel: Any) -> None:
        self.queue, self.text, self.priority, self.channel = queue, text, priority, channel


class Broker:
    """The broker.

    Args:
        visibility: seconds after which it delivers again what is not acknowledged; None for one
            that does so when the connection ends.

    Attributes:
        workers: who is woken when a message arrives.
        published: for each task, when its messages were published, and which have a countdown.
        again: for each task, how often the broker delivered one of its messages once more.
        is_away: it takes no messages.
        doubles: so many of the next messages are delivered twice.
    """

    def __init__(self, visibility: float | None) -> None:
        self.visibility = visibility
        self.workers: list[Any] = []
        self.published: dict[str, dict[float, bool]] = {}
        self.again: Counter[str] = Counter()
        self.is_away = False
        self.doubles = 0
        self._queues: dict[str, list[tuple[int, int, str]]] = {}
        self._numbers = itertools.count()
        self._unacknowledged: dict[str, Unacknowledged] = {}
        self.on_publish: Callable[[str, float], None] | None = None

    def next_tag(self) -> str:
        return f"message {next(self._numbers)}"

    # -- what a channel does --------------------------------------------------------------

    def publish(self, queue: str, message: dict[str, Any]) -> None:
        """Take a message, and return when it is in its queue."""
        world = baton.world
        world.sleep(world.delays.uniform(*TAKES))
        if self.is_away:
            raise OperationalError("simulated: the broker is away")
        task_id = message["headers"].get("id", "")
        is_delayed = message["headers"].get("eta") is not None
        self.published.setdefault(task_id, {})[world.now] = is_delayed
        if self.on_publish is not None:
            self.on_publish(task_id, world.now)
        self._put(queue, json.dumps(message), int(message["properties"].get("priority") or 0))
        world.sleep(world.delays.uniform(*TAKES))

    def take(self, channel: Any) -> tuple[str, dict[str, Any]]:
        """The next message for this channel.

        Raises:
            Empty: there is none.
        """
        waiting = self._queues.get(QUEUE)
        if not waiting:
            raise Empty
        rank, number, text = heapq.heappop(waiting)
        message = json.loads(text)
        if self.doubles:
            self.doubles -= 1
            baton.world.note("DOUBLED: the next message is delivered twice")
            heapq.heappush(waiting, (rank, number, text))
            self.again[message["headers"].get("id", "")] += 1
        properties = message["properties"]
        # A Redis broker's tag is of the message, and the same in each delivery.
        if self.visibility is None or properties["delivery_tag"] in self._unacknowledged:
            properties["delivery_tag"] = f"{channel.channel_id}.{next(self._numbers)}"
        tag = properties["delivery_tag"]
        held = self._unacknowledged[tag] = Unacknowledged(QUEUE, text, -rank, channel)
        if self.visibility is not None:
            baton.world.after(self.visibility, lambda: self._again(tag, held))
        return tag, message

    def acknowledge(self, tag: str, channel: Any) -> None:
        """Forget the message, once the acknowledgement by this channel has arrived."""

        def arrive() -> None:
            if not channel.is_broken:
                self._unacknowledged.pop(tag, None)

        baton.world.after(baton.world.delays.uniform(*TAKES), arrive)

    def give_back(self, tag: str) -> None:
        """Put the message back, as a worker asks for it."""
        if (held := self._unacknowledged.get(tag)) is not None:
            self._again(tag, held)

    def connection_ended(self, channel: Any) -> None:
        """The connection of this channel has ended: what it has comes again, if this broker sees
        that.
        """
        channel.is_broken = True
        if self.visibility is None or channel.ended_well:
            for tag, held in list(self._unacknowledged.items()):
                if held.channel is channel:
                    self._again(tag, held)

    # -- queues ---------------------------------------------------------------------------

    def _again(self, tag: str, held: Unacknowledged) -> None:
        if self._unacknowledged.get(tag) is not held:
            return
        del self._unacknowledged[tag]
        message = json.loads(held.text)
        self.again[message["headers"].get("id", "")] += 1
        message["headers"]["redelivered"] = True
        message["properties"]["delivery_info"]["redelivered"] = True
        self._put(held.queue, json.dumps(message), held.priority)

    def _put(self, queue: str, text: str, priority: int) -> None:
        heapq.heappush(self._queues.setdefault(queue, []), (-priority, next(self._numbers), text))
        for each in self.workers:
            each.ring()

    def held_by(self, channel: Any) -> list[str]:
        """The messages of this channel that are not acknowledged."""
        held = self._unacknowledged.values()
        return [each.text for each in held if each.channel is channel]

    def all_ids(self) -> set[str]:
        """The tasks of which the broker has a message."""
        texts = [text for waiting in self._queues.values() for _, _, text in waiting]
        texts += [held.text for held in self._unacknowledged.values()]
        return {json.loads(text)["headers"].get("id", "") for text in texts}


#: The broker of this interpreter's world.
broker: Broker = None  # type: ignore[assignment]


def use(made: Broker) -> None:
    global broker
    broker = made


class _QoS(virtual.QoS):
    """What a channel has is known to the broker."""

    restore_at_shutdown = False

    def ack(self, delivery_tag: str) -> None:
        super().ack(delivery_tag)
        broker.acknowledge(delivery_tag, self.channel)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if requeue:
            broker.give_back(delivery_tag)
        else:
            broker.acknowledge(delivery_tag, self.channel)
        self._quick_ack(delivery_tag)


class Channel(virtual.Channel):
    """kombu's virtual channel to it.

    Attributes:
        is_broken: its connection has ended.
        ended_well: its client has closed it, and so has given back what it had.
    """

    QoS = _QoS
    do_restore = False
    is_broken = ended_well = False

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        return broker.take(self)[1]

    def _next_delivery_tag(self) -> str:
        return broker.next_tag()

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        broker.publish(queue, message)

    def _size(self, queue: str) -> int:
        return 0

    def _purge(self, queue: str) -> int:
        return 0


class _Message(virtual.Message):
    """As RabbitMQ's: the tag is the delivery's, and none of the message's properties."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        del self.properties["delivery_tag"]


class _RabbitChannel(Channel):
    Message = _Message


class Transport(virtual.Transport):
    Channel = Channel
    global_state = virtual.BrokerState()
    implements = virtual.Transport.implements

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.state = self.global_state

    def driver_version(self) -> str:
        return "simulated"


class RedisLike(Transport):
    """As the package sees it, by its module: kombu's transport for Redis."""

    driver_type = driver_name = "redis"


class RabbitLike(Transport):
    """As the package sees it: kombu's transport for RabbitMQ."""

    Channel = _RabbitChannel
    driver_type = driver_name = "amqp"


RedisLike.__module__, RabbitLike.__module__ = "kombu.transport.redis", "kombu.transport.pyamqp"
transports.TRANSPORT_ALIASES["simredis"] = f"{__name__}:RedisLike"
transports.TRANSPORT_ALIASES["simrabbit"] = f"{__name__}:RabbitLike"
