"""The real scripts on a real Redis, through the real store and lease, beside the model of a lock.

The clock is virtual, see `virtual_time`. After each step everything that stands on the server is
compared with the model, and what must hold is checked.
"""

from __future__ import annotations

import dataclasses
import random
import secrets
from collections.abc import Callable
from typing import Any, TypeVar

import redis
from fakeredis import FakeRedis
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_redislock.errors import LockUnavailable
from celery_redislock.lock.lease import Heir, Lease
from celery_redislock.protocol import calls, holders, past
from celery_redislock.protocol.claims import (
    EXTENDED,
    NOT_OURS,
    RETAKEN,
    Acquired,
    Busy,
    Claim,
    Done,
    Extension,
    to_ms,
)
from celery_redislock.protocol.keys import lock_keys
from celery_redislock.protocol.waiting import Block, Try
from celery_redislock.servers.connections import pools_like

from . import lock_model
from .lock_model import DONE_TTL, TTL, Claimant, Record, Right, Server
from .moves import move, wander
from .virtual_time import TICK, VirtualTime, Way, WeatheredStore, earlier, virtual

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Trouble:
    """What happens to a question on its way.

    Attributes:
        before: ticks until the server gets it.
        after: ticks until the asker gets the answer.
        lost: the answer is lost "once", or "for good": it takes longer than anybody's patience.
    """

    before: int = 0
    after: int = 0
    lost: str = ""


NONE = Trouble()
SCENES = (
    "nothing",
    "held",
    "waited for",
    "waited for in vain",
    "handed over",
    "handed over and asked for",
    "copied",
    "retried",
    "kept",
    "broken",
    "ahead of the clock",
    "given up in doubt",
)
TICKS = (1, 1, 1, 2, 2, TTL, TTL + 1)
TROUBLES = (
    *[NONE] * 6,
    *[Trouble(before, after) for before in (0, 1, 3) for after in (0, 1)],
    Trouble(after=3),
    *[Trouble(lost="once")] * 2,
    Trouble(lost="for good"),
    Trouble(before=2, lost="for good"),
)
#: Which of those who can, counted from the last that came.
WHICH = (0, 1, 2, 3)


class Process:
    """A process with its own connections, which notices a restart when it next asks."""

    def __init__(self, client: redis.Redis, time: VirtualTime) -> None:
        self.store = WeatheredStore(pools_like(client))
        self.store.way = Way()
        self.store.contact = self._contact
        if isinstance(client, FakeRedis):
            self.store.watch.meet = lambda connection: iter(())  # type: ignore[method-assign]
        self._time = time
        self._restarted = False
        self._noticed_at: int | None = None

    def server_restarted(self) -> None:
        """Its connections are broken, and the next ones lead to another run of the server."""
        self.store.watch._run_id = "the one before"
        self.store.close()
        self._restarted = True

    def _contact(self) -> None:
        if self._restarted:
            self._restarted, self._noticed_at = False, self._time.now

    @property
    def holds_off(self) -> bool:
        """Whether it would not take a new lock if it asked now."""
        if self._restarted:
            return True
        return self._noticed_at is not None and self._time.now < self._noticed_at + TTL / 3


class Client:
    """One delivery: its claim, its lease, and what the model says of its right."""

    def __init__(self, process: Process, who: Claimant) -> None:
        run = {"task_id": who.task_id or None, "attempt": who.attempt, "nesting": who.nesting}
        ttl, done_ttl = TTL * TICK, DONE_TTL * TICK
        value = holders.encode(who.token, ttl_ms=to_ms(ttl), **run)
        self.process = process
        self.who = who
        self.claim = Claim(
            KEYS, who.token, ttl, value, who.task_id, who.attempt, who.nesting, done_ttl
        )
        self.lease = Lease(process.store, self.claim, beats=False)
        self.right = Right()

    def __repr__(self) -> str:
        return f"<{self.who.token[:4]} {self.who.run}>"


KEYS = lock_keys("model", "the lock")


