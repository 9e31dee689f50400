"""The states of a lock, in words that all have in common; only this module decides them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from ..protocol.holders import Holder

State: TypeAlias = Literal[
    "held",
    "silent",
    "without its lock",
    "kept",
    "queued",
    "suspended",
    "waits for quiet",
    "not taken",
    "free",
    "broken",
    "foreign",
]
#: What each state means, as the page says it.
STATES: Final[dict[State, str]] = {
    "held": "a run holds it",
    "silent": "a run holds it, and has not extended it when it should have",
    "without its lock": "no lock, but a body that runs on after it lost its lock",
    "kept": "no run holds it; it is kept for a retry, a pause, or a task that was woken",
    "queued": "it is kept for a message in the queue",
    "suspended": "no run holds it; an operator keeps new ones from beginning for a while",
    "waits for quiet": "nobody holds it; the calls that wait do so until no newer call comes",
    "not taken": "nobody holds it, and no worker has taken what was published for it a minute ago",
    "free": "nobody holds it, and the first task that waits is about to get it",
    "broken": "an operator broke it, and nobody has taken it since",
    "foreign": "a value that is not a lock of ours blocks its key",
}
#: For what a lock is kept: a waiter was woken.
KeptFor: TypeAlias = Literal["its retry", "a pause", "a waiter"]

#: A run holds the lock.
RUNNING: Final[tuple[State, ...]] = ("held", "silent")
#: No run holds the lock, but it is kept for somebody.
KEPT: Final[tuple[State, ...]] = ("kept", "queued")
#: Nobody holds the lock, and tasks wait for it; if it is suspended, perhaps none.
AWAITED: Final[tuple[State, ...]] = ("suspended", "waits for quiet", "not taken", "free")
#: There is no lock: it was broken, or its run goes on without it.
NO_LOCK: Final[tuple[State, ...]] = ("broken", "without its lock")
#: A body runs, with its lock or without.
GOING_ON: Final[tuple[State, ...]] = (*RUNNING, "without its lock")
#: The states that somebody should look at.
IN_TROUBLE: Final[tuple[State, ...]] = ("silent", "without its lock", "not taken", "foreign")

#: A holder is silent if its last extension is older than this part of the ttl, and some seconds. It
#: extends the lock after a third; we may look, or it may be, a little late.
BEAT: Final = 0.34
LATE: Final = 3.0
#: Seconds after the time at which a worker should have looked at a waiting room from which nobody
#: looks after it. Workers look each two seconds.
NOBODY_LOOKS: Final = 10.0


def state_of_holder(
    holder: Holder | None, lives_for: float | None = None, ttl: float | None = None
) -> State:
    """The state of a lock with this holder, None in a hand-over, and this much of its ttl left."""
    if holder is not None and holder.queued:
        return "queued"
    if kept_for(holder) is not None:
        return "kept"
    # Nobody need extend a `RedisLock`.
    is_extended = holder is not None and holder.task is not None
    if is_extended and lives_for is not None and ttl is not None:
        return "silent" if ttl - lives_for > BEAT * ttl + LATE else "held"
    return "held"


def kept_for(holder: Holder | None) -> KeptFor | None:
    """For what a lock is kept; None if a run holds it, or a message in the queue has it."""
    if holder is None:
        return "a waiter"
    if holder.held_for_retry:
        return "its retry"
    return "a pause" if holder.cooling_down else None


def awaited_state(wait_for_quiet: bool, untaken: int, overdue: float) -> State:
    """The state of a lock that nobody has, and for which tasks wait: see `rooms.Room`."""
    if wait_for_quiet:
        return "waits for quiet"
    # If nobody looks after the room, nobody offers the tasks to workers that could take them.
    return "not taken" if untaken and overdue < NOBODY_LOOKS else "free"
