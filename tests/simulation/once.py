"""What a real process has once, each simulated process has once, too: the package's housekeeper,
heartbeat and the like are module globals, and in one interpreter there would be one of each.
"""

from __future__ import annotations

import signal
import sys
import types
import weakref
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import kombu.common

from celery_redislock.app import events, housekeeper, outcomes, processes
from celery_redislock.lock import forks, heartbeat
from celery_redislock.protocol import keys, platform
from celery_redislock.servers import stand_in, threads
from celery_redislock.tasks import abort, life, lost
from celery_redislock.worker import finished, kept, parked

from . import baton
from .wire import node

#: A look at all rooms sends a command for each bucket, and there are 1,024.
BUCKETS = 8
#: Bytes from which on a message may be too large for the lock server: half a megabyte takes long.
LARGE = 32 * 1024


class _Once:
    """Stands for a module's object: each process has its own."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.__dict__["_make"] = make

    def _mine(self) -> Any:
        state = baton.world.current.process.state
        if self not in state:
            state[self] = self._make()
        return state[self]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mine(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._mine(), name, value)

    def __iter__(self) -> Any:
        return iter(self._mine())

    def __enter__(self) -> Any:
        return self._mine().__enter__()

    def __exit__(self, *exc_info: object) -> Any:
        return self._mine().__exit__(*exc_info)

    def __bool__(self) -> bool:
        return bool(self._mine())

    def __len__(self) -> int:
        return len(self._mine())

    def __contains__(self, each: Any) -> bool:
        return each in self._mine()

    def __getitem__(self, each: Any) -> Any:
        return self._mine()[each]

    def __setitem__(self, each: Any, value: Any) -> None:
        self._mine()[each] = value


def _for_each_process(single: Any, make: Callable[[], Any]) -> None:
    """Put a stand-in wherever the package has bound this object by name."""
    stand = _Once(make)
    for name, module in list(sys.modules.items()):
        if name.startswith("celery_redislock"):
            for attribute, value in list(vars(module).items()):
                if value is single:
                    setattr(module, attribute, stand)


# -- the ends of processes --------------------------------------------------------------------


def _is_alive(pid: int) -> bool:
    return baton.world.processes[pid].is_alive


class _Watched:
    """A process whose end is awaited, as by a pidfd."""

    def __init__(self, pid: int, wakes: bool) -> None:
        self.fd = pid if _is_alive(pid) else -1

    def close(self) -> None:
        self.fd = -1


class _Bell:
    """A sleep that the end of a watched process cuts short."""

    def __init__(self, watched: dict[int, _Watched]) -> None:
        self._watched = watched
        self._has_rung = False
        self._sleeper: baton.Actor | None = None
        self._known: set[int] = set()

    def ring(self) -> None:
        self._has_rung = True
        if self._sleeper is not None:
            baton.world.wake(self._sleeper)

    def wait(self, seconds: float) -> Collection[int]:
        world = baton.world
        until = world.now + seconds
        for pid in self._watched:
            if pid not in self._known:
                self._known.add(pid)
                world.processes[pid].at_death.append(self.ring)
        while not (self._has_rung or self._gone()) and world.now < until:
            self._sleeper = world.current
            try:
                world.wait(until - world.now)
            finally:
                self._sleeper = None
        self._has_rung = False
        return self._gone()

    def _gone(self) -> list[int]:
        return [
            each.fd for each in self._watched.values() if each.fd > 0 and not _is_alive(each.fd)
        ]


def at_exit(do: Callable[[], Any]) -> None:
    """What a process does at its normal end, see `run_exits`."""
    if baton.world is not None:
        baton.world.current.process.state.setdefault("exits", []).append(do)


def run_exits() -> None:
    """End this process as a normal one."""
    for do in baton.world.current.process.state.get("exits", ()):
        do()


# -- errors that are raised in a body ----------------------------------------------------------


class _MainThread:
    """Raises in the main thread of a process, as a signal does."""

    def __init__(self, of: Any) -> None:
        self._of, self._actor = of, baton.world.current
        self._error: BaseException | None = None

    def throw(self) -> None:
        self._error = abort.LockLost()
        baton.world.raise_in(self._actor, self._error)

    def call_off(self) -> None:
        if self._actor.interrupt is self._error:
            self._actor.interrupt = None


# -- the lock server ---------------------------------------------------------------------------


class StandIn:
    """Stands for all lock servers: each process has a driver and connections of its own."""

    eager = False

    def __init__(self, server: Any, network: Any, replicas: int) -> None:
        self._server, self._network, self._replicas = server, network, replicas

    @property
    def server(self) -> Any:
        state = baton.world.current.process.state
        if "node" not in state:
            state["node"] = node(self._server, self._network, self._replicas)
        return state["node"]


def use(server: Any, network: Any, replicas: int) -> None:
    """Make this the lock server of all processes."""
    stand_in.current = StandIn(server, network, replicas)  # type: ignore[assignment]


def install() -> None:
    """Part the module globals of the package by process."""
    _for_each_process(housekeeper.housekeeper, housekeeper.Housekeeper)
    _for_each_process(heartbeat.heartbeat, heartbeat.Heartbeat)
    _for_each_process(finished.finished_notes, finished.FinishedNotes)
    _for_each_process(kept.sleeping, weakref.WeakValueDictionary)
    _for_each_process(kept.reservations, kept.Reservations)
    _for_each_process(events.events, events.Events)
    _for_each_process(forks.between_forks, forks.ForkGate)
    _for_each_process(outcomes.burst, outcomes.Burst)
    _for_each_process(threads.threads, partial(threads._Threads, threads.THREADS))
    _for_each_process(threads.askers, partial(threads._Threads, threads.ANY_NUMBER))
    _for_each_process(parked.parked_tasks, parked.ParkedTasks)
    _for_each_process(lost._lost, dict)
    marks = lost._marks
    marks_of_process = partial(housekeeper.Chore, lost._mark_all, marks._has_more, marks._every)
    _for_each_process(marks, marks_of_process)
    platform._reset_after_fork = lambda: None  # nothing forks: another pid is another process
    keys.BUCKETS = BUCKETS  # type: ignore[misc]
    life.LARGE = LARGE  # type: ignore[misc]
    housekeeper.atexit = types.SimpleNamespace(register=at_exit)  # type: ignore[attr-defined]
    housekeeper.at_pool_process_exit = at_exit  # type: ignore[attr-defined]
    housekeeper.Watched, housekeeper.Pollable = _Watched, _Bell  # type: ignore[misc, assignment]
    for module in (processes, housekeeper):
        module.can_poll, module.is_alive = lambda: True, _is_alive  # type: ignore[attr-defined]
    abort._target = _MainThread
    kombu.common.generate_oid = lambda *args: str(baton.world and baton.world.current)
    signal.signal = lambda *args: None  # type: ignore[assignment]