class LockMachine(RuleBasedStateMachine):
    """One lock, some that want it, and whatever may happen to them, to the server and between."""

    #: Makes a client of the server, which the machine empties.
    connect: Callable[[], redis.Redis]

    def __init__(self) -> None:
        super().__init__()
        self.redis = self.connect()
        self.redis.flushdb()
        self.time = VirtualTime(self.redis)
        self._virtual = virtual(self.time)
        self._virtual.__enter__()
        self.model = Server()
        self.all: list[Client] = []
        self.processes = [Process(self.redis, self.time) for _ in range(2)]
        for process in self.processes:
            assert process.store.ask(calls.holder_of(KEYS, TTL * TICK)) is None
        self.answer: Any = None
        self.seen: set[str] = set()
        self.record = Record(0, 0)
        self.sent_at = 0

    def teardown(self) -> None:
        try:
            self.pass_time(1000)
            left = set(self.time.picture(KEYS))
            assert left <= {"fence"}, f"left behind: {left}"
        finally:
            self._virtual.__exit__(None, None, None)
            for process in self.processes:
                process.store.close()
            self.redis.close()

    # -- how it begins ----------------------------------------------------------------------

    @initialize(scene=st.sampled_from(SCENES))
    def begin(self, scene: str) -> None:
        """One of the scenes that take several steps, which would seldom come up in a row."""
        if scene == "nothing":
            return
        if scene == "ahead of the clock":
            self._clock_goes_back()
        holder = self.deliver(0, "task", 0)
        self._ask(holder)
        is_handed_over = scene.startswith("handed over")
        if scene.startswith("waited for") or is_handed_over:
            self._ask(self.deliver(1, "task", 0), "wait")
        if scene == "waited for in vain":
            self._live(1)
            self._ask(self.deliver(1, "task", 0), "wait")
            self._live(1)
        elif is_handed_over:
            self._release(holder, "1", False, NONE)
            if scene == "handed over and asked for":
                self._ask(self.deliver(0, "task", 0), "wait")
        elif scene == "copied":
            self._ask(self.deliver(1, "copy", 0))
        elif scene == "retried":
            self._ask(self.deliver(1, "retry", 0))
        elif scene == "kept":
            self._hold(holder, 1, NONE)
        elif scene == "broken":
            self._break(self.processes[0], NONE)
        elif scene == "given up in doubt":
            self._release(holder, "", False, NONE)
            self._ask(holder := self.deliver(1, "task", 0), trouble=Trouble(lost="for good"))
            self._release(holder, "", False, NONE)

    # -- who there is -----------------------------------------------------------------------

    @property
    def alive(self) -> list[Client]:
        """Those who have not given back what they had, or may have had."""
        return [client for client in self.all if not client.right.given_back]

    @property
    def holders(self) -> list[Client]:
        """Those whose heartbeat runs."""
        return [c for c in self.alive if c.right.fence and not c.right.lost]

    @property
    def late(self) -> list[Client]:
        """Those who have given back, or know that they lost it, and may have asked before."""
        return [c for c in self.all if c.right.given_back or c.right.lost]

    def deliver(self, process: int, kind: str, which: int) -> Client:
        """A delivery: of another task, or of one that there is: a copy of its message, its next
        attempt, or what it replaced itself with.
        """
        tasks = [client.who for client in self.all if client.who.task_id]
        who = _pick(tasks, which) if tasks else Claimant("", "A")
        task_id, attempt, nesting = {
            "lock": ("", 0, 0),
            "task": (f"task {len(self.all)}", 0, 0),
            "copy": (who.task_id, who.attempt, who.nesting),
            "retry": (who.task_id, who.attempt + 1, who.nesting),
            "replacement": (who.task_id, 0, who.nesting + 1),
        }[kind]
        token = secrets.token_hex(16)
        client = Client(self.processes[process], Claimant(token, task_id, attempt, nesting))
        self.all.append(client)
        return client

    # -- what a delivery does ---------------------------------------------------------------

    @move(
        kind=("", "", "", "lock", "task", "task", "copy", "retry", "replacement"),
        process=(0, 1),
        which=WHICH,
        how=("try", "try", "wait", "woken", "last"),
        again=(False, False, True),
        trouble=TROUBLES,
    )
    def acquire(
        self, kind: str, process: int, which: int, how: str, again: bool, trouble: Trouble
    ) -> None:
        """A new delivery, or one that asked before and did not get it, or does not know."""
        asking = [client for client in self.alive if not client.right.fence]
        if asking and (not kind or len(asking) > 4):
            client = _pick(asking, which)
        else:
            client = self.deliver(process, kind or "task", which)
        self._ask(client, how, again, trouble)

    def _ask(
        self, client: Client, how: str = "try", again: bool = False, trouble: Trouble = NONE
    ) -> None:
        held_off = client.process.holds_off
        sleeps = how == "when woken"
        how = "woken" if sleeps else how
        asks = "acquire_when_woken" if sleeps else "acquire"
        self._expect(client.process, trouble, asks, client.who, how, again)
        try:
            call = calls.acquire(client.claim, how, again)
            step = Block(call, KEYS.wake, 1.0) if sleeps else Try(call, 0)
            reply = client.lease._do(step)
        except LockUnavailable:
            assert held_off or trouble.lost
            assert (self.answer is None) == held_off, "nothing is asked while it holds off"
            return
        assert not held_off
        answer = self.answer
        if isinstance(answer, lock_model.Acquired):
            assert isinstance(reply, Acquired)
            assert reply.fence == self.record.fence
            client.right.gained(self.sent_at, self.record)
        elif isinstance(answer, lock_model.Busy):
            assert isinstance(reply, Busy)
            remaining = round(reply.remaining / TICK)
            assert (reply.relation, remaining) == (answer.relation, answer.remaining)
        else:
            assert isinstance(reply, Done)
            left = DONE_TTL if answer.remaining is None else answer.remaining
            age = round(reply.age / TICK)
            assert (reply.note.kind, age) == (answer.kind, DONE_TTL - left)

    @move("holders", which=WHICH, trouble=TROUBLES)
    def extend(self, which: int, trouble: Trouble) -> None:
        """What its heartbeat does."""
        self._beat(_pick(self.holders, which), trouble)

    def _beat(self, client: Client, trouble: Trouble) -> None:
        right = client.right
        retake = right.record if self.time.now < right.ends else None
        self._expect(client.process, trouble, "extend", client.who, retake)
        said: bool | None = None
        try:
            said = client.lease.extend_now()
        except LockUnavailable:
            assert trouble.lost
        self._extended(right, trouble)
        assert said is (None if trouble.lost and not right.lost else not right.lost)

    @move("alive", which=WHICH, trouble=TROUBLES)
    def ask_whether_it_is_lost(self, which: int, trouble: Trouble) -> None:
        client = _pick(self.holders or self.alive, which)
        right = client.right
        self._expect(client.process, trouble, "extend", client.who)
        said = client.lease.lost
        if self.answer is not None:
            assert self.sent_at >= right.ends, "it was asked while the right stood"
            self._extended(right, trouble)
        assert said is right.lost

    def _extended(self, right: Right, trouble: Trouble) -> None:
        if trouble.lost:
            right.unanswered(self.time.now)
        elif self.answer == "not ours":
            right.denied()
        else:
            right.gained(self.sent_at, right.record._replace(counter=self.model.counter))

    @move(
        "alive",
        which=WHICH,
        how=("release", "release", "hold", "die"),
        done=("", "0", "1"),
        always=(False, True),
        countdown=(0, 1, 2),
        trouble=TROUBLES,
    )
    def give_back(
        self, which: int, how: str, done: str, always: bool, countdown: int, trouble: Trouble
    ) -> None:
        client = _pick(self.holders or self.alive, which)
        if how == "hold" and client.right.fence:
            self._hold(client, countdown, trouble)
        elif how == "die":
            self._die(client, trouble)
        else:
            self._release(client, done, always, trouble)

    def _release(self, client: Client, done: str, always: bool, trouble: Trouble) -> None:
        asks, once = not client.lease.given_back, not client.right.fence
        stray = int(client.lease.unanswered > 0)
        if client.lease.in_doubt:
            stray = calls.REQUEST
        self._expect(client.process, trouble, "settle", client.who, done, always, stray)
        how = calls.Release(note=done, always=always, publishes=False)
        settled = client.lease.release(how, past.RELEASED)
        said = settled is not None and settled.ours
        assert (self.answer is not None) == asks
        heard = not trouble.lost or (trouble.lost == "once" and not once)
        assert said is bool(asks and heard and self.answer and not client.right.lost)
        self._learn_of_loss(client, trouble)
        client.right.given_back = asks

    def _hold(self, client: Client, countdown: int, trouble: Trouble) -> None:
        """It leaves the lock to its retry."""
        ticks, record = countdown + TTL, client.right.record
        self._expect(client.process, trouble, "keep", client.who, ticks, record)
        heir = Heir(holders.held_for_retry, countdown * TICK + client.lease.ttl)
        said = client.lease.leave_to(heir)
        heard = trouble.lost != "for good"
        assert said is bool(heard and self.answer and not client.right.lost)
        self._learn_of_loss(client, trouble)
        client.right.given_back = True

    def _learn_of_loss(self, client: Client, trouble: Trouble) -> None:
        """It could not give back what it had: somebody took it away. If an answer was lost, it may
        have given it back with the question before.
        """
        if self.answer is False and client.right.fence and not trouble.lost:
            client.right.denied()

    def _die(self, client: Client, trouble: Trouble) -> None:
        """It dies, and its parent releases: with the token, and without knowing what it had."""
        client.right.given_back = client.lease.is_over = True
        self._expect(client.process, trouble, "settle", client.who, "", False)
        claim = Claim(KEYS, client.who.token, TTL * TICK, "", client.who.task_id)
        try:
            assert client.process.store.run(calls.settle(claim)).ours is self.answer
        except LockUnavailable:
            assert trouble.lost == "for good"

    @move("alive", which=WHICH)
    def be_woken(self, which: int) -> None:
        asking = [each for each in self.alive if not each.right.fence]
        if asking and self.model.wake_until is not None:
            self._ask(_pick(asking, which), "when woken")

    # -- what others do for it --------------------------------------------------------------

    @move("all", which=WHICH, max_hold=(None, 1, 4))
    def its_parent_extends(self, which: int, max_hold: int | None) -> None:
        """At any time: also when it never had the lock, has released it, or is dead."""
        client = _pick(self.all, which)
        self._expect(client.process, NONE, "extend", client.who, None, max_hold)
        most = None if max_hold is None else (max_hold + 0.5) * TICK
        wanted = Extension(client.claim, client.claim.opening, 0, False, max_hold=most)
        (reply,) = client.process.store.run_all([calls.extend(wanted)], ttl=30.0)
        assert reply.outcome == REPLIES[self.answer] != RETAKEN

    @move("late", which=WHICH, what=("acquire", "extend", "retake", "release"))
    def its_late_question_arrives(self, which: int, what: str) -> None:
        """Long after it was sent, and nobody waits for the answer."""
        client = _pick(self.late, which)
        store, claim, fence = client.process.store, client.claim, client.right.fence
        if what == "acquire" and not client.process.holds_off:
            self._expect(client.process, NONE, "acquire", client.who, "try", False)
            store.run(calls.acquire(claim), hold_off=0)
        elif what == "release":
            self._expect(client.process, NONE, "settle", client.who, "1", True)
            assert (
                store.run(calls.settle(claim, calls.Release(note="1", always=True))).ours
                is self.answer
            )
        elif what in ("extend", "retake") and fence:
            retake = client.right.record if what == "retake" else None
            self._expect(client.process, NONE, "extend", client.who, retake)
            lease = client.lease
            again = retake is not None
            extension = Extension(claim, lease.stored, fence, again, lease.counter)
            (reply,) = store.run_all([calls.extend(extension)], ttl=30.0)
            assert reply.outcome == REPLIES[self.answer]

    # -- what happens to everybody ----------------------------------------------------------

    @move(
        what=("live", "live", "live", "pause", "break", "restart", "jump", "back", "scripts"),
        ticks=TICKS,
        process=(0, 1),
        trouble=TROUBLES,
    )
    def meanwhile(self, what: str, ticks: int, process: int, trouble: Trouble) -> None:
        if what == "live":
            self._live(ticks)
        elif what == "pause":  # nobody does anything
            self.pass_time(ticks)
        elif what == "break":
            self._break(self.processes[process], trouble)
        elif what == "restart":
            self._restart()
        elif what == "jump":  # of the server's clock
            self._server_passes(ticks)
            self.model.clock_jumps(ticks)
        elif what == "back":
            self._clock_goes_back()
        else:
            self.redis.script_flush()

    def _clock_goes_back(self) -> None:
        """The server's: its counter is ahead of it."""
        seconds, micros = self.redis.time()
        counter = max(self.model.counter, (seconds + 3600) * 1_000_000 + micros)
        self.redis.set(KEYS.fence, counter)
        self.model.clock_goes_back(counter)

    def _live(self, ticks: int) -> None:
        """The heartbeats do their work."""
        for _ in range(ticks):
            self.pass_time(1)
            for client in self.holders:
                self._beat(client, NONE)

    def _break(self, process: Process, trouble: Trouble) -> None:
        """An operator looks who has it, and breaks it."""
        lock = self.model.lock
        holder = process.store.ask(calls.holder_of(KEYS, TTL * TICK))
        if lock is None or lock.state == "reserved":
            assert holder is None
        else:
            assert holder is not None
            assert (holder.task_id or "", holder.attempt) == (lock.by.task_id, lock.by.attempt)
            assert (holder.fence, holder.held_for_retry) == (lock.fence, lock.state == "kept")
        self._expect(process, trouble, "break_lock")
        try:
            broken = process.store.run(calls.break_lock(KEYS, TTL * TICK))
            assert (broken is not None) is self.answer
        except LockUnavailable:
            assert trouble.lost == "for good"

    def _restart(self) -> None:
        """The server forgets everything. Memory does not restart."""
        if isinstance(self.redis, FakeRedis):
            return
        self.redis.flushdb()
        self.redis.script_flush()
        for process in self.processes:
            process.server_restarted()
        self.model.restart_empty()

    # -- what must hold after every step ----------------------------------------------------

    @invariant()
    def what_stands_on_the_server_is_what_the_model_says(self) -> None:
        assert self.time.picture(KEYS) == self.model.picture()

    @invariant()
    def everybody_believes_what_the_model_says(self) -> None:
        for client in self.all:
            lease, right = client.lease, client.right
            assert (lease.fence, lease.is_lost) == (right.fence, right.lost)
            assert not right.fence or lease.deadline == right.ends * TICK

    @invariant()
    def at_most_one_has_the_right_and_it_has_the_lock_and_the_highest_fence(self) -> None:
        model = self.model
        rightful = [
            client
            for client in self.all
            if client.right.stands(self.time.now) and client.who.token not in model.taken_from
        ]
        assert len(rightful) <= 1
        for client in rightful:
            assert model.is_held_by(client.who)
            assert client.right.fence == model.highest

    def check(self) -> None:
        """All of these."""
        self.what_stands_on_the_server_is_what_the_model_says()
        self.everybody_believes_what_the_model_says()
        self.at_most_one_has_the_right_and_it_has_the_lock_and_the_highest_fence()

    # -- the machinery ----------------------------------------------------------------------

    def pass_time(self, ticks: int) -> None:
        if ticks:
            self.time.now += ticks
            self._server_passes(ticks)
            self.model.pass_time(ticks)

    def _server_passes(self, ticks: int) -> None:
        self.time.server_passes(ticks)
        for client in self.all:
            lease = client.lease
            lease.stored = earlier(lease.stored, ticks)

    def _expect(self, process: Process, trouble: Trouble, script: str, *arguments: Any) -> None:
        """Whenever this process asks the real server next, ask the model the same."""
        self.answer = None
        way, delays, losses = process.store.way, [trouble.before], [trouble.lost]

        def before() -> int:
            self.sent_at = self.time.now
            delay = delays.pop() if delays else 0
            self.pass_time(delay)
            return delay

        def mirror() -> None:
            self.answer = getattr(self.model, script)(*arguments)
            self.seen.add(_called(script.removesuffix("_when_woken"), self.answer))

        def after() -> None:
            if script == "settle" and any(arguments[3:]):
                self.model.counter = int(self.redis.get(KEYS.fence) or 0)  # it was moved
            if isinstance(self.answer, lock_model.Acquired):
                if self.answer.anew:
                    self.model.learn_fence(int(self.redis.get(KEYS.fence) or 0))
                # The value on its way back is the only one that time does not make older.
                lock, delay = self.model.lock, trouble.after
                self.record = Record(0, 0)
                if lock is not None:
                    since = lock.since + delay
                    self.record = Record(lock.fence, since, lock.fence, lock.copy_seen)
            lost = losses.pop() if losses else ""
            self.pass_time(1 if lost == "for good" else trouble.after)
            if lost:
                raise RedisTimeoutError("the answer is lost")
            if script in ("settle", "keep") and self.answer is False:
                way.mirror = lambda: None  # it may ask why, which changes nothing

        way.before, way.mirror, way.after = before, mirror, after


def machine_of(connect: Callable[[], redis.Redis]) -> LockMachine:
    return type("Machine", (LockMachine,), {"connect": staticmethod(connect)})()


def way(connect: Callable[[], redis.Redis], scene: str, seed: int, steps: int) -> set[str]:
    """The machine without hypothesis. Returns what the scripts did and answered."""
    machine = machine_of(connect)
    try:
        machine.begin(scene)
        wander(machine, random.Random(seed), steps)
    finally:
        machine.teardown()
    return machine.seen


def _called(script: str, answer: Any) -> str:
    if isinstance(answer, tuple):
        answer = f"{type(answer).__name__} {answer[0]}"
    return f"{script}: {answer}"


def _pick(some: list[T], which: int) -> T:
    return some[-1 - which % len(some)]


REPLIES = {"extended": EXTENDED, "retaken": RETAKEN, "not ours": NOT_OURS}
