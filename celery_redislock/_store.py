"""The only place that speaks Redis: one method for each script in `scripts/`.

What must get through, such as `acquire` and `release`, is tried again, within bounds that come from
the lock's ttl; the rest is tried once, and whoever calls it decides. Whatever goes wrong on the way
leaves here as `LockUnavailable`: busy, lost and broken stay three things.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import pkgutil
import re
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any, Final, NamedTuple, TypeVar

from redis.exceptions import (
    BusyLoadingError,
    MasterDownError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from . import _holder
from ._clock import clock
from ._connect import Connections, PoolFactory, pack
from ._holder import Holder
from ._keys import LockKeys
from .errors import LockUnavailable

T = TypeVar("T")

#: Seconds for which a finished attempt is remembered, against copies of its message that were
#: delivered before it ended.
DONE_TTL: Final = 600.0
#: Seconds for which a freed lock is kept for a waiter.
RESERVE: Final = 0.1
#: The longest single block on a wake list, in seconds.
MAX_BLOCK: Final = 5.0
#: Seconds after which a waiter that has not asked again is taken for dead.
WAITER_TTL: Final = MAX_BLOCK + 2.0
#: Seconds after which others finish what whoever handed a lock over, or replaced an entry of a
#: waiting room, has left undone. Doubled each time, up to `HAND_OVER_MOST`.
HAND_OVER_AGAIN: Final = 5.0
HAND_OVER_MOST: Final = 600.0
#: How many keys one step of a scan looks at: well below a millisecond of the server's time.
SCAN_COUNT: Final = 500
#: How many entries of a waiting room are dropped in one step.
DROP_COUNT: Final = 500
#: What a ttl would be, for one who only looks: it says how long the server may take to answer.
LOOKING: Final = 12.0
#: The longest that an acquire or release goes on trying to reach the server, in seconds.
MAX_TRYING: Final = 2.0


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
        reservation: the token under which the lock was kept when the message was sent, or "".
        done_ttl: seconds for which a finished attempt is remembered.
        entry_id: what this attempt of its task is called in a waiting room.
        done_key: the key of its done marker.
    """

    keys: LockKeys
    token: str
    ttl: float
    value: str
    task_id: str = ""
    attempt: int = 0
    nesting: int = 0
    done_ttl: float = DONE_TTL
    reservation: str = ""
    entry_id: str = dataclasses.field(init=False)
    done_key: str = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.entry_id = f"{self.task_id}:{self.nesting}.{self.attempt}"
        self.done_key = self.keys.done_by(self.entry_id)

    @property
    def opening(self) -> str:
        """How a value that this claim stored begins. The scripts compare it."""
        return opening_of(self.token)

    @property
    def ttl_ms(self) -> int:
        return to_ms(self.ttl)


class Acquired(NamedTuple):
    """The lock is ours. `room_waits`: several may hold it, and the next in the room may, too."""

    value: str
    fence: int
    sent_at: float
    room_waits: bool = False


class Released(NamedTuple):
    """What a release met.

    Attributes:
        ours: the lock was ours.
        room_waits: somebody is in its waiting room: call `Store.hand_over`.
    """

    ours: bool
    room_waits: bool


class Busy(NamedTuple):
    """Somebody else has the lock, for `remaining` seconds if they die now.

    `streak`: if it was counted as turned away, the how many-th in a row it is; else None.
    """

    holder: Holder | None
    remaining: float
    relation: str
    token: str = ""
    streak: int | None = None

    @property
    def is_for_queued(self) -> bool:
        """Whether it is kept for a message that waits in its queue."""
        return self.holder is not None and self.holder.queued


class Done(NamedTuple):
    """The very same attempt has already run; `age` is the seconds since it ended. Or it was
    replaced before it ran.
    """

    expects_result: bool
    age: float
    replaced_by: Holder | None = None


class Parked(NamedTuple):
    """The task waits in the room, instead of those that it replaced: entries by their ids."""

    replaced: dict[str, str]


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


class Next(NamedTuple):
    """What is to be published now. See `Store.hand_over`.

    Attributes:
        entry_id: who is first in the room and has its turn, or "".
        entry: what was parked.
        gives_up: it waited for as long as it would.
        ended: by their ids, what was replaced and may have no result yet: the task id of the
            successor, and the entry.
    """

    entry_id: str
    entry: str
    gives_up: bool
    ended: dict[str, tuple[str, str]]


class Standing(NamedTuple):
    """What stands under a key.

    Attributes:
        exists: something does.
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
        stored: the value as it stands on the server; its opening is enough if `retake` is False.
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
    """

    outcome: int
    counter: int
    replaced_by: Holder | None = None
    ends_in: float = 0.0


EXTENDED: Final = 1
RETAKEN: Final = 2
NOT_OURS: Final = 0


def opening_of(token: str) -> str:
    return f'{{"token":"{token}"'


@lru_cache
def to_ms(seconds: float) -> int:
    return max(1, math.ceil(seconds * 1000))


def patience(ttl: float) -> float:
    """Seconds within which the last try to reach the server begins, so that it ends within
    ttl / 3.
    """
    return min(ttl / 3 - operation_timeout(ttl), MAX_TRYING)


