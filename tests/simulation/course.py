"""A course: a world in which a plan happens, and what its witnesses saw.

The witnesses are the bodies themselves, the result backend, the broker, the lock server, and the
log. `properties` judges what they saw.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from celery import Celery, chain, chord
from celery.worker import state as worker_state

from celery_redislock import (
    AsyncRedisLock,
    LockConflict,
    LockLost,
    LockUnavailable,
    RedisLock,
    current_lock,
    operations,
)

from . import backend, baton, broker, faults, lock_server, loop, once, tasks, workers
from .plan import IS_FAULT, Event, Plan
from .tasks import Spec
from .wire import Network

#: The most seconds that a course waits for its calls to end, after the last one.
PATIENCE = 600.0
#: The most seconds for which an operator suspends something.
LONGEST_SUSPENSION = 400.0
#: `redislock_offer_for`, where it is short, in seconds.
OFFER_FOR = 60.0
#: Seconds in which the lock of a child that died is free.
FREED_WITHIN = 1.0
#: Seconds between two changes of a limit that falls and rises again.
LIMIT_FALLS_EVERY = 4.0
#: The most seconds by which a request is late, with a margin.
LATEST = 13.0
#: Seconds for which all is quiet before the end, beyond twice the ttl.
QUIET = 20.0


@dataclasses.dataclass
class Call:
    """A call that was sent.

    Attributes:
        after: the calls whose success it waits for, in a chain or a chord.
        is_of_canvas: it is part of a chain or a chord.
        ends_chord: it is a chord's body.
        became: the id of the call that the package took for it, when it sent none.
    """

    task_id: str
    name: str
    spec: Spec
    key: str
    seconds: float
    does: list[Any]
    options: dict[str, Any]
    sent: float
    after: tuple[str, ...] = ()
    is_of_canvas: bool = False
    ends_chord: bool = False
    became: str | None = None

    @property
    def keeps_a_lock(self) -> bool:
        """Whether it may have a lock though it does not run: reserved, or kept for a retry."""
        return self.spec.option in ("queued", "both", "publish") or "retry" in f"{self.does}"


@dataclasses.dataclass
class Suspended:
    """What an operator has suspended: a task, or the lock of a key.

    Attributes:
        began: from when it is surely in force, as the operator sees it; `until`: until when.
        first: from when it may be; `last`: until when.
        resumed: it was resumed, not over.
    """

    what: str
    name: str
    first: float
    began: float
    until: float
    last: float
    resumed: bool = False

    def keeps(self, task: str | None, key: str) -> bool:
        return self.name == (task if self.what == "task" else key)


@dataclasses.dataclass
class Awaited:
    """A lock for which somebody waits outside of tasks, and when; None until there is an end."""

    key: str
    since: float
    until: float | None = None


@dataclasses.dataclass
class Look:
    """What an operator saw of all locks, between two times."""

    began: float
    ended: float
    rows: list[operations.Found]


@dataclasses.dataclass
class Run:
    """A body that ran, as it tells it itself.

    Attributes:
        lease: its lock, as the body has it; None where it ran without one.
        ended: when it ended; None if it never did.
    """

    task_id: str
    key: str
    process: baton.Process
    began: float
    attempt: int
    lease: Any
    fence: int
    ended: float | None = None
    paused: float = 0.0

    @property
    def took(self) -> float:
        """When it asked for its lock, or soon after that."""
        return float(getattr(self.lease, "acquired_at", self.began))

    @property
    def lock(self) -> str:
        """Its lock: of one call, releases may take different ones."""
        return str(getattr(self.lease, "key", self.key))

    @property
    def goes_on(self) -> bool:
        return self.ended is None and self.process.is_alive

    @property
    def is_told(self) -> bool:
        """Whether it could know that its lock is lost."""
        lease = self.lease
        return lease is None or lease.is_lost or baton.world.now >= lease.deadline


class Course(baton.World):
    """The world of one plan."""

    def __init__(self, plan: Plan, tells_wire: bool = False) -> None:
        super().__init__(f"{plan.seed} {plan.schedule}")
        baton.begin(self)
        self.plan = plan
        self.network, self.server = Network(), SERVER
        self.server.is_discreet = "discreet server" in plan.also
        self.calls: dict[str, Call] = {}
        self.runs: list[Run] = []
        self.states: dict[str, list[tuple[float, str, Any]]] = {}
        self.met: dict[str, list[float]] = {}
        self.parked: list[tuple[float, str, str]] = []
        #: How many wait in a room as a task is put there for the first time.
        self.waiting: dict[str, int] = {}
        #: When a lock was reserved for a message: the time, the key, and the task's id.
        self.reserved: list[tuple[float, str, str]] = []
        self.awaited: list[Awaited] = []
        self.looks: list[Look] = []
        #: When operators broke locks, and the fences of those.
        self.broken: list[tuple[float, list[int]]] = []
        #: What a dead child has left on the lock server for longer than `FREED_WITHIN`.
        self.left_by_dead: list[tuple[str, str]] = []
        self.taken: dict[str, list[float]] = {}
        self.taken_retries: dict[str, list[float]] = {}
        self.killed: dict[str, int] = {}
        #: When a child was killed, and what it had.
        self.deaths: list[tuple[float, str]] = []
        self.happened: list[tuple[float, float, str]] = []
        #: From when until when the lock server's writes were lost, by a failover.
        self.forgotten: list[tuple[float, float]] = []
        self.failures: list[tuple[str, str]] = []
        self.logged: list[tuple[float, logging.LogRecord]] = []
        self.suspended: list[Suspended] = []
        self.still_suspended: list[Any] = []
        self.operated: list[tuple[float, str, str]] = []
        self.overlaps: list[tuple[list[Run], Run]] = []
        self.names: dict[str, str] = {}
        self.workers: list[workers.Worker | None] = []
        worker_state.reserved_requests.clear()
        broker.use(broker.Broker(plan.visibility))
        backend.use(self._stored)
        once.use(self.server, self.network, plan.replicas)
        self._apps = [self._make_app(plan.tasks) for _ in range(plan.workers + 1)]
        self.app = self.sends_deployed = self._apps.pop()
        #: Which workers run the tasks of the release that is deployed, from their next start on.
        self.runs_deployed = [False] * plan.workers
        if plan.deployed:
            self._deployed = [self._make_app(plan.deployed) for _ in range(plan.workers + 1)]
            self.sends_deployed = self._deployed.pop()
        self.on_wait = self._maybe_dies
        self._tells_wire = tells_wire
        self.server.hears, self.server.confirms = self._hears, self._confirms
        #: The tokens whose acquisition too few replicas have confirmed.
        self.unconfirmed: set[str] = set()
        self.ran_unconfirmed: list[Run] = []

    def _make_app(self, versions: Iterable[tasks.Version]) -> Celery:
        settings = {"redislock_offer_for": OFFER_FOR} if "offer_for" in self.plan.also else {}
        return tasks.make_app(versions, self.plan.visibility, self.plan.ttl, **settings)

    @property
    def limit(self) -> int:
        """How many runs may be in a lock at once, in any release."""
        return max(each.most for each in (*self.plan.tasks, *self.plan.deployed))

    @property
    def ttl(self) -> float:
        """The longest ttl of a lock, in any release."""
        return max([self.plan.ttl, *(each.ttl for each in self.plan.deployed)])

    def specs_of(self, call: Call) -> list[Spec]:
        """What each release makes of the task of this call."""
        others = [each.spec for each in self.plan.deployed if each.name == call.spec.name]
        return [call.spec, *others]

    @property
    def limit_falls(self) -> bool:
        """Whether a callable limit falls now and then."""
        return "limit falls" in self.plan.also and self.limit > 1

    @property
    def limit_now(self) -> int:
        """What a callable limit says."""
        return self.limit - (self.limit_falls and int(self.now / LIMIT_FALLS_EVERY) % 2)

    # -- what happens ---------------------------------------------------------------------

    def run(self) -> None:
        """Let the plan happen, and wait until all is quiet."""
        handler = _Log(self)
        logger = logging.getLogger("celery_redislock")
        logger.addHandler(handler)
        logger.setLevel(logging.WARNING)
        try:
            for number in range(self.plan.workers):
                self.workers.append(None)
                self.start_worker(number)
            sender = baton.Process(self, "sender")
            self._sends = self.spawn(sender, "main", self._send_all)
            for event in self.plan.events:
                if event.kind in IS_FAULT:
                    self.at(event.at, partial(faults.begin, self, event))
            self._wait_until_quiet()
        except baton.Stuck as exc:
            self.failed("goes on", str(exc))
        finally:
            logger.removeHandler(handler)

    def start_worker(self, number: int) -> None:
        plan = self.plan
        apps = self._deployed if self.runs_deployed[number] else self._apps
        self.workers[number] = workers.Worker(
            apps[number], f"worker{number + 1}", plan.children, plan.prefetch, self._met
        )

    def _send_all(self) -> None:
        self.app.set_current()
        for event in self.plan.events:
            if event.kind in IS_FAULT:
                continue
            if event.at > self.now:
                self.sleep(event.at - self.now)
            try:
                getattr(self, f"_{event.kind}")(event)
            except (LockUnavailable, LockConflict) as exc:
                self.note(f"{event.kind} failed: {type(exc).__name__}: {exc}")
            except broker.OperationalError as exc:
                self.note(f"{event.kind} failed: {exc}")

    def _wait_until_quiet(self) -> None:
        last = max((event.at for event in self.plan.events), default=0.0)
        while self.now < last + PATIENCE + LONGEST_SUSPENSION * bool(self.suspended) and not (
            self._sends.is_done and self.all_ended()
        ):
            self.sleep(1.0)
        self.sleep(
            max([0.0, *(each.last - self.now for each in self.suspended if each.last < math.inf)])
        )
        self.sleep(2 * self.ttl + QUIET)
        if self.suspended:
            self.spawn(baton.Process(self, "operator"), "main", self._look_for_suspensions)
            self.sleep(5.0)

    def all_ended(self) -> bool:
        """Whether all calls have ended, and all bodies."""
        if any(run.goes_on for run in self.runs):
            return False
        return all(self.end_of(each) is not None for each in self.calls.values() if not each.became)

    def at_broker(self) -> set[str]:
        """The tasks of which the broker has a message."""
        return broker.broker.all_ids()

    def published(self, task_id: str, at_once: bool = False) -> list[float]:
        """When messages of this task were published; with `at_once`, those without a countdown."""
        published = broker.broker.published.get(task_id, {})
        return [at for at, is_delayed in published.items() if not (at_once and is_delayed)]

    def came_again(self, task_id: str) -> int:
        """How often the broker delivered a message of this task once more."""
        return broker.broker.again[task_id]

    def ended_at(self, call: Call) -> list[float]:
        """When it ended: more than once, if copies of it ran."""
        return [at for at, state, _ in self.states.get(call.task_id, []) if state in FINAL]

    def end_of(self, call: Call) -> str | None:
        """The last state of a call, if it is a final one; "never sent" of one that comes after one
        that did not succeed.
        """
        states = self.states.get(call.task_id)
        if states and states[-1][1] in FINAL:
            return states[-1][1]
        for each in call.after:
            end = self.end_of(self.calls[each])
            if end is not None and end != "SUCCESS":
                return "never sent"
        return None

    # -- what is called -------------------------------------------------------------------

    def _add(
        self, name: str, key: str, seconds: float, does: Any, options: Any, after: Any = ()
    ) -> Call:
        task_id = self.noise.randbytes(8).hex()
        spec = next(each for each in self.plan.specs if each.name == name)
        short = self.names[task_id] = f"{name}#{len(self.names) + 1}"
        call = Call(task_id, short, spec, key, seconds, does, options, self.now, tuple(after))
        self.calls[task_id] = call
        self.note(f"call {short} ({key}, {seconds} s) {' '.join(map(str, does))} {options or ''}")
        return call

    def _call(self, event: Event) -> None:
        name, key, seconds, does, options = event.args
        call = self._add(name, key, seconds, does, options)
        scopes = {each.option for each in self.specs_of(call)} & {"queued", "both"}
        own_id = {} if scopes else {"task_id": call.task_id}
        args, own = (key, seconds, does), {**own_id, **options}
        if size := own.pop("size", 0):
            args += ("x" * size,)
        try:
            result = self.app.tasks[name].apply_async(args, **own)
        except BaseException:
            del self.calls[call.task_id]
            raise
        if result.id != call.task_id:
            self._was_sent_as(call, result.id)

    def _was_sent_as(self, call: Call, task_id: str) -> None:
        """The package gave the call another id: its own, or that of the call that waits already."""
        del self.calls[call.task_id]
        if task_id in self.calls:
            self.note(f"{call.name} is {self.named(task_id)}")
            return
        call.task_id = task_id
        self.calls[task_id], self.names[task_id] = call, call.name

    def _chain(self, event: Event) -> None:
        self._canvas(event, together=False)

    def _chord(self, event: Event) -> None:
        self._canvas(event, together=True)

    def _canvas(self, event: Event, together: bool) -> None:
        names, key, seconds = event.args
        signatures, before = [], []
        for i, name in enumerate(names):
            is_last = i == len(names) - 1
            after = (before if is_last else []) if together else before[-1:]
            call = self._add(name, key, seconds, [], {}, [each.task_id for each in after])
            call.is_of_canvas, call.ends_chord = True, together and is_last
            before.append(call)
            task = self.app.tasks[name]
            signatures.append(task.si(key, seconds, []).set(task_id=call.task_id))
        try:
            if together:
                chord(signatures[:-1])(signatures[-1])
            else:
                chain(*signatures).apply_async()
        except BaseException:
            for each in before:
                self.calls.pop(each.task_id, None)
            raise

    def _lock(self, event: Event) -> None:
        self.spawn(baton.Process(self, f"outside{self.steps}"), "main", partial(self._block, event))

    def _block(self, event: Event) -> None:
        """A block that has the lock outside of tasks."""
        key, seconds, timeout = event.args
        lock = RedisLock(self.app, key, ttl=self.plan.ttl)
        try:
            with self._awaits(key):
                if not lock.acquire(timeout=timeout):
                    self.note(f"a block did not get {key} in {timeout} s")
                    return
        except LockUnavailable:
            return
        run = self.begins(f"block{self.steps}", key, 0, lock._lease)
        try:
            self.sleep(seconds)
        finally:
            self.ends(run)
            try:
                lock.release()
            except (LockUnavailable, LockLost) as exc:
                self.note(f"a block's release: {exc}")

    def _coroutines(self, event: Event) -> None:
        """Coroutines of one loop that take a lock; some of them are cancelled."""
        key, seconds, count = event.args
        process = baton.Process(self, f"loop{self.steps}")
        self.spawn(process, "main", lambda: loop.run(self._in_loop(key, seconds, count)))

    async def _in_loop(self, key: str, seconds: float, count: int) -> None:
        lock = AsyncRedisLock(self.app, key, ttl=self.plan.ttl, timeout=None)

        holds = [self._hold(lock, key, seconds, number) for number in range(count)]
        tasks = [asyncio.ensure_future(each) for each in holds]
        await asyncio.sleep(seconds * count / 2)
        for task in tasks[1::2]:
            task.cancel()
        for each in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(each, Exception):
                raise each
        await asyncio.sleep(1.0)  # what was cancelled is given back

    async def _hold(self, lock: AsyncRedisLock, key: str, seconds: float, number: int) -> None:
        try:
            with self._awaits(key) as awaited:
                async with lock as held:
                    awaited.until = self.now
                    run = self.begins(f"coroutine{number}", key, 0, _Held(held))
                    try:
                        await asyncio.sleep(seconds)
                    finally:
                        self.ends(run)
        except (LockUnavailable, LockLost) as exc:
            self.note(f"a coroutine: {type(exc).__name__}: {exc}")

    @contextlib.contextmanager
    def _awaits(self, key: str) -> Iterator[Awaited]:
        """Note who waits for this lock, and until when, if that is not noted before."""
        awaited = Awaited(key, self.now)
        self.awaited.append(awaited)
        try:
            yield awaited
        finally:
            if awaited.until is None:
                awaited.until = self.now

    def _crowd(self, event: Event) -> None:
        """Coroutines of one loop, two for each of many locks."""
        count, seconds = event.args
        process = baton.Process(self, f"crowd{self.steps}")
        self.spawn(process, "main", lambda: loop.run(self._in_crowd(count, seconds)))

    async def _in_crowd(self, count: int, seconds: float) -> None:
        keys = [f"c{number}" for number in range(count)] * 2
        locks = [AsyncRedisLock(self.app, key, ttl=self.plan.ttl, timeout=None) for key in keys]
        holds = map(self._hold, locks, keys, [seconds] * len(keys), range(len(keys)))
        await asyncio.gather(*holds)

    # -- what operators do ----------------------------------------------------------------

    def _list(self, event: Event) -> None:
        count = sum(1 for _ in operations.list_locks(self.app))
        self.note(f"an operator sees {count} locks")

    def _break(self, event: Event) -> None:
        found = self._found(event.args[0])
        self.operated.append((self.now, "break", event.args[0]))
        broken = operations.break_locks(self.app, found)
        fences = [each.holder.fence for each in broken if each.holder and each.holder.fence]
        self.broken.append((self.now, fences))
        self.note(f"an operator broke {len(broken)} locks of {event.args[0]}")

    def _drop(self, event: Event) -> None:
        found = self._found(event.args[0])
        self.operated.append((self.now, "drop", event.args[0]))
        count = operations.drop_waiting(self.app, found)
        self.note(f"an operator dropped {count} tasks that waited for {event.args[0]}")

    def _look(self, event: Event) -> None:
        self.spawn(baton.Process(self, f"operator{self.steps}"), "main", self._look_at_all)

    def _look_at_all(self) -> None:
        self.app.set_current()
        began = self.now
        with contextlib.suppress(LockUnavailable):
            self.looks.append(Look(began, self.now, operations.list_locks(self.app)))
            self.looks[-1].ended = self.now

    def _suspend(self, event: Event) -> None:
        what, name, seconds = event.args
        asked = self.now
        made = Suspended(what, name, asked, math.inf, asked + seconds, math.inf)
        self._no_longer_sure(what, name)
        self.suspended.append(made)
        target = {what: name}
        try:
            operations.suspend(self.app, **target, seconds=seconds, why="simulated", unknown=True)
        except LockUnavailable:  # perhaps only the reply was lost, or the request is late
            made.last = self.now + LATEST + seconds
            raise
        self._is_over_by_now(what, name, but=made)
        made.began, made.last = self.now, self.now + seconds
        self.note(f"an operator suspended {what} {name} for {seconds} s")

    def _resume(self, event: Event) -> None:
        what, name = event.args
        self._no_longer_sure(what, name)
        operations.resume(self.app, **{what: name})
        for each in self._is_over_by_now(what, name):
            each.resumed = True
        self.note(f"an operator resumed {what} {name}")

    def _look_for_suspensions(self) -> None:
        self.app.set_current()
        with contextlib.suppress(LockUnavailable):
            self.still_suspended = operations.list_suspensions(self.app)

    def _no_longer_sure(self, what: str, name: str) -> None:
        """From now on it may be another one, or none."""
        for each in self.suspended:
            if (each.what, each.name) == (what, name):
                each.until = min(each.until, self.now)

    def _is_over_by_now(
        self, what: str, name: str, but: Suspended | None = None
    ) -> list[Suspended]:
        over = [
            each
            for each in self.suspended
            if (each.what, each.name) == (what, name) and each is not but and each.last > self.now
        ]
        for each in over:
            each.last = self.now
        return over

    def _found(self, key: str) -> list[operations.Found]:
        return [each for each in operations.list_locks(self.app) if each.key.endswith(f":{key}")]

    # -- witnesses ------------------------------------------------------------------------

    def named(self, task_id: str | None) -> str:
        return self.names.get(task_id or "", (task_id or "")[:8])

    def failed(self, which: str, how: str) -> None:
        """A property does not hold."""
        self.note(f"FAILED: {which}: {how}")
        self.failures.append((which, how))

    def body(self, task: Any, spec: Spec, key: str, seconds: float, does: list[Any]) -> Any:
        """The body of every task."""
        request = task.request
        run = self.begins(request.id, key, request.retries or 0, current_lock())
        what, countdown, pause = does or ("", 0, 0)
        try:
            if what == "describe":
                task.lock.describe("half of it")
            self.sleep(seconds)
            if "pause" in what and not request.retries:
                task.lock.pause(pause)
                run.paused = pause
            if "retry" in what and not request.retries:
                raise task.retry(countdown=countdown)
            if what == "raise":
                raise ValueError("simulated")
            if what == "replace" and not request.retries:
                raise task.replace(task.si(key, seconds, []))
        finally:
            self.ends(run)
        return seconds

    def begins(self, task_id: str, key: str, attempt: int, lease: Any) -> Run:
        """A body begins: the only witness of overlaps."""
        fence = 0 if lease is None else lease.fence
        run = Run(task_id, key, self.current.process, self.now, attempt, lease, fence)
        inside = [each for each in self.runs if each.lock == run.lock and each.goes_on]
        inside = [each for each in inside if each.lease]
        self.runs.append(run)
        who = ", ".join(self.named(each.task_id) for each in inside)
        self.note(
            f"{self.named(task_id)} begins in {key}, fence {fence}; inside: {who or 'nobody'}"
        )
        if lease is not None:
            if _token_of(lease) in self.unconfirmed:
                self.ran_unconfirmed.append(run)
            untold = [each for each in inside if not each.is_told]
            if len(untold) >= self.limit:
                self.overlaps.append((untold, run))
        return run

    def ends(self, run: Run) -> None:
        run.ended = self.now
        lost = " (lost)" if run.lease is not None and run.lease.is_lost else ""
        self.note(f"{self.named(run.task_id)} ends{lost}")

    def _stored(self, task_id: str, state: str, result: Any) -> None:
        self.note(f"{self.named(task_id)} is {state}: {_told(result)}")
        self.states.setdefault(task_id, []).append((self.now, state, result))

    def _met(self, task_id: str) -> None:
        times = self.met.setdefault(task_id, [])
        times.append(self.now)
        self.note(f"delivery {len(times)} of {self.named(task_id)}")

    def _hears(self, command: list[bytes], reply: Any) -> None:
        """The lock server has executed this."""
        if self._tells_wire:
            self.whisper("lock server", lock_server.in_words(command, reply))
        what = reply[0] if isinstance(reply, list) and reply else None
        if what not in (b"parked", b"reserved"):
            return
        arguments, key = lock_server.arguments_in(command), command[3].decode().rpartition(":")[2]
        if what == b"reserved":
            self.reserved.append((self.now, key, json.loads(arguments[0])["task_id"]))
            return
        task_id = arguments[7].decode()
        self.parked.append((self.now, key, task_id))
        self.waiting.setdefault(task_id, self.server.look.llen(command[4].decode()))

    def _confirms(self, command: list[bytes], reply: Any, are_enough: bool) -> None:
        """Replicas have confirmed a command, or have not in time."""
        if lock_server.script_in(command) == "acquire" and lock_server.is_taken(reply):
            token = json.loads(lock_server.arguments_in(command)[0])["token"]
            (self.unconfirmed.discard if are_enough else self.unconfirmed.add)(token)

    def child_takes(self, task_id: str, retries: int) -> None:
        self.taken.setdefault(task_id, []).append(self.now)
        if retries:
            self.taken_retries.setdefault(task_id, []).append(self.now)

    # -- what dies ------------------------------------------------------------------------

    def _maybe_dies(self, actor: baton.Actor) -> None:
        process = actor.process
        if process.dies_after is None or process.held:
            return
        if process.dies_after:
            process.dies_after -= 1
            return
        process.dies_after = None
        process.state["kill"]()

    def kill_child(self, child: workers.Child) -> None:
        if not child.process.is_alive:
            return
        if child.job is not None and not child.job.is_over:  # a time limit has ended that one
            self._has_died(child.job.task_id)
            self.deaths.append((self.now, child.job.task_id))
        name = self.named(child.job.task_id) if child.job else "no task"
        self.note(f"KILLED: {child.process}, which has {name}")
        if child.job is not None:
            left = self._left_by(child)
            self.after(FREED_WITHIN, partial(self._is_left, child, name, left))
        self.kill(child.process)
        child.worker.pool.died(child)

    def _left_by(self, child: workers.Child) -> list[tuple[str, str]]:
        """The locks that this child's task has, and their values: of its run, or kept for this
        attempt. Not that of a run elsewhere, of which the child had a copy.
        """
        assert child.job is not None
        task_id, attempt = child.job.task_id, child.job.attempt
        others = {
            (run.lock, run.fence)
            for run in self.runs
            if run.goes_on and run.process is not child.process
        }
        found = []
        for key in self.server.look.keys("*}:lock*"):
            value = self.server.look.get(key) or "{}"
            record = json.loads(value)
            is_held, is_own = bool(record.get("held")), record.get("task_id") == task_id
            if record.get("queued"):
                continue  # options.md: "freed ... once the task has a result"
            if (key, record.get("fence")) in others:
                continue
            if is_own and not record.get("cooling") and record["attempt"] + is_held == attempt:
                found.append((key, value))
        return found

    def _is_left(self, child: workers.Child, name: str, left: list[tuple[str, str]]) -> None:
        for key, value in left if child.worker.process.is_alive else ():
            token, now = json.loads(value)["token"], self.server.look.get(key) or ""
            if now == value or (token and now.startswith(f'{{"token":"{token}"')):
                self.left_by_dead.append((name, key))

    def kill_worker(self, number: int) -> None:
        worker = self.workers[number]
        if worker is None or not worker.process.is_alive:
            return
        for child in worker.pool.children:
            if child.job is not None:
                self._has_died(child.job.task_id)
        for text in broker.broker.held_by(worker.channel):
            self._has_died(_id_in(text))
        for job in worker.pool.waiting:
            self._has_died(job.task_id)
        self.note(f"KILLED: {worker.process}")
        self.kill(worker.process)

    def _has_died(self, task_id: str) -> None:
        self.killed[task_id] = self.killed.get(task_id, 0) + 1


class _Held:
    """A coroutine's acquisition, as `Run` asks for a lease."""

    replaced_by = None

    def __init__(self, held: Any) -> None:
        self.fence, self.key, self._held = held.fence, held.key, held

    @property
    def is_lost(self) -> bool:
        return bool(self._held.lost)

    @property
    def deadline(self) -> float:
        return float("inf")


#: States after which there is none.
FINAL = ("SUCCESS", "FAILURE", "REVOKED")


class _Log(logging.Handler):
    """What the package logs at WARNING and above."""

    def __init__(self, course: Course) -> None:
        super().__init__(logging.WARNING)
        self._course = course
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        course = self._course
        course.logged.append((course.now, record))
        text = record.getMessage()
        if record.exc_info:
            text += f" ({record.exc_info[1]!r})"
        for task_id, name in course.names.items():
            text = text.replace(task_id, name)
        course.note(f"{record.levelname}: {text}")
        return True


def _told(result: Any) -> str:
    if isinstance(result, dict) and "exc_type" in result:
        return str(result["exc_type"])
    return f"{type(result).__name__}" if isinstance(result, Exception) else str(result)[:60]


def _token_of(lease: Any) -> str | None:
    claim = getattr(lease, "claim", None)
    return None if claim is None else claim.token


def _id_in(text: str) -> str:
    return str(json.loads(text)["headers"].get("id", ""))


#: The lock server, which is warm before the courses begin.
SERVER = lock_server.LockServer()
