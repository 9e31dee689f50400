"""What a lock may answer: its specification, in plain Python.

`Server` says what each script does and answers, `Right` what a holder may believe meanwhile. Time
is counted in ticks and passes only when told to. The fences, which the model cannot know, it is
told by `learn_fence`, and says whether they may be.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Final, NamedTuple

#: Ticks: a lock outlives its holder for so long, a freed lock is kept for a waiter, a waiter that
#: does not ask again is believed in, a finished attempt is remembered.
TTL: Final = 3
RESERVE: Final = 1
WAITER_TTL: Final = 2
DONE_TTL: Final = 5
#: Ticks for which a request of one that has given back may come late.
LATE_FOR: Final = 4
#: Before a done note that stays though the message is acknowledged.
LASTING: Final = "+"


@dataclasses.dataclass(frozen=True)
class Claimant:
    """Who asks. Every delivery has a token of its own; copies and retries share the task's id."""

    token: str
    task_id: str = ""
    attempt: int = 0
    nesting: int = 0

    @property
    def run(self) -> tuple[str, int, int]:
        """Which run this is; a copy of the message has the same."""
        return (self.task_id, self.nesting, self.attempt)

    @property
    def order(self) -> tuple[int, int]:
        """Of two runs of one task the later has the greater."""
        return (self.nesting, self.attempt)


@dataclasses.dataclass
class Lock:
    """What stands in the lock's key."""

    until: int
    state: str = "held"  # or "kept" for the task's next attempt, "reserved" for a waiter
    by: Claimant = Claimant("")
    fence: int = 0
    since: int = 0
    copy_seen: bool = False


class Record(NamedTuple):
    """What a holder knows of its acquisition: its fence, and the server's time; the counter when it
    was last told that the lock is its own; and whether a copy of its message had come before it was
    told of the acquisition.
    """

    fence: int
    since: int
    counter: int = 0
    copy_seen: bool = False


class Acquired(NamedTuple):
    anew: bool


class Busy(NamedTuple):
    relation: str
    remaining: int


class Done(NamedTuple):
    kind: str
    remaining: int | None


