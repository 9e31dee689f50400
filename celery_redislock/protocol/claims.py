"""A claim to a lock, and what the server answers to it. Does no I/O."""

# No `from __future__ import annotations`: with it `NamedTuple` compiles each annotation again,
# which doubles the time to make the class.
import dataclasses
import math
from functools import lru_cache
from typing import Final, NamedTuple

from .entries import ENTRY_ID
from .holders import OPENING, Holder
from .keys import NOTE_KEY, RUNS_KEY, LockKeys
from .notes import DONE_TTL, Note
from .suspensions import Suspension

#: The outcome of an extension: extended, taken again after it vanished, or no longer ours.
EXTENDED: Final = 1
RETAKEN: Final = 2
NOT_OURS: Final = 0


@lru_cache
def to_ms(seconds: float) -> int:
    return max(1, math.ceil(seconds * 1000))


# Not frozen: a frozen claim would take six times as long to make.
@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Claim:
    """One delivery's claim to a lock. Nothing changes it.

    Attributes:
        keys: the lock's keys.
        token: 128 random bits that prove the claim, as hex digits.
        ttl: seconds that the lock outlives its holder.
        value: the holder record to store.
        task_id: the task's id, or "".
        attempt: the task's retries.
        nesting: how often the task replaced itself: the replacement has the same id and retries.
        kept: if the lock is kept for the message, the token that it is kept under; else "".
        member: the task's member in the waiting room from which its message was sent, see
            `scripts/entries.lua`; or "".
        parent: the id of the task that may have replaced itself with this one, or "".
        sent: the identity of the message, the same for all its copies; "" if it has none.
        done_ttl: seconds for which a finished attempt is remembered.
        task: the task's name, or "" for a `RedisLock`.
        history: how many runs the lock's bucket keeps in its history; 0 records no run.
        turned_away: if the lock is busy at the first try, the task ends without a run.
        entry_id: the id of this attempt of the task in a waiting room.
        done_key: the key of its done note.
        runs_key: the key of its task's runs in the bucket's history.
        opening: how a value that this claim stored begins. The scripts compare it.
    """

    keys: LockKeys
    token: str
    ttl: float
    value: str
    task_id: str = ""
    attempt: int = 0
    nesting: int = 0
    done_ttl: float = DONE_TTL
    kept: str = ""
    member: str = ""
    parent: str = ""
    sent: str = ""
    task: str = ""
    history: int = 0
    turned_away: bool = False
    entry_id: str = dataclasses.field(init=False)
    done_key: str = dataclasses.field(init=False)
    runs_key: str = dataclasses.field(init=False)
    opening: str = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.entry_id = ENTRY_ID % (self.task_id, self.nesting, self.attempt)
        self.done_key = NOTE_KEY % (self.keys.done, self.entry_id)
        self.runs_key = RUNS_KEY % (self.keys.history, self.task)
        self.opening = OPENING % self.token


class Place(NamedTuple):
    """A task's place in a waiting room.

    Attributes:
        member: its member in the room, see `scripts/entries.lua`.
        entry_id: the entry's id: if another task has the member by now, the place is lost.
    """

    member: str
    entry_id: str


class Offered(NamedTuple):
    """A task of a waiting room whose message must be published now.

    Attributes:
        place: its place in the room.
        entry: the parked message, as text.
        arrived: Unix time of the task's arrival, by the lock server's clock; None if not known.
        gives_up: its time to wait is over.
        since: seconds since it was first published; 0 if it was not.
    """

    place: Place
    entry: str
    arrived: float | None
    gives_up: bool
    since: float


class Acquired(NamedTuple):
    """The lock is ours."""

    value: str
    fence: int
    sent_at: float


class Settled(NamedTuple):
    """The answer to `calls.settle`.

    Attributes:
        ours: the lock, or what was kept for the message, was ours.
        due_in: seconds until the next look at the waiting room; None if it is empty.
        offered: the entry to publish now, or None.
    """

    ours: bool
    due_in: float | None = None
    offered: Offered | None = None


class Reservation(NamedTuple):
    """A lock is kept for a message in the queue.

    Attributes:
        token: the token that the lock is kept under.
        task_id: the id of the message's task.
        since: when this began, as Unix time by the lock server's clock.
    """

    token: str
    task_id: str
    since: float


class Busy(NamedTuple):
    """Somebody else has the lock.

    Attributes:
        holder: who has the lock.
        remaining: seconds until the lock expires if the holder dies now.
        relation: how the holder is related to the claim's task, see `acquire.lua`.
        at: Unix time of the reply, by the lock server's clock.
        sent_at: when the request was sent, on `clock`.
        offered: the entry of the waiting room to publish now, or None.
        for_message: the lock is kept for a message in the queue, or for a retry, or the task is
            suspended, which may take long.
        reservation: the message that the lock is kept for, if a sender asked; or None.
        suspension: what keeps the task from the lock, which it could have else; or None.
    """

    holder: Holder | None
    remaining: float
    relation: str
    at: float = 0.0
    sent_at: float = 0.0
    offered: Offered | None = None
    for_message: bool = False
    reservation: Reservation | None = None
    suspension: Suspension | None = None


