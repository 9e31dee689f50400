"""Time and scheduling of a simulated world: greenlets that pass a baton.

Exactly one simulated thread, an `Actor`, runs; the others stand still in their `wait`. Each wait
lets the seed choose who goes on; if nobody can, time jumps to the next event. So nothing comes in
between but at a wait, and who does is drawn.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import itertools
import random
import traceback
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet

#: Seconds since 1970 at which each world begins.
EPOCH = 1_700_000_000.0
#: The most switches of one course. A world that needs more waits again and again for the same.
MOST_STEPS = 400_000
#: The most seconds by which a timer is late.
LATE = 0.0005


class Stuck(Exception):
    """Nobody can go on, or somebody goes on for ever."""


class Clock:
    """A machine's wall clock, which may be set while the world goes on.

    Attributes:
        step: seconds by which it is fast.
    """

    step = 0.0


class Process:
    """A simulated process: actors that die together, and state of their own.

    Attributes:
        state: what the process has once, by whatever stands for it.
        clock: its machine's.
    """

    def __init__(self, world: World, name: str, clock: Clock | None = None) -> None:
        self.name, self.pid, self.clock = name, next(world.pids), clock or Clock()
        self.is_alive, self.is_stopped = True, False
        self.state: dict[Any, Any] = {}
        self.held = 0  # mutexes that other processes have too, see `interpreter.Lock`
        self.frozen: list[Actor] = []
        self.at_death: list[Callable[[], None]] = []
        self.dies_after: int | None = None
        world.processes[self.pid] = self

    def __str__(self) -> str:
        return self.name


class Actor:
    """A simulated thread."""

    def __init__(self, world: World, process: Process, name: str, run: Any) -> None:
        self.process, self.name, self.run = process, name, run
        self.number = next(world.numbers)
        self.waits = 0  # a timer of an earlier wait is stale
        self.is_ready, self.was_woken, self.is_done = True, False, False
        self.interrupt: BaseException | None = None
        self.joined: list[Actor] = []
        self.thread: Any = None
        self.greenlet: Any = None
        self.text = f"{process.name}/{name}"

    def __str__(self) -> str:
        return self.text


class World:
    """Time, the actors, and who is next.

    Args:
        seed: whatever names the course: each stream of chance begins with it.

    Attributes:
        now: seconds since the world began.
        current: the actor that runs.
        server_clock: the lock server's clock, while that executes something; else None.
        story: what has happened, a line for each event.
        digest: of the story, and of every byte that the lock server was sent.
        on_wait: called with each actor that is about to wait.
        crashes: the tracebacks of actors that ended by an error.
    """

    def __init__(self, seed: str) -> None:
        self.now = 0.0
        self.seed = seed
        self.schedule, self.delays = (
            random.Random(f"{seed} schedule"),
            random.Random(f"{seed} delays"),
        )
        self.chance, self.noise = random.Random(f"{seed} chance"), random.Random(f"{seed} bytes")
        random.seed(f"{seed} random")  # of which the package draws
        self.pids, self.numbers = itertools.count(1001), itertools.count()
        self._sequence = itertools.count()
        self.steps = 0
        self.processes: dict[int, Process] = {}
        self._ready: list[Actor] = []
        self._timers: list[tuple[float, int, Any, int | None]] = []
        self.stuck: str | None = None
        self.digest = hashlib.sha256()
        self.story: list[str] = []
        self.crashes: list[str] = []
        self.on_wait: Callable[[Actor], None] | None = None
        self.main = Actor(self, Process(self, "driver"), "main", None)  # who calls this
        self.main.greenlet = getcurrent()
        self.current = self.main
        self.server_clock: Clock | None = None

    @property
    def clock(self) -> Clock:
        """The wall clock of whoever runs."""
        return self.server_clock or self.current.process.clock

    def note(self, what: str) -> None:
        """Add a line to the story."""
        self.story.append(f"{self.now:12.6f} {self.current.text:26} {what}")
        self.digest.update(self.story[-1].encode("utf-8", "backslashreplace"))

    def whisper(self, who: str, what: str) -> None:
        """Add a line to the story that is no part of the digest."""
        self.story.append(f"{self.now:12.6f} {who:26} {what}")

    # -- for actors -----------------------------------------------------------------------

    def spawn(self, process: Process, name: str, run: Callable[[], Any]) -> Actor:
        """Start an actor."""
        actor = Actor(self, process, name, run)
        actor.greenlet = greenlet(lambda: self._begin(actor), self.main.greenlet)
        self._is_ready(actor)
        return actor

    def _begin(self, actor: Actor) -> None:
        try:
            actor.run()
        except BaseException as exc:
            self.note(f"CRASHED: {type(exc).__name__}: {exc}")
            self.crashes.append("".join(traceback.format_exception(exc)))
        actor.is_done = True
        actor.greenlet = None
        for each in actor.joined:
            self.wake(each)
        self.steps += 1
        self.current = self._next()  # the main greenlet passes the baton on

    def wait(self, seconds: float | None) -> bool:
        """Let others go on until somebody wakes this actor, which returns True, or until so many
        seconds are over.
        """
        me = self.current
        me.waits += 1
        me.is_ready = me.was_woken = False
        if seconds is not None:
            late = self.delays.random() * LATE if seconds > 0 else 0.0
            due = self.now + max(seconds, 0.0) + late
            heapq.heappush(self._timers, (due, next(self._sequence), me, me.waits))
        if self.on_wait is not None:
            self.on_wait(me)
        self._pass_on(me)
        if me.interrupt is not None:
            error, me.interrupt = me.interrupt, None
            raise error
        if self.stuck is not None and me is self.main:
            raise Stuck(self.stuck)
        return me.was_woken

    def sleep(self, seconds: float) -> None:
        """Wait for so many seconds, whoever wakes this actor."""
        until = self.now + seconds
        self.wait(seconds)
        while self.now < until:
            self.wait(until - self.now)

    def wake(self, actor: Actor) -> None:
        """Let this actor go on, if it waits."""
        if not actor.is_ready and actor.process.is_alive and not actor.is_done:
            actor.was_woken = True
            self._is_ready(actor)

    # -- for the world --------------------------------------------------------------------

    def at(self, when: float, do: Callable[[], Any]) -> None:
        """Do this at that time, in nobody's thread: it must not wait."""
        heapq.heappush(self._timers, (max(when, self.now), next(self._sequence), do, None))

    def after(self, seconds: float, do: Callable[[], Any]) -> None:
        self.at(self.now + seconds, do)

    def kill(self, process: Process) -> None:
        """None of its actors goes on, ever."""
        if not process.is_alive:
            return
        process.is_alive = False
        process.frozen.clear()
        self._ready = [each for each in self._ready if each.process is not process]
        for do in process.at_death:
            do()

    def stop(self, process: Process, seconds: float) -> None:
        """None of its actors goes on for so many seconds, as by SIGSTOP."""
        if process.is_stopped or not process.is_alive:
            return
        process.is_stopped = True
        process.frozen = [each for each in self._ready if each.process is process]
        self._ready = [each for each in self._ready if each.process is not process]
        self.after(seconds, lambda: self._go_on(process))

    def _go_on(self, process: Process) -> None:
        process.is_stopped = False
        if process.is_alive:
            self._ready.extend(process.frozen)
            process.frozen = []

    def raise_in(self, actor: Actor, error: BaseException) -> None:
        """Raise this in an actor that waits, as a signal's handler does."""
        if actor.is_done or not actor.process.is_alive or actor is self.current:
            return
        actor.interrupt = error
        self.wake(actor)

    # -- who is next ----------------------------------------------------------------------

    def _is_ready(self, actor: Actor) -> None:
        actor.is_ready = True
        process = actor.process
        (process.frozen if process.is_stopped else self._ready).append(actor)

    def _pass_on(self, me: Actor) -> None:
        self.steps += 1
        self.current = self._next()
        if self.current is me:
            return
        loop = asyncio._get_running_loop()
        if loop is None:
            self._switch_from(me)
            return
        # A thread of its own would have a loop of its own, or none.
        task = asyncio.current_task(loop)
        asyncio._set_running_loop(None)
        if task is not None:
            asyncio.tasks._leave_task(loop, task)
        self._switch_from(me)
        if task is not None:
            asyncio.tasks._enter_task(loop, task)
        asyncio._set_running_loop(loop)

    def _switch_from(self, me: Actor) -> None:
        while self.current is not me:  # again only in the main greenlet, when another one has ended
            self.current.greenlet.switch()

    def _next(self) -> Actor:
        if self.steps > MOST_STEPS:
            return self._give_up("somebody goes on for ever")
        timers = self._timers
        while True:
            while timers and timers[0][0] <= self.now:
                _, _, who, waits = heapq.heappop(timers)
                if waits is None:
                    self._do(who)
                elif who.waits == waits and not who.is_ready and who.process.is_alive:
                    self._is_ready(who)
            if ready := self._ready:
                if len(ready) > 1:
                    i = self.schedule.randrange(len(ready))
                    ready[i], ready[-1] = ready[-1], ready[i]
                return ready.pop()
            if not timers:
                return self._give_up("nobody can go on")
            self.now = max(self.now, timers[0][0])

    def _do(self, do: Callable[[], Any]) -> None:
        try:
            do()
        except Exception as exc:  # else the baton would be nobody's
            self.note(f"CRASHED: {type(exc).__name__}: {exc}")
            self.crashes.append("".join(traceback.format_exception(exc)))

    def _give_up(self, why: str) -> Actor:
        self.stuck = self.stuck or f"{why}, at {self.now:.3f} s"
        return self.main


#: The world of this interpreter, once there is one.
world: World = None  # type: ignore[assignment]


def begin(made: World) -> None:
    """Make this the world of the interpreter."""
    global world
    world = made
