"""A claim to a lock, and what the server answers to it. Does no I/O."""

# No `from __future__ import annotations`: with it a `NamedTuple` takes twice as long to make.
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
    """One delivery's claim to a lock. Nothing changes it."""

    keys: LockKeys
    token: str  # 128 random bits that prove the claim, as hex digits
    ttl: float  # seconds that the lock outlives its holder
    value: str  # the holder record to store
    task_id: str = ""
    attempt: int = 0  # the task's retries
    nesting: int = 0  # how often the task replaced itself, with the same id and retries
    done_ttl: float = DONE_TTL  # seconds for which a finished attempt is remembered
    kept: str = ""  # the token under which the lock is kept for the message, or ""
    member: str = ""  # in the room that the message came from, see `scripts/entries.lua`; or ""
    parent: str = ""  # the id of the task that may have replaced itself with this one, or ""
    sent: str = ""  # the identity of the message, the same for all its copies; "" if it has none
    task: str = ""  # the task's name, or "" for a `RedisLock`
    history: int = 0  # how many runs the lock's bucket keeps in its history; 0 records no run
    turned_away: bool = False  # if the lock is busy at the first try, the task ends without a run
    entry_id: str = dataclasses.field(init=False)  # of this attempt of the task, in a waiting room
    done_key: str = dataclasses.field(init=False)  # of its done note
    runs_key: str = dataclasses.field(init=False)  # of its task's runs in the bucket's history
    opening: str = dataclasses.field(init=False)  # of a value that this claim stored

    def __post_init__(self) -> None:
        self.entry_id = ENTRY_ID % (self.task_id, self.nesting, self.attempt)
        self.done_key = NOTE_KEY % (self.keys.done, self.entry_id)
        self.runs_key = RUNS_KEY % (self.keys.history, self.task)
        self.opening = OPENING % self.token


class Place(NamedTuple):
    """A task's place in a waiting room."""

    member: str  # see `scripts/entries.lua`
    entry_id: str  # if another task has the member by now, the place is lost
    receipt: str = ""  # if the task has another one there by now, likewise; "" if not known


class Offered(NamedTuple):
    """A task of a waiting room whose message must be published now."""

    place: Place
    entry: str  # the parked message, as text
    arrived: float | None  # Unix time of the task's arrival, by the lock server's clock, if known
    gives_up: bool  # its time to wait is over
    since: float  # seconds since it was first published; 0 if it was not


class Acquired(NamedTuple):
    """The lock is ours."""

    value: str
    fence: int
    sent_at: float


class Settled(NamedTuple):
    """The answer to `calls.settle`."""

    ours: bool  # the lock, or what was kept for the message, was ours
    due_in: float | None = None  # seconds until the next look at the room; None if it is empty
    offered: Offered | None = None  # to publish now


class Reservation(NamedTuple):
    """A lock is kept for a message in the queue."""

    token: str  # under which the lock is kept
    task_id: str  # of the message's task
    since: float  # Unix time by the lock server's clock


class Busy(NamedTuple):
    """Somebody else has the lock."""

    holder: Holder | None
    remaining: float  # seconds until the lock expires if the holder dies now
    relation: str  # how the holder is related to the claim's task, see `acquire.lua`
    at: float = 0.0  # Unix time of the reply, by the lock server's clock
    sent_at: float = 0.0  # when the request was sent, on `clock`
    offered: Offered | None = None  # to publish now
    #: The lock is kept for a message in the queue, or for a retry, or the task is suspended, which
    #: may take long.
    for_message: bool = False
    reservation: Reservation | None = None  # what keeps the lock; only for a sender
    suspension: Suspension | None = None  # keeps the task from a lock that it could have


class Done(NamedTuple):
    """The claim's own attempt ended `age` seconds ago, or must not run."""

    note: Note
    age: float


class Parking(NamedTuple):
    """How a task is put into a waiting room."""

    entry: str  # the task's message, as text, to publish it again
    #: Its member in the room, if not its entry id: a pending slot, see `entries.slot_of`. The
    #: newest task replaces the one that has the slot. A task that is in the room already keeps the
    #: member that it has.
    member: str = ""
    limit: int | None = None  # how many may wait; None for any number
    give_up: float | None = None  # seconds for which the task waits; None for ever
    in_front: bool = False  # put the task before all others, not after them
    #: A `holders.successor_text` that names this task to those that it replaces; and the seconds
    #: after which the holder is ended, None to leave the holder alone.
    replace: tuple[str, float | None] | None = None
    #: Unix time of the task's arrival by the lock server's clock, to tell which of two tasks is
    #: newer; None if only its age is known.
    arrived: float | None = None
    received: float | None = None  # when a worker received the task, on `clock`, if known
    #: Which worker received it and when, by which the server tells the order of two of one worker,
    #: if that is known; and which delivery it is: see `scripts/entries.lua`.
    receipt: str = ""
    #: Seconds without a newer task in the slot after which it is published, and seconds since the
    #: slot's first task after which it is published in any case.
    quiet: tuple[float, float] | None = None
    in_doubt: bool = False  # a request of its delivery for the lock may still be on its way


class Parked(NamedTuple):
    """The task waits in the room."""

    replaced: dict[str, str]  # the entries that it replaced, by their ids
    offered: Offered | None = None  # to publish now
    due_in: float | None = None  # seconds until the next look at the waiting room
    holder: Holder | None = None  # who has the lock, or one of its slots
    suspension: Suspension | None = None  # what keeps the task from the lock


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
    """The answer to `rooms.look`."""

    due_in: float | None  # seconds until the next look; None if the room is empty
    offered: Offered | None  # to publish now
    too_long: list[str]  # members of the room that no worker took for too long
    #: Replaced entries that may have no result yet: the task id of the successor and the parked
    #: message, by entry ids.
    ended: dict[str, tuple[str, str]]


class Extension(NamedTuple):
    """What one lock's extension needs."""

    claim: Claim
    stored: str  # the value as the server has it; its opening is enough if `retake` is False
    fence: int
    retake: bool  # take the lock again if it has vanished
    #: The bucket's fence counter when the lock was last known to be ours. If it has since risen,
    #: another run may have had a lock that vanished: the lock is not taken again.
    counter: int = 0
    #: Seconds after which the server no longer extends the lock, for a caller that does not know
    #: when the lock was acquired; None if the holder itself counts them.
    max_hold: float | None = None
    description: str | None = None  # what the body says of itself; None if it has said nothing


class Extended(NamedTuple):
    """The reply to an extension."""

    outcome: int  # `EXTENDED`, `RETAKEN` or `NOT_OURS`
    counter: int  # the bucket's fence counter
    replaced_by: Holder | None = None  # the newer run that waits for this one to end
    ends_in: float = 0.0  # seconds after which this run is ended for the newer one
    broken_by: str | None = None  # who broke the lock; "" if not known; None if nobody did
    is_repaired: bool = False  # some independent servers had lost the lock and took it again

    @property
    def takes_again(self) -> bool:
        """Whether a lock that had vanished was taken again: perhaps one that was given back."""
        return self.outcome == RETAKEN or self.is_repaired
