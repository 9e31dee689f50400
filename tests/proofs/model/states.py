"""What the protocol's model is made of: its rules, its settings, and a state of everything."""

from __future__ import annotations

import dataclasses
from typing import Any, Final, NamedTuple

#: Ticks that a lock outlives its holder.
TTL: Final = 3
#: Ticks for which nobody takes a new lock on a restarted server. A live holder extends once in
#: every tick, so two of its extensions are less than this apart.
HOLD_OFF: Final = 2
#: Whoever has another lock of the same bucket.
NEIGHBOUR: Final = -1


@dataclasses.dataclass(frozen=True)
class Rules:
    """The protocol's rules. Each can be left out or replaced, to see what it is for."""

    compares_tokens: bool = True
    token_is_task_id: bool = False
    locks_expire: bool = True
    right_ends_by_own_clock: bool = True
    right_counts_from: str = "the question"  # or "the answer"
    retakes: str = "within the right"  # or "never", "always"
    retakes_look: bool = True  # whether another took the lock since: the counter has moved
    refuses_what_comes_late: bool = True  # a question for the lock, after its asker's release
    holds_off: bool = True
    defers_copies: bool = True
    parent_awaits_death: bool = True
    parent_retakes: bool = False
    body_ends_with_its_retry: bool = True


class Sent(NamedTuple):
    """What is delivered: which message, which attempt, and of which delivery it is a copy."""

    message: str
    attempt: int = 0
    copy_of: int | None = None
    hold_off: int = HOLD_OFF  # less if its own ttl is shorter; 0 if it never met the old server


@dataclasses.dataclass(frozen=True)
class Setting:
    """What there is and what may happen.

    Attributes:
        deliveries: in the state they go by their number here. Copies and retries come later.
        faults: some of "pause" (of a child, or of the whole worker), "kill child", "kill worker",
            "loss" (a question or its answer is lost), "delay" (a question arrives when nobody
            awaits its answer any more), "copy" (the broker delivers again what is still worked
            on), "restart" (the server forgets everything), "neighbours" (other locks of the
            bucket, which share its counter, are taken), "hasty neighbours" (that hold off less).
        late_acks: messages are acknowledged after the body, and not before.
        rules: the rules.
    """

    deliveries: tuple[Sent, ...]
    faults: frozenset[str] = frozenset()
    late_acks: bool = True
    rules: Rules = Rules()


class Wire(NamedTuple):
    """A question to the server that its asker waits for, and the answer once there is one."""

    asks: str  # acquire, acquire again, extend, retake, release
    left: int  # ticks of the right if the answer is yes: TTL when the question was sent
    answer: str = ""

    def __str__(self) -> str:
        return f"{self.asks}? {self.answer or '...'}"


class Stray(NamedTuple):
    """A question on its way that nobody waits for any more."""

    who: int
    asks: str


class Delivery(NamedTuple):
    """One delivery, in a worker of its own: a main process, the parent, and a child."""

    at: str = "unsent"  # queued, inside, ended, retrying (ended, and its retry is out), over
    child: str = "up"  # paused, dead
    worker: str = "up"  # dead
    right: int = 0  # ticks, by its own clock
    lost: bool = False  # it was told so, or the right ended and nobody answered
    due: bool = False  # the next extension is
    wire: Wire | None = None
    freed: bool = False  # its release was carried out

    @property
    def has_right(self) -> bool:
        """Whether its body is inside and has the right to be, as far as it can know."""
        return self.at == "inside" and self.child != "dead" and self.right > 0 and not self.lost

    def __str__(self) -> str:
        process = (
            "worker dead" if self.worker == "dead" else "" if self.child == "up" else self.child
        )
        right = "lost" if self.lost else f"right {self.right}" if self.at == "inside" else ""
        return " ".join(filter(None, (self.at, process, right, str(self.wire or ""))))


class State(NamedTuple):
    """Everything at one moment."""

    deliveries: tuple[Delivery, ...]
    holder: int | None = None  # whose token stands in the lock
    ttl: int = 0  # ticks until the lock lapses
    newest: int | None = None  # who took the lock last: has the highest fence
    counted: int | None = None  # who made the counter what it is; NEIGHBOUR, or None if it is lost
    hold_off: int = 0  # ticks for which nobody takes a new lock
    done: frozenset[tuple[str, int, str]] = frozenset()  # message, attempt; "ran", "superseded"
    ends: frozenset[tuple[str, str]] = frozenset()  # message; "ran", "skipped", "failed"
    strays: frozenset[Stray] = frozenset()
    wrong: str = ""  # what was done that must never be

    def change(self, who: int, **fields: Any) -> State:
        """This delivery in another state."""
        changed = self.deliveries[who]._replace(**fields)
        return self._replace(
            deliveries=(*self.deliveries[:who], changed, *self.deliveries[who + 1 :])
        )

    def over(self, who: int, end: str = "", message: str = "") -> State:
        """This delivery is at its end. What no longer matters of it is forgotten: fewer states."""
        _, child, worker, *_, freed = self.deliveries[who]
        gone = Delivery("over", child, worker, freed=freed)._asdict()
        return self._replace(ends=self.ends | ({(message, end)} if end else set())).change(
            who, **gone
        )

    def __str__(self) -> str:
        lock = "free" if self.holder is None else f"{self.holder}'s for {self.ttl}"
        return f"{lock:9} | " + " | ".join(
            f"{who} {one}" for who, one in enumerate(self.deliveries)
        )
