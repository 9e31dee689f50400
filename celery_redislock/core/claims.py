"""A claim to a lock, and what the server answers to it. Pure."""

from __future__ import annotations

import dataclasses
import math
import os
from functools import lru_cache
from typing import Final, NamedTuple

from . import parked
from .holders import Holder, opening_of
from .keys import LockKeys, runs_of
from .notes import Note

#: Seconds for which a finished attempt is remembered, against copies of its message that were
#: delivered before it ended.
DONE_TTL: Final = 600.0
#: What came of an extension: extended, taken again since it had vanished, or another has it.
EXTENDED: Final = 1
RETAKEN: Final = 2
NOT_OURS: Final = 0


def new_token() -> str:
    """A token: 128 random bits as hex digits."""
    return os.urandom(16).hex()  # what `secrets` does, whose import takes milliseconds


@lru_cache
def to_ms(seconds: float) -> int:
    return max(1, math.ceil(seconds * 1000))


# Frozen, one would take six times as long to make.
@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Claim:
    """One delivery's claim to a lock. Never changed.

    Attributes:
        keys: the lock's keys.
        token: 128 random bits that prove the claim, as hex digits.
        ttl: seconds that the lock outlives its holder.
        value: the holder record to store.
        task_id: the task's id, or "".
        attempt: the task's retries.
        nesting: how often the task replaced itself: the replacement has the same id and retries.
        kept: the token under which the lock is kept for the message, or "".
        parked: the message was sent from a waiting room.
        parent: the id of the task that this one may have been put in the place of, or "".
        sent: the identity of the message, "" if it has none. All copies of it have the same.
        done_ttl: seconds for which a finished attempt is remembered.
        task: the task's name, or "" for a `RedisLock`.
        history: how many runs the lock's bucket keeps in its history, in which the run is then
            written down; 0 for none.
        turned_away: if the lock is busy when it is first asked for, the task ends without a run.
        entry_id: what this attempt of its task is called in a waiting room.
        done_key: the key of its done marker.
        runs_key: that of the runs of its task in the bucket's history.
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
    parked: bool = False
    parent: str = ""
    sent: str = ""
    task: str = ""
    history: int = 0
    turned_away: bool = False
    entry_id: str = dataclasses.field(init=False)
    done_key: str = dataclasses.field(init=False)
    runs_key: str = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.entry_id = parked.id_of(self.task_id, self.nesting, self.attempt)
        self.done_key = self.keys.done_by(self.entry_id)
        self.runs_key = runs_of(self.keys.history, self.task)

    @property
    def opening(self) -> str:
        """How a value that this claim stored begins. The scripts compare it."""
        return opening_of(self.token)

    @property
    def ttl_ms(self) -> int:
        return to_ms(self.ttl)


class Offered(NamedTuple):
    """Somebody in a waiting room who has the turn, or gives up: its message is to be published.

    Attributes:
        entry_id: its id.
        entry: what was parked.
        token: under which the lock is kept for it; "" if it gives up.
        arrived: Unix time of its arrival, by the lock server's clock; None if that is not known.
        publish: the message is to be published. If not, a worker has it, or others publish it.
        again: it was offered before.
    """

    entry_id: str
    entry: str
    token: str
    arrived: float | None
    publish: bool
    again: bool

    @property
    def gives_up(self) -> bool:
        """Whether it waited for as long as it would."""
        return not self.token


class Acquired(NamedTuple):
    """The lock is ours."""

    value: str
    fence: int
    sent_at: float


class Settled(NamedTuple):
    """What settling met.

    Attributes:
        ours: the lock, or what was kept for the message, was ours.
        due_in: seconds after which the waiting room is to be looked at; None if it is empty.
        offered: who in the room has the turn now, or None.
    """

    ours: bool
    due_in: float | None = None
    offered: Offered | None = None


class Busy(NamedTuple):
    """Somebody else has the lock, for `remaining` seconds if they die now.

    Attributes:
        holder: who has it.
        remaining: seconds.
        relation: see `acquire.lua`.
        at: Unix time of the answer, by the lock server's clock.
        sent_at: when the question was sent, on `clock`.
        offered: who in the waiting room got the turn by this question, or None.
        for_message: it is kept for a message in the queue, be it a retry, for as long as that may
            take. A turn, which is kept for seconds, is not meant.
    """

    holder: Holder | None
    remaining: float
    relation: str
    at: float = 0.0
    sent_at: float = 0.0
    offered: Offered | None = None
    for_message: bool = False


class Done(NamedTuple):
    """The very same attempt has ended, `age` seconds ago, or is not to run."""

    note: Note
    age: float


class Parked(NamedTuple):
    """The task waits in the room, instead of those that it replaced: entries by their ids."""

    replaced: dict[str, str]
    offered: Offered | None = None
    due_in: float | None = None


class Turn(NamedTuple):
    """It need not wait: the lock is free, or this very task's. Ask for it again."""

    replaced: dict[str, str]


class Reserved(NamedTuple):
    """The lock is kept for a message that is about to be sent."""


class Older(NamedTuple):
    """What it would replace is newer: the task with that id, or who holds the lock."""

    task_id: str
    holder: Holder | None = None


class Full(NamedTuple):
    """As many wait as may."""


class Look(NamedTuple):
    """What a look at a waiting room found.

    Attributes:
        due_in: seconds after which to look again; None if the room is empty.
        offered: who is to be published now, or None.
        aside: the ids of those that were set aside.
        ended: by their ids, what was replaced and may have no result yet: the task id of the
            successor, and the entry.
    """

    due_in: float | None
    offered: Offered | None
    aside: list[str]
    ended: dict[str, tuple[str, str]]


class Stored(NamedTuple):
    """What is stored under a key.

    Attributes:
        exists: something is.
        value: its text, or None if it is no string.
        left: milliseconds to live, -1 for ever.
    """

    exists: bool
    value: bytes | None
    left: int


class Extension(NamedTuple):
    """What one lock's extension needs.

    Attributes:
        claim: the claim.
        stored: the value as the server has it; its opening is enough if `retake` is False.
        fence: the acquisition's fence.
        retake: take the lock again if it has vanished.
        counter: the bucket's counter when the lock was last known to be ours. If a lock that
            vanished may have been another's since, it is not taken again.
        max_hold: seconds after which it is not extended any more, counted by the server, for one
            who does not know since when it is held; None if the holder itself counts.
    """

    claim: Claim
    stored: str
    fence: int
    retake: bool
    counter: int = 0
    max_hold: float | None = None


class Extended(NamedTuple):
    """What an extension met.

    Attributes:
        outcome: `EXTENDED`, `RETAKEN` or `NOT_OURS`.
        counter: the bucket's counter.
        replaced_by: who waits for the run to end, or None.
        ends_in: seconds after which it is ended, in that one's favour.
        broken_by: who broke the lock, an operator; "" if that is not known; None if nobody did.
    """

    outcome: int
    counter: int
    replaced_by: Holder | None = None
    ends_in: float = 0.0
    broken_by: str | None = None