@lru_cache
def operation_timeout(ttl: float) -> float:
    """Seconds that one command may take: far below ttl / 3, in steps, to share connections."""
    return min(max(math.ceil(ttl / 12 * 20) / 20, 0.1), 1.0)


class _Script:
    """A script of `scripts/`, read when it is first used: a sender of tasks needs none."""

    def __init__(self, name: str) -> None:
        self._name = name

    @cached_property
    def text(self) -> str:
        own = _source(self._name)
        return re.sub(r"(?m)^-- include (\w+)\.lua$", lambda found: _source(found[1]), own)

    @cached_property
    def sha(self) -> str:
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


def _source(name: str) -> str:
    # importlib.resources would take as long to import as the rest of this module.
    data = pkgutil.get_data(__package__, f"scripts/{name}.lua")
    assert data is not None
    return data.decode()


_ACQUIRE, _EXTEND, _RELEASE, _HOLD, _BREAK = map(
    _Script, ("acquire", "extend", "release", "hold", "break")
)
_PARK, _HAND_OVER, _STREAK, _RESERVE = map(_Script, ("park", "hand_over", "streak", "reserve"))
_DROP = _Script("drop")


class ServerWatch:
    """Notices that the server is not the one that we talked to before.

    A server that came back empty, or a promoted replica, has forgotten locks that are held. Their
    holders take them again within ttl / 3; until then nobody may take a new lock: a client-side
    form of the delayed restart of https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
    """

    def __init__(self) -> None:
        self._run_id: str | None = None
        self._last_contact = 0.0
        self._broken = False
        self._changed_at: float | None = None
        self._connected: weakref.WeakSet[Any] = weakref.WeakSet()

    def on_connect(self, connection: Any) -> None:
        """Set up a new connection and learn which server it leads to."""
        connection.on_connect()
        run_id, uptime = _identity(connection)
        now = clock()
        # It may say one too many, as the difference of two whole numbers of seconds.
        started_at = now - max(uptime - 1, 0.0)
        if run_id is None:
            # It does not tell which it is: whenever a connection broke it may be another.
            if self._broken or connection in self._connected:
                self._changed_at = now
        elif self._run_id is None:
            # The first that this process sees. If it was away before, it may have forgotten.
            if self._broken:
                self._changed_at = started_at
        elif run_id != self._run_id:
            # A server younger than our last contact was restarted; an older one was promoted,
            # and there is no telling when.
            restarted = uptime < now - self._last_contact
            self._changed_at = started_at if restarted else now
        self._connected.add(connection)
        self._run_id = run_id
        self._broken = False
        self._last_contact = now

    def answered(self, at: float) -> None:
        self._last_contact = at

    def failed(self, error: BaseException) -> None:
        self._broken = self._broken or not isinstance(error, ResponseError)
        if isinstance(error, BusyLoadingError):
            self._changed_at = clock()

    def admit(self, ttl: float) -> None:
        """Go on only if a new lock with this ttl may be taken.

        Raises:
            _HeldOff: not yet.
        """
        if self._changed_at is None:
            return
        left = self._changed_at + ttl / 3 - clock()
        if left > 0:
            raise _HeldOff(left)


def _identity(connection: Any) -> tuple[str | None, float]:
    """The server's run id and its uptime in seconds; no run id if it does not tell."""
    try:
        connection.send_command("INFO", "server", check_health=False)
        fields = _info(connection.read_response())
    except ResponseError:  # an ACL may deny INFO
        return None, 0.0
    return fields.get("run_id"), float(fields.get("uptime_in_seconds", 0))


def _info(reply: bytes) -> dict[str, str]:
    return dict(line.split(":", 1) for line in reply.decode().splitlines() if ":" in line)