class Done(NamedTuple):
    """The claim's own attempt ended `age` seconds ago, or must not run."""

    note: Note
    age: float


class Parking(NamedTuple):
    """How a task is put into a waiting room.

    Attributes:
        entry: the task's message, as text, to publish it again.
        member: its member in the room, if not its entry id: a pending slot, see `entries.slot_of`.
            The newest task replaces the one that has the slot. A task that is in the room already
            keeps the member that it has.
        limit: how many may wait; None for any number.
        give_up: seconds for which the task waits; None for ever.
        in_front: put the task before all others, not after them.
        replace: a `holders.successor_text` that names this task to those that it replaces; and the
            seconds after which the holder is ended, None to leave the holder alone.
        arrived: Unix time of the task's arrival by the lock server's clock, to tell which of two
            tasks is newer; None if only its age is known.
        received: when a worker received the task, on `clock`; None if that is not known.
        receipt: which worker received it and when, by which the server tells the order of two of
            one worker; "" if that is not known.
        quiet: seconds without a newer task in the slot after which it is published, and seconds
            since the slot's first task after which it is published in any case; or None.
        in_doubt: a request of its delivery for the lock may still be on its way.
    """

    entry: str
    member: str = ""
    limit: int | None = None
    give_up: float | None = None
    in_front: bool = False
    replace: tuple[str, float | None] | None = None
    arrived: float | None = None
    received: float | None = None
    receipt: str = ""
    quiet: tuple[float, float] | None = None
    in_doubt: bool = False


class Parked(NamedTuple):
    """The task waits in the room.

    Attributes:
        replaced: the entries that it replaced, by their ids.
        offered: the entry to publish now, or None.
        due_in: seconds until the next look at the waiting room.
        holder: who has the lock, or one of its slots; None if nobody has it.
        suspension: what keeps the task from the lock; or None.
    """

    replaced: dict[str, str]
    offered: Offered | None = None
    due_in: float | None = None
    holder: Holder | None = None
    suspension: Suspension | None = None


class Free(NamedTuple):
    """The task need not wait: the lock is free, or this very task has it. Acquire it now."""

    replaced: dict[str, str]


class Reserved(NamedTuple):
    """The lock is kept for a message that is about to be sent."""


class Older(NamedTuple):
    """The task would replace a newer one: the waiting task with this id, or the lock's holder."""

    task_id: str
    holder: Holder | None = None


class Full(NamedTuple):
    """The waiting room is full."""


class Look(NamedTuple):
    """The answer to `rooms.look`.

    Attributes:
        due_in: seconds until the next look; None if the room is empty.
        offered: the entry to publish now, or None.
        too_long: members of the room that no worker took for too long.
        ended: replaced entries that may have no result yet: the task id of the successor and the
            parked message, by entry ids.
    """

    due_in: float | None
    offered: Offered | None
    too_long: list[str]
    ended: dict[str, tuple[str, str]]


class Extension(NamedTuple):
    """What one lock's extension needs.

    Attributes:
        claim: the claim that has the lock.
        stored: the value as the server has it; its opening is enough if `retake` is False.
        fence: the acquisition's fence.
        retake: take the lock again if it has vanished.
        counter: the bucket's fence counter when the lock was last known to be ours. If it has since
            risen, another run may have had a lock that vanished: the lock is not taken again.
        max_hold: seconds after which the server no longer extends the lock, for a caller that does
            not know when the lock was acquired; None if the holder itself counts them.
        description: what the body says of itself; None if it has said nothing.
    """

    claim: Claim
    stored: str
    fence: int
    retake: bool
    counter: int = 0
    max_hold: float | None = None
    description: str | None = None


class Extended(NamedTuple):
    """The reply to an extension.

    Attributes:
        outcome: `EXTENDED`, `RETAKEN` or `NOT_OURS`.
        counter: the bucket's fence counter.
        replaced_by: the newer run that waits for this one to end, or None.
        ends_in: seconds after which this run is ended for the newer one.
        broken_by: the operator who broke the lock; "" if not known; None if nobody did.
        is_repaired: of independent servers, some had not the lock any more and took it again.
    """

    outcome: int
    counter: int
    replaced_by: Holder | None = None
    ends_in: float = 0.0
    broken_by: str | None = None
    is_repaired: bool = False

    @property
    def takes_again(self) -> bool:
        """Whether a lock that had vanished was taken again: perhaps one that was given back."""
        return self.outcome == RETAKEN or self.is_repaired