class Server:
    """One lock on a server."""

    def __init__(self) -> None:
        self.now = 0
        #: The highest fence that anybody was given, as long as that is to be kept up.
        self.highest = 0
        #: From this fence on the counter was ahead of the clock.
        self._ahead: float = math.inf
        #: The tokens of those from whom the lock was taken before it was due: they cannot know yet.
        self.taken_from: set[str] = set()
        self._forget()

    def _forget(self) -> None:
        self.lock: Lock | None = None
        self.counter = 0
        self.waiters: dict[str, int] = {}
        self.retired: dict[str, int] = {}
        self.waiters_until: int | None = None
        self.wake_until: int | None = None
        self.broken: set[str] = set()
        self.broken_until: int | None = None
        self.done: dict[tuple[str, int, int], tuple[str, int]] = {}

    # -- the scripts ----------------------------------------------------------------------

    def acquire(self, who: Claimant, how: str, again: bool) -> Acquired | Busy | Done:
        lock = self.lock
        if lock is not None and self.is_held_by(who):
            self._stands_for_a_ttl(lock)
            return Acquired(anew=False)
        if who.task_id and not again and who.run in self.done:
            mark, until = self.done[who.run]
            return Done(mark.removeprefix(LASTING), until - self.now)
        if who.token in self.retired:
            return Busy("other", 0 if lock is None else lock.until - self.now)
        if lock is None:
            self._forgets_the_dead()
            return self._take(who, how)
        relation = "other"
        if lock.state == "reserved":
            if how != "wait":  # who does not wait may go first
                return self._take(who, how)
            relation = "reserved"
        elif who.task_id and who.task_id == lock.by.task_id:
            if who.order > lock.by.order:
                # Its earlier attempt has let more than half of its life pass: it is not coming.
                if lock.state == "kept" or lock.until - self.now < TTL / 2:
                    return self._take(who, how)
                relation = "earlier"
            elif who.order < lock.by.order:
                if not again:
                    return Done("0", None)
            else:
                relation = "own"
                lock.copy_seen = True
        if how in ("wait", "woken"):
            self.waiters[who.token] = self.now + WAITER_TTL
            self._keeps_waiters(WAITER_TTL)
        elif how == "last":
            self._waits_no_more(who)
        return Busy(relation, lock.until - self.now)

    def _take(self, who: Claimant, how: str) -> Acquired:
        if how != "try":
            self._waits_no_more(who)
        self._take_from_holder()
        self.taken_from.discard(who.token)
        self.lock = Lock(self.now + TTL, by=who, since=self.now)
        return Acquired(anew=True)

    def extend(
        self, who: Claimant, retake: Record | None = None, max_hold: int | None = None
    ) -> str:
        if self.lock is None and retake is not None and who.token not in self.broken:
            if self.counter > retake.counter:
                return "not ours"  # or another's in between: that cannot be told apart
            self.lock = Lock(self.now + TTL, "held", who, *retake[:2], retake.copy_seen)
            if retake.fence >= self._ahead:  # else the clock gives a higher one in any case
                self.counter = max(self.counter, retake.fence)
            self._stands_for_a_ttl(self.lock)
            self.highest = max(self.highest, retake.fence)
            return "retaken"
        lock = self.lock
        if lock is None or not self.is_held_by(who):
            return "not ours"
        if max_hold is not None and self.now - lock.since > max_hold:
            return "not ours"
        self._stands_for_a_ttl(lock)
        return "extended"

    def settle(self, who: Claimant, done: str, always: bool, stray: int = 0) -> bool:
        lock, ours = self.lock, self.is_held_by(who)
        # If the lock is gone, so is the note of whether a copy was seen.
        copy_seen = lock is None or not ours or lock.copy_seen
        if ours:
            self.lock = None
            self._forgets_the_dead()
            if self.waiters:
                self.lock = Lock(self.now + RESERVE, "reserved")
                self.wake_until = self.now + RESERVE
        else:
            self._waits_no_more(who)
        if done and (always or copy_seen):
            done = f"{LASTING}{done}" if copy_seen else done
            self.done[who.run] = (done, self.now + DONE_TTL)
        if stray == 2:
            self.retired[who.token] = self.now + LATE_FOR
            self._keeps_waiters(LATE_FOR)
        return ours

    def keep(self, who: Claimant, ticks: int, record: Record) -> bool:
        self.done[who.run] = (f"{LASTING}0", self.now + DONE_TTL)
        lock = self.lock
        if lock is None or not self.is_held_by(who):
            return False
        self.lock = Lock(self.now + ticks, "kept", who, *record[:2], record.copy_seen)
        return True

    def break_lock(self) -> bool:
        """Whether somebody held it."""
        lock = self.lock
        if lock is None:
            return False
        # An operator's order is final for as long as the holder may believe in its right.
        ttl = 0 if lock.state == "reserved" else TTL
        until = max(self.now + ttl, lock.until, self.broken_until or 0)
        self.broken_until = until
        self.broken.add(lock.by.token if lock.state == "held" else "")
        self._take_from_holder()
        self.lock = None
        if self.waiters:
            self.wake_until = max(self.now + ttl, lock.until)
        return lock.state != "reserved"

    def acquire_when_woken(self, who: Claimant, how: str, again: bool) -> Acquired | Busy | Done:
        """It has slept, and takes the wake-up that lies there: it is for one."""
        self.wake_until = None
        return self.acquire(who, how, again)

    # -- what happens to it ---------------------------------------------------------------

    def pass_time(self, ticks: int) -> None:
        self.now += ticks
        over = self.now
        if self.lock is not None and self.lock.until <= over:
            self.lock = None
        if self.waiters_until is not None and self.waiters_until <= over:
            self.waiters, self.retired, self.waiters_until = {}, {}, None
        if self.wake_until is not None and self.wake_until <= over:
            self.wake_until = None
        if self.broken_until is not None and self.broken_until <= over:
            self.broken, self.broken_until = set(), None
        self.done = {run: mark for run, mark in self.done.items() if mark[1] > over}

    def clock_jumps(self, ticks: int) -> None:
        """Only the server's clock goes forward: what stands there lapses early."""
        self._take_from_holder()
        self.pass_time(ticks)

    def clock_goes_back(self, counter: int) -> None:
        """The server's clock does not bring the fence on: it is behind the counter."""
        self.counter, self._ahead = counter, min(counter, self._ahead)

    def restart_empty(self) -> None:
        """Everything is forgotten. Only if the clock is behind as well may the fence fall."""
        self._take_from_holder()
        if self.counter >= self._ahead:
            self.highest = 0
        self._forget()

    def learn_fence(self, fence: int) -> None:
        """The real server gave this fence to who has just taken the lock."""
        assert fence > self.highest, f"the fence fell: {fence} after {self.highest}"
        assert fence > self.counter, f"the counter fell: {fence} after {self.counter}"
        assert self.lock is not None
        self.lock.fence = self.counter = self.highest = fence

    # -- asking ---------------------------------------------------------------------------

    def is_held_by(self, who: Claimant) -> bool:
        return self.lock is not None and self.lock.state == "held" and self.lock.by == who

    def _stands_for_a_ttl(self, lock: Lock) -> None:
        lock.until = self.now + TTL
        # If somebody had it in between, and the server has forgotten that too, its holder is never
        # told, and the fence orders the two.
        if lock.fence >= self.highest:
            self.taken_from.discard(lock.by.token)

    def _take_from_holder(self) -> None:
        if self.lock is not None:
            self.taken_from.add(self.lock.by.token)

    def _waits_no_more(self, who: Claimant) -> None:
        self.waiters.pop(who.token, None)
        self._keeps_waiters(0)

    def _forgets_the_dead(self) -> None:
        """Waiters that have not asked again, and those whose requests can no longer come."""
        self.waiters = {t: until for t, until in self.waiters.items() if until > self.now}
        self.retired = {t: until for t, until in self.retired.items() if until > self.now}
        self._keeps_waiters(0)

    def _keeps_waiters(self, ticks: int) -> None:
        until = max(self.waiters_until or 0, self.now + ticks)
        self.waiters_until = until if self.waiters or self.retired else None

    def picture(self) -> dict[str, Any]:
        """All that stands on the server, to compare."""
        picture: dict[str, Any] = {}
        lock = self.lock
        if lock is not None and lock.state == "reserved":
            picture["lock"] = (lock.state, "", 0, False, lock.until - self.now)
        elif lock is not None:
            token = lock.by.token if lock.state == "held" else ""
            picture["lock"] = (lock.state, token, lock.fence, lock.copy_seen, lock.until - self.now)
        if self.counter:
            picture["fence"] = self.counter
        if self.waiters_until is not None:
            left = {token: until - self.now for token, until in self.waiters.items()}
            late = {token: until - self.now for token, until in self.retired.items()}
            picture["waiters"] = (left, late, self.waiters_until - self.now)
        if self.wake_until is not None:
            picture["wake"] = self.wake_until - self.now
        if self.broken_until is not None:
            picture["broken"] = (self.broken, self.broken_until - self.now)
        for (task_id, nesting, attempt), (mark, until) in self.done.items():
            picture[f"done:{task_id}:{nesting}.{attempt}"] = (mark, until - self.now)
        return picture


class Right:
    """What a holder may believe: by its own clock, for a ttl after the last question that was
    answered with yes was sent.
    """

    def __init__(self) -> None:
        self.record = Record(0, 0)
        self.ends = 0
        self.lost = False
        self.given_back = False

    @property
    def fence(self) -> int:
        return self.record.fence

    def gained(self, sent_at: int, record: Record) -> None:
        self.record, self.ends = record, sent_at + TTL

    def denied(self) -> None:
        self.lost = True

    def unanswered(self, now: int) -> None:
        self.lost = self.lost or now >= self.ends

    def stands(self, now: int) -> bool:
        return bool(self.fence) and not self.lost and not self.given_back and now < self.ends