class Store:
    """The locks of one server, under one prefix.

    Args:
        pools: makes connection pools to the server.
    """

    def __init__(self, pools: PoolFactory) -> None:
        self._make_pool = pools
        self._connections: dict[tuple[str, float], Connections] = {}
        self.watch = ServerWatch()

    # -- taking ---------------------------------------------------------------------------

    def acquire(
        self,
        claim: Claim,
        how: str = "try",
        hold_off: float | None = None,
        again: bool = False,
        turned_away: bool = False,
        noted: bool = False,
    ) -> Acquired | Busy | Done:
        """Take the lock or learn why not.

        Args:
            claim: the claim. Asking again with the same one is safe.
            how: "try" once, "wait", "woken" after a wait, or "last" before giving up a wait. Who
                waits leaves a lock alone that is kept for one who was woken.
            hold_off: seconds that the caller can wait for the holders of a restarted server;
                None for as long as that takes, a third of the ttl.
            again: run also if this attempt is known to have run before.
            turned_away: if another has it the task ends without a run: count that.
            noted: and leave the done marker, as `mark_done`.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        away = "" if not turned_away else to_ms(claim.done_ttl) if noted else 0
        keys, arguments = _acquire_question(claim, how, again, away)
        give_up = clock() + (claim.ttl / 3 + 1 if hold_off is None else hold_off)
        while True:
            try:
                sent_at, reply = self._persist(
                    self._once, claim.ttl, _ACQUIRE, keys, arguments, True
                )
                return _acquire_reply(reply, claim, sent_at)
            except _HeldOff as exc:
                if clock() + exc.seconds > give_up:
                    raise exc.for_users(claim.keys.lock) from None
                pause = exc.seconds
            time.sleep(pause)

    def acquire_when_woken(
        self, claim: Claim, seconds: float, how: str = "woken"
    ) -> Acquired | Busy | Done:
        """Block until the lock is handed on, or this many seconds (at most `MAX_BLOCK`), and take
        it then or learn why not. See `acquire`.

        The two are sent together: the server comes to the second when the first has ended, so that
        whoever is woken has the lock without another round trip. One that nobody woke asks as if it
        were: at worst it takes what is kept for another, who then waits on.

        Raises:
            LockUnavailable: the server did not answer in time, or has just come back.
        """
        keys, arguments = _acquire_question(claim, how, again=False, away="")
        try:
            with self._connection(claim.keys.lock, claim.ttl, "wait") as connection:
                self.watch.admit(claim.ttl)
                sent_at = clock()
                reply = self._sleep_and_call(connection, claim, seconds, keys, arguments)
                self.watch.admit(claim.ttl)  # another thread may have met a new server meanwhile
        except _HeldOff as exc:
            raise exc.for_users(claim.keys.lock) from None
        return _acquire_reply(reply, claim, sent_at)

    def _sleep_and_call(
        self,
        connection: Any,
        claim: Claim,
        seconds: float,
        keys: Sequence[str],
        arguments: Sequence[Any],
    ) -> Any:
        seconds = max(min(seconds, MAX_BLOCK), 0.01)
        sleep = pack(("BLPOP", claim.keys.wake, f"{seconds:.3f}"))
        connection.send_packed_command([sleep + pack(_evalsha(_ACQUIRE, keys, arguments))])
        if not connection.can_read(seconds + operation_timeout(claim.ttl)):
            raise RedisTimeoutError("the server does not end a wait")
        slept, reply = _read(connection), _read(connection)
        if isinstance(reply, NoScriptError):
            return self._call(connection, _ACQUIRE, keys, arguments)
        if isinstance(reply, ResponseError):
            raise reply
        if isinstance(slept, ResponseError) and reply[0] == b"busy":
            raise slept  # who did not sleep must not ask again at once
        return reply

    # -- while a message is in the queue --------------------------------------------------

    def reserve(self, claim: Claim, seconds: float) -> Reserved | Busy:
        """Keep the lock for a message that is about to be sent, or learn who has it.

        Raises:
            LockUnavailable: the server did not answer in time, or it has just come back, and
                who holds its locks is not known yet.
        """
        keys = (claim.keys.lock, claim.keys.room, *claim.keys.slots)
        arguments = (claim.value, len(claim.opening), to_ms(seconds))
        try:
            _, reply = self._persist(self._once, claim.ttl, _RESERVE, keys, arguments, True)
        except _HeldOff as exc:
            raise exc.for_users(claim.keys.lock) from None
        return _reserve_reply(reply)

    def keep_reserved(self, claim: Claim, seconds: float) -> bool:
        """Let a reservation stand for so many seconds. False if it does not stand any more.

        Raises:
            LockUnavailable: the server did not answer.
        """
        kept = dataclasses.replace(claim, ttl=seconds)
        extension = Extension(kept, claim.opening, 0, retake=False)
        (reply,) = self.extend([extension], claim.ttl, "main")
        if isinstance(reply, LockUnavailable):
            raise reply
        return bool(reply.outcome != NOT_OURS)

    # -- keeping --------------------------------------------------------------------------

    def extend(
        self,
        extensions: Sequence[Extension],
        ttl: float | None = None,
        purpose: str = "heartbeat",
    ) -> list[Any]:
        """Extend several locks in one round trip.

        Args:
            extensions: the locks.
            ttl: the ttl, in seconds, that says how long the server may take to answer; None for
                the shortest of these locks.
            purpose: whose connections to use.

        Returns:
            For each: `Extended`, or the `LockUnavailable` that it met.

        Raises:
            LockUnavailable: none of them could be asked for.
        """
        calls = [
            (
                (keys.lock, keys.fence, keys.broken, *keys.slots),
                (
                    *(e.stored, len(e.claim.opening), e.claim.ttl_ms, int(e.retake), e.fence),
                    *("" if e.max_hold is None else to_ms(e.max_hold), e.counter),
                ),
            )
            for e in extensions
            for keys in (e.claim.keys,)
        ]
        ttl = min(e.claim.ttl for e in extensions) if ttl is None else ttl
        with self._connection(extensions[0].claim.keys.lock, ttl, purpose) as connection:
            commands = [_evalsha(_EXTEND, keys, arguments) for keys, arguments in calls]
            connection.send_packed_command([b"".join(map(pack, commands))])
            replies = [_read(connection) for _ in calls]
            again = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
            if again:
                commands = [_evalsha(_EXTEND, *calls[i]) for i in again]
                commands[0] = _eval(_EXTEND, *calls[again[0]])  # the others find it there
                connection.send_packed_command([b"".join(map(pack, commands))])
                for i in again:
                    replies[i] = _read(connection)
            if any(_is_not_master(reply) for reply in replies):
                connection.disconnect()
        return [
            LockUnavailable(e.claim.keys.lock, None, str(reply))
            if isinstance(reply, Exception)
            else _extend_reply(reply)
            for e, reply in zip(extensions, replies, strict=True)
        ]

    # -- giving back ----------------------------------------------------------------------

    def release(
        self,
        claim: Claim,
        done: str = "",
        always: bool = False,
        once: bool = False,
        min_hold: float = 0.0,
        stray: bool = False,
    ) -> Released:
        """Give the lock back if it is still this claim's. Safe to call again.

        Args:
            claim: the claim.
            done: "1" the attempt ran and its result is to be expected, "0" it ran and leaves
                none, "" it did not run to its end.
            always: leave the done marker also if no copy of the message was seen.
            once: try only once.
            min_hold: seconds since the acquisition for which the lock stands on, nobody's.
            stray: an extension of this claim may still be on its way to the server.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        names = claim.keys
        keys = (
            *(names.lock, names.waiters, names.wake, claim.done_key, names.fence),
            *(names.room, names.rooms, *names.slots),
        )
        arguments: tuple[Any, ...] = (
            *(claim.opening, done, int(always), to_ms(claim.done_ttl), to_ms(RESERVE)),
            names.mark,
        )
        if stray or min_hold:
            arguments += (int(stray), to_ms(min_hold) if min_hold else 0)

        if once:
            _, reply = self._once(claim.ttl, _RELEASE, keys, arguments)
        else:
            reply = self._script(claim.ttl, _RELEASE, keys, arguments)
        return Released(reply > 0, reply == 2)

    def mark_done(self, claim: Claim) -> None:
        """Leave the done marker of an attempt that has ended without the lock.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        with self._connection(claim.keys.lock, claim.ttl) as connection:
            connection.send_command("SET", claim.done_key, "1", "PX", to_ms(claim.done_ttl))
            connection.read_response()

    def hold(self, claim: Claim, stored: str, ttl: float) -> bool:
        """Leave the lock to the task's next attempt, for at most this many seconds.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        return self.leave(claim, _holder.held_for_retry(stored), ttl)

    def leave(self, claim: Claim, value: str, ttl: float) -> bool:
        """Put another value in the place of ours, for at most this many seconds. The attempt ends.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        keys = (claim.keys.lock, claim.done_key, *claim.keys.slots)
        arguments = (claim.opening, value, to_ms(ttl), to_ms(claim.done_ttl))
        return bool(self._script(claim.ttl, _HOLD, keys, arguments))

    def note_replaced(self, claim: Claim, attempt: int, by: str, seconds: float) -> None:
        """Say to a later attempt of this task, which is on its way, that it is not to run.

        Args:
            claim: the claim of this attempt.
            attempt: the later one.
            by: in whose favour, as `_holder.successor_text`.
            seconds: until it arrives.

        Raises:
            LockUnavailable: the server did not answer.
        """
        key = dataclasses.replace(claim, attempt=attempt).done_key
        with self._connection(claim.keys.lock, claim.ttl) as connection:
            ttl = to_ms(seconds + claim.done_ttl)
            connection.send_command("SET", key, f"r{by}", "PX", ttl)
            connection.read_response()

    def break_lock(self, keys: LockKeys, ttl: float, token: str | None = None) -> Holder | None:
        """Take the lock away from whoever holds it. None if there was none, or none of ours.

        Args:
            keys: the lock's keys.
            ttl: seconds, which say how long the server may take to answer.
            token: break only what stands under this one; None breaks whatever does.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        names = (
            *(keys.lock, keys.broken, keys.waiters, keys.wake, keys.room, keys.rooms),
            *keys.slots,
        )
        arguments = (keys.mark, "" if token is None else opening_of(token))
        values = self._script(ttl, _BREAK, names, arguments)
        holders = [_holder.parse(value, None) for value in values]
        return next((holder for holder in holders if holder is not None), None)

    # -- the waiting room -----------------------------------------------------------------

    def park(
        self,
        claim: Claim,
        entry: str,
        *,
        kind: str = "",
        limit: int | None = None,
        give_up: float | None = None,
        in_front: bool = False,
        replace: tuple[str, float] | None = None,
        received: float | None = None,
        began: bool = False,
    ) -> Parked | Turn | Full | Older:
        """Put a task that met a held lock into the lock's waiting room.

        Args:
            claim: the task's claim.
            entry: what it takes to publish it again.
            kind: what it replaces: those of the same kind that wait; "" for none.
            limit: how many may wait; None for any number.
            give_up: seconds for which it waits; None for ever.
            in_front: before all others, not after them.
            replace: end the holder: in whose favour, as `_holder.successor_text`, and after how
                many seconds.
            received: Unix time at which the task was received, to tell which of two is newer.
            began: it has run before, so others of its kind are newer: it replaces none, and
                waits before them.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        names = claim.keys
        keys = (
            *(names.lock, names.room, names.entries, names.rooms, names.ended, names.done),
            *names.slots,
        )
        arguments = (
            *(claim.entry_id, entry, kind, "" if limit is None else limit),
            *("" if give_up is None else to_ms(give_up), int(in_front), names.mark),
            *(claim.task_id, claim.ttl_ms, to_ms(claim.done_ttl), to_ms(HAND_OVER_AGAIN)),
            *(("", "") if replace is None else (to_ms(replace[1]), replace[0])),
            "" if received is None else int(received * 1000),
            int(began),
        )
        reply = self._script(claim.ttl, _PARK, keys, arguments)
        if reply[0] == b"full":
            return Full()
        if reply[0] == b"older":
            return Older(reply[1].decode(), *(_holder.parse(value, None) for value in reply[2:]))
        replaced = {entry_id: _without_head(entry) for entry_id, entry in _pairs(reply[1:])}
        return Parked(replaced) if reply[0] == b"parked" else Turn(replaced)

    def hand_over(
        self, keys: LockKeys, ttl: float, take_out: str = "", corrupt: bool = False
    ) -> Next:
        """Who in the waiting room is to be published now: the first, if nobody has the lock.

        It stays in the room until it takes the lock, so nothing is lost if whoever asked dies.

        Args:
            keys: the lock's keys.
            ttl: seconds, which say how long the server may take to answer.
            take_out: the id of an entry that is to leave the room first.
            corrupt: set that one aside, with those that cannot be read.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        names = (
            *(keys.lock, keys.room, keys.entries, keys.rooms, keys.ended, keys.corrupt),
            *keys.slots,
        )
        arguments = (
            *(keys.mark, take_out, int(corrupt)),
            *(to_ms(HAND_OVER_AGAIN), to_ms(HAND_OVER_MOST)),
        )
        reply = self._script(ttl, _HAND_OVER, names, arguments)
        ended = {}
        for entry_id, text in _pairs(reply[3:]):
            successor, entry = json.loads(text)
            ended[entry_id] = successor, _without_head(entry)
        entry = _without_head(reply[1].decode())
        return Next(reply[0].decode(), entry, reply[2] == b"1", ended)

    def goes_on_elsewhere(self, claim: Claim) -> bool:
        """Whether this attempt of its task is in the waiting room, or runs as another delivery.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        keys = claim.keys
        slots = (keys.lock, *keys.slots)
        commands = [("HEXISTS", keys.entries, claim.entry_id), *(("GET", key) for key in slots)]
        waits, *values = self._ask(commands, keys.lock, claim.ttl, wrong_type=True)
        holders = [_holder.decode(value) for value in values if isinstance(value, bytes)]
        attempt = (claim.task_id, claim.attempt, claim.nesting)
        return waits == 1 or any(
            (h.get("task_id"), h.get("attempt", 0), h.get("nesting", 0)) == attempt
            and h.get("token") != claim.token
            for h in holders
            if h is not None
        )

    def forget_ended(self, keys: LockKeys, entry_id: str, ttl: float) -> None:
        """The replaced entry has its result.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        with self._connection(keys.lock, ttl) as connection:
            connection.send_command("HDEL", keys.ended, entry_id)
            connection.read_response()

    def due_rooms(self, rooms: Sequence[str], ttl: float) -> list[str]:
        """The marks of the locks in whose waiting rooms something may have been left undone.

        Args:
            rooms: the keys to look into.
            ttl: seconds, which say how long the server may take to answer.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        with self._connection("", ttl) as connection:
            connection.send_command("TIME")
            seconds, micros = connection.read_response()
            now = int(seconds) * 1000 + int(micros) // 1000
            commands = [("ZRANGEBYSCORE", key, "-inf", now) for key in rooms]
            connection.send_packed_command(connection.pack_commands(commands))
            replies = [_read(connection) for _ in rooms]
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise LockUnavailable("", None, str(reply)) from reply
        return [mark.decode() for marks in replies for mark in marks]

    def take_turn(self, key: str, seconds: float) -> bool:
        """Whether nobody else did this within so many seconds.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        with self._connection(key, seconds) as connection:
            connection.send_command("SET", key, "1", "NX", "PX", to_ms(seconds))
            return connection.read_response() is not None

    # -- deferring ------------------------------------------------------------------------

    def deferred_step(self, claim: Claim, chain: str) -> int:
        """The highest step of this chain of deferrals that was published, 0 for none.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        with self._connection(claim.keys.lock, claim.ttl) as connection:
            connection.send_command("GET", f"{claim.keys.deferred}:{chain}")
            return int(connection.read_response() or 0)

    def note_deferral(self, claim: Claim, chain: str, step: int, seconds: float) -> None:
        """Note that this step was published, for other copies of the message that it came from.

        Args:
            claim: the claim.
            chain: which chain of deferrals.
            step: the step.
            seconds: how long the published message sleeps.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        key, ttl = f"{claim.keys.deferred}:{chain}", to_ms(seconds + claim.done_ttl)
        with self._connection(claim.keys.lock, claim.ttl) as connection:
            connection.send_command("SET", key, step, "PX", ttl)
            connection.read_response()

    def count_streak(self, keys: LockKeys, ttl: float) -> int:
        """Count a duplicate that is turned away.

        Args:
            keys: the lock's keys.
            ttl: seconds, which say how long the server may take to answer.

        Returns:
            The how many-th in a row it is, since the last run began; 0 if no run is in its way
            any more.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        _, count = self._once(ttl, _STREAK, (keys.lock, *keys.slots), ())
        return int(count)

    def holder(self, keys: LockKeys, ttl: float) -> Holder | None:
        """Who holds the lock.

        Raises:
            LockUnavailable: the server did not answer in time.
        """

        def ask(ttl: float) -> Holder | None:
            slots = (keys.lock, *keys.slots)
            with self._connection(keys.lock, ttl) as connection:
                commands = [(what, slot) for slot in slots for what in ("GET", "PTTL")]
                connection.send_packed_command(connection.pack_commands(commands))
                replies = [_read(connection) for _ in commands]
                holders = map(_holder_of, replies[::2], replies[1::2])
                return next((holder for holder in holders if holder is not None), None)

        return self._persist(ask, ttl)

    # -- looking --------------------------------------------------------------------------

    def scan(self, pattern: str) -> Iterator[list[bytes]]:
        """All keys that match, by and by; some perhaps twice. Never `KEYS`.

        Raises:
            LockUnavailable: the server did not answer, or does not allow it.
        """
        cursor = b"0"
        while True:
            ((cursor, keys),) = self._ask([("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)])
            yield keys
            if cursor == b"0":
                return

    def standing(self, keys: Sequence[bytes | str]) -> tuple[float, list[Standing]]:
        """What stands under these keys, and the server's time in Unix seconds.

        Raises:
            LockUnavailable: the server did not answer, or does not allow it.
        """
        commands = [(what, key) for key in keys for what in ("GET", "PTTL")]
        (seconds, micros), *replies = self._ask([("TIME",), *commands], wrong_type=True)
        found = [
            Standing(value is not None, None if isinstance(value, ResponseError) else value, left)
            for value, left in zip(replies[::2], replies[1::2], strict=True)
        ]
        return int(seconds) + int(micros) / 1e6, found

    def lengths(self, lists: Sequence[bytes | str], sets: Sequence[bytes | str]) -> list[int]:
        """How long these lists and sorted sets are; 0 for what is neither.

        Raises:
            LockUnavailable: the server did not answer, or does not allow it.
        """
        commands = [*(("LLEN", key) for key in lists), *(("ZCARD", key) for key in sets)]
        replies = self._ask(commands, wrong_type=True)
        return [0 if isinstance(reply, ResponseError) else int(reply) for reply in replies]

    def waiting(self, keys: LockKeys, most: int) -> list[tuple[str, str]]:
        """The first of those in the waiting room: ids and what was parked.

        Raises:
            LockUnavailable: the server did not answer, or does not allow it.
        """
        (ids,) = self._ask([("LRANGE", keys.room, 0, most - 1)])
        entries = self._ask([("HGET", keys.entries, each) for each in ids])
        return [
            (each.decode(errors="replace"), _without_head((entry or b"").decode(errors="replace")))
            for each, entry in zip(ids, entries, strict=True)
        ]

    def drop_waiting(
        self, keys: LockKeys, ttl: float, in_favour_of: str, done_ttl: float
    ) -> dict[str, str]:
        """Take everybody out of the waiting room. Nobody will run; their results are still to be
        stored, by the caller, or else by a worker.

        Args:
            keys: the lock's keys.
            ttl: seconds, which say how long the server may take to answer.
            in_favour_of: the id of the task whose duplicates they are, or "".
            done_ttl: seconds for which a message of theirs may still be on its way.

        Returns:
            What was parked, by entry ids.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        names = (keys.room, keys.entries, keys.rooms, keys.ended, keys.done)
        arguments = (keys.mark, in_favour_of, to_ms(done_ttl), DROP_COUNT)
        dropped: dict[str, str] = {}
        while True:
            reply = self._script(ttl, _DROP, names, arguments)
            dropped.update((each, _without_head(entry)) for each, entry in _pairs(reply))
            if len(reply) < 2 * DROP_COUNT:
                return dropped

    def server_info(self) -> dict[str, str]:
        """What the server says of itself.

        Raises:
            LockUnavailable: the server did not answer, or does not allow it.
        """
        (reply,) = self._ask([("INFO",)])
        return _info(reply)

    def server_config(self, *names: str) -> dict[str, str]:
        """These of the server's settings; nothing if it does not tell.

        Raises:
            LockUnavailable: the server did not answer.
        """
        commands = [("CONFIG", "GET", name) for name in names]
        replies = self._ask(commands, errors=True)
        pairs = [reply for reply in replies if not isinstance(reply, ResponseError)]
        return {name: value for pair in pairs for name, value in _pairs(pair)}

    def may(self, commands: Sequence[Sequence[str]]) -> list[bool] | None:
        """Whether this user may run each of these commands, none of which is run.

        Returns:
            None if the server cannot say: it is older than Redis 7.

        Raises:
            LockUnavailable: the server did not answer, or does not allow scripts.
        """
        script = "return redis.acl_check_cmd and redis.acl_check_cmd(unpack(ARGV)) and 1 or 0"
        known = "return redis.acl_check_cmd and 1 or 0"
        (can_say,) = self._ask([("EVAL", known, 0)])
        if not can_say:
            return None
        replies = self._ask([("EVAL", script, 0, *command) for command in commands], errors=True)
        # An error: the server does not know the command.
        return [reply == 1 for reply in replies]

    def round_trips(self, count: int) -> tuple[list[float], float]:
        """How many seconds each of so many round trips took, and the server's clock less ours.

        Raises:
            LockUnavailable: the server did not answer.
        """
        took, ahead = [], 0.0
        for _ in range(count):
            before, began = time.time(), clock()
            ((seconds, micros),) = self._ask([("TIME",)])
            took.append(clock() - began)
            if took[-1] == min(took):
                ahead = int(seconds) + int(micros) / 1e6 - before - took[-1] / 2
        return took, ahead

    def _ask(
        self,
        commands: Sequence[Sequence[Any]],
        key: str = "",
        ttl: float = LOOKING,
        *,
        errors: bool = False,
        wrong_type: bool = False,
    ) -> list[Any]:
        """The replies to these commands, in one round trip.

        Args:
            commands: the commands.
            key: the lock that they are about, or "".
            ttl: seconds, which say how long the server may take to answer.
            errors: give what the server refuses as a `ResponseError` among the replies.
            wrong_type: the same, only for keys of another type.
        """
        if not commands:
            return []
        with self._connection(key, ttl) as connection:
            connection.send_packed_command(connection.pack_commands(commands))
            replies = [_read(connection) for _ in commands]
            for reply in replies:
                if not isinstance(reply, ResponseError) or errors:
                    continue
                if not wrong_type or not str(reply).startswith("WRONGTYPE"):
                    raise reply
        return replies

    def eviction_policy(self, ttl: float) -> str | None:
        """The server's `maxmemory-policy` if it has a memory limit, else None.

        Raises:
            LockUnavailable: the server did not answer, or does not tell.
        """
        with self._connection("", ttl) as connection:
            connection.send_command("INFO", "memory")
            fields = _info(connection.read_response())
        if fields.get("maxmemory", "0") == "0":
            return None
        return fields.get("maxmemory_policy")

    def close(self) -> None:
        """Close every connection."""
        closing, self._connections = list(self._connections.values()), {}
        for connections in closing:
            connections.disconnect()

    # -- the boundary ---------------------------------------------------------------------

    def _connection(self, key: str, ttl: float, purpose: str = "main") -> _Exchange:
        """A connection to ask about this lock, as long as its ttl allows."""
        return _Exchange(self, key, ttl, purpose)

    def connections(self, purpose: str, timeout: float) -> Connections:
        """The connections with this timeout for this purpose."""
        found = self._connections.get((purpose, timeout))
        if found is None:
            # No mutex: one that another thread holds at a fork stays locked in the child.
            made = Connections(partial(self._make_pool, timeout, self.watch.on_connect))
            found = self._connections.setdefault((purpose, timeout), made)
        return found

    def _script(
        self, ttl: float, script: _Script, keys: Sequence[str], arguments: Sequence[Any]
    ) -> Any:
        """What a script replies, when the server answers."""
        _, reply = self._persist(self._once, ttl, script, keys, arguments)
        return reply

    def _once(
        self,
        ttl: float,
        script: _Script,
        keys: Sequence[str],
        arguments: Sequence[Any],
        takes: bool = False,
    ) -> tuple[float, Any]:
        """Call a script. When that was sent, and the reply.

        Raises:
            LockUnavailable: the server did not answer.
            _HeldOff: the script takes a new lock, and the server has just come back.
        """
        with self._connection(keys[0], ttl) as connection:
            if takes:
                self.watch.admit(ttl)
            sent_at = clock()
            return sent_at, self._call(connection, script, keys, arguments)

    def _call(
        self, connection: Any, script: _Script, keys: Sequence[str], arguments: Sequence[Any]
    ) -> Any:
        try:
            connection.send_packed_command([pack(_evalsha(script, keys, arguments))])
            return connection.read_response()
        except NoScriptError:
            connection.send_packed_command([pack(_eval(script, keys, arguments))])
            return connection.read_response()

    def _persist(self, call: Callable[..., T], ttl: float, *arguments: Any) -> T:
        """Try until the server answers, or the patience that the ttl allows is over."""
        began = clock()
        pause = 0.02
        while True:
            try:
                return call(ttl, *arguments)
            except LockUnavailable as exc:
                give_up = began + patience(ttl)
                if not _transient(exc.__cause__) or clock() + pause >= give_up:
                    raise
            time.sleep(pause)
            pause = min(pause * 2, 0.5)


