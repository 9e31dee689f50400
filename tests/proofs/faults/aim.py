"""What faults share: whom they strike, how long they last, and what they may cost."""

from __future__ import annotations

from tests.support.waiting import eventually

from .history import Event
from .stage import Stage

#: How long something lasts, as parts of the ttl.
Span = tuple[float, float]
SHORT: Span = (0.1, 0.6)
LONG: Span = (1.3, 2.0)

#: What a fault of the lock server's data allows.
LOSES_DATA = frozenset({"overlap"})
#: A server that comes back empty has also forgotten which attempts have run: a copy of the message
#: of one runs again. Its locks are taken again by their holders.
FORGETS = frozenset({"again"})
#: A broker connection that breaks takes messages along: kombu's Redis transport may have popped
#: one and not yet told, and a message that is published may or may not have arrived.
LOSES_MESSAGES = frozenset({"vanished"})


def holder(stage: Stage, span: Span) -> Event:
    """A body that is inside. For what lasts longer than the ttl it is one that does so too."""
    if span != LONG:
        return stage.await_inside()
    # Woken when it can have the lock, so it soon starts; and others soon want its lock.
    seconds = round(stage.rng.uniform(2.0, 2.5) * stage.ttl, 3)
    kwargs = {"seconds": seconds, "how": "return"}
    return inside(stage, stage.send("wait_then_defer", kwargs=kwargs))


def inside(stage: Stage, task_id: str) -> Event:
    """The body of this task, once it is inside."""

    def starts() -> list[Event]:
        return [start for start in stage.inside() if start.id == task_id]

    return eventually(starts, "a long body is inside", 60)[0]


def last(stage: Stage, span: Span) -> None:
    """Let the fault last for a random part of the ttl."""
    low, high = span
    stage.pause(low * stage.ttl, high * stage.ttl)