class _Exchange:
    """A connection for one exchange. One that is cut short, by whatever, closes it: what it left
    unread must never be taken for the answer to the next question.

    No generator: one that is cut short is ended by the garbage collector, at any time, and would
    then ask for the pool's lock, which this very thread may hold.
    """

    __slots__ = ("_connection", "_connections", "_key", "_watch")

    def __init__(self, store: Store, key: str, ttl: float, purpose: str) -> None:
        self._key = key
        self._watch = store.watch
        self._connections = store.connections(purpose, operation_timeout(ttl))

    def __enter__(self) -> Any:
        try:
            self._connection = self._connections.take()
        except (RedisError, OSError) as exc:
            raise self._unavailable(exc) from exc
        return self._connection

    def __exit__(self, kind: Any, exc: BaseException | None, traceback: Any) -> None:
        if exc is None:
            self._watch.answered(self._connections.put_back(self._connection))
            return
        # A server that is not the master is left: its name may lead to another by now.
        is_answer = isinstance(exc, ResponseError) and not _is_not_master(exc)
        if is_answer or isinstance(exc, _HeldOff):
            self._connections.put_back(self._connection)
        else:
            self._connections.drop(self._connection)
        if isinstance(exc, RedisError | OSError):
            raise self._unavailable(exc) from exc

    def _unavailable(self, exc: Exception) -> LockUnavailable:
        self._watch.failed(exc)
        return LockUnavailable(self._key, None, f"{type(exc).__name__}: {exc}")


class _HeldOff(Exception):
    """A server came back, and for so many seconds nobody may take a new lock there."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def for_users(self, key: str) -> LockUnavailable:
        why = f"the server came back and is held off for {self.seconds:.1f} s"
        return LockUnavailable(key, None, why)


def _evalsha(script: _Script, keys: Sequence[str], arguments: Sequence[Any]) -> tuple[Any, ...]:
    return ("EVALSHA", script.sha, len(keys), *keys, *arguments)


def _eval(script: _Script, keys: Sequence[str], arguments: Sequence[Any]) -> tuple[Any, ...]:
    return ("EVAL", script.text, len(keys), *keys, *arguments)


def _read(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as exc:
        return exc


def _is_not_master(error: Any) -> bool:
    """Whether a server says that it is not the master any more, or not yet."""
    if isinstance(error, MasterDownError | ReadOnlyError):
        return True
    # So Redis 6 says it, where it is a script that would write.
    return isinstance(error, ResponseError) and "-READONLY " in str(error)


def _transient(error: BaseException | None) -> bool:
    """Whether another try may help: the server is away, loading, or not yet the master."""
    if isinstance(error, ResponseError):
        return _is_not_master(error) or str(error).startswith("BUSY ")
    return isinstance(error, RedisConnectionError | RedisTimeoutError | OSError)


def _holder_of(value: Any, left: Any) -> Holder | None:
    if isinstance(value, ResponseError) and str(value).startswith("WRONGTYPE"):
        value = b""  # held, by something else
    for reply in (value, left):
        if isinstance(reply, ResponseError):
            raise reply
    return _holder.parse(value, left / 1000 if left >= 0 else None)


def _pairs(flat: Sequence[bytes]) -> Iterator[tuple[str, str]]:
    texts = [text.decode() for text in flat]
    return zip(texts[::2], texts[1::2], strict=True)


def _without_head(stored: str) -> str:
    """A room's entry without what the scripts put before it."""
    return stored.split("|", 2)[-1]


def _extend_reply(reply: list[Any]) -> Extended:
    outcome, counter, *replaced = reply
    if not replaced:
        return Extended(int(outcome), int(counter))
    value, left = replaced
    by = _holder.successor_of(value) or Holder()
    return Extended(int(outcome), int(counter), by, left / 1000)


def _reserve_reply(reply: list[Any]) -> Reserved | Busy:
    kind = reply[0]
    if kind == b"reserved":
        return Reserved()
    if kind == b"room":
        task_id = reply[1].decode().rpartition(":")[0]
        return Busy(Holder(task_id=task_id, queued=True), 0.0, "queued")
    remaining = reply[2] / 1000 if reply[2] >= 0 else math.inf
    return Busy(_holder.parse(reply[1], remaining), remaining, "other")


def _acquire_question(
    claim: Claim, how: str, again: bool, away: str | int
) -> tuple[Sequence[str], Sequence[Any]]:
    """The keys and arguments of `acquire.lua`."""
    keys = claim.keys
    arguments: tuple[Any, ...] = (claim.value, claim.ttl_ms, keys.mark, claim.entry_id, away)
    if how != "try" or again or claim.reservation:
        reservation = opening_of(claim.reservation) if claim.reservation else ""
        arguments += (how, int(again), to_ms(WAITER_TTL), reservation)
    names = (
        *(keys.lock, keys.fence, keys.waiters, claim.done_key),
        *(keys.room, keys.entries, keys.rooms, *keys.slots),
    )
    return names, arguments


def _acquire_reply(reply: list[Any], claim: Claim, sent_at: float) -> Acquired | Busy | Done:
    kind, value = reply[0], reply[1]
    if kind == b"acquired":
        return Acquired(value.decode(), int(reply[2]), sent_at, bool(reply[3]))
    if kind == b"done" and value[:1] == b"r":
        return Done(False, 0.0, _holder.successor_of(value[1:]) or Holder())
    if kind == b"done":
        age = claim.done_ttl - reply[2] / 1000 if reply[2] >= 0 else 0.0
        return Done(value == b"1", age)
    left, relation = reply[2], reply[3].decode()
    streak = reply[4] if len(reply) > 4 else None
    remaining = left / 1000 if left >= 0 else math.inf
    token = (_holder.decode(value) or {}).get("token", "")
    # Nobody has it, if it is another's turn.
    holder = None if relation == "queued" else _holder.parse(value, remaining)
    return Busy(holder, remaining, relation, token, streak)
