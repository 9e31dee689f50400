"""Puts an interpreter on a simulated world's time: replaces its clocks, its threads, what they have
for themselves, their mutexes, `os.urandom` and `os.getpid`. It is imported first: what others have
imported by name stays real.
"""

from __future__ import annotations

import datetime as datetimes
import logging
import os
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from gevent.local import local

from . import baton
from .baton import EPOCH

real_time = time.perf_counter
real_pid, real_ident = os.getpid, threading.get_ident()


def now() -> float:
    return 0.0 if baton.world is None else baton.world.now


def wall() -> float:
    return EPOCH + now() + (0.0 if baton.world is None else baton.world.clock.step)


def sleep(seconds: float) -> None:
    if baton.world is not None:
        baton.world.sleep(seconds)


class Lock:
    """A mutex. A process that holds one which others have too is not killed at that moment: in a
    real one, it would have had a mutex of its own.
    """

    def __init__(self) -> None:
        self._is_locked = False
        self._waiters: deque[Any] = deque()
        self._made_by = _process()
        self._holder: Any = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        world = baton.world
        if self._is_locked:
            if world is None or not blocking or timeout == 0:
                return False
            until = None if timeout < 0 else world.now + timeout
            me = world.current
            while self._is_locked:
                left = None if until is None else until - world.now
                if left is not None and left <= 0:
                    return False
                self._waiters.append(me)
                try:
                    world.wait(left)
                finally:
                    if me in self._waiters:
                        self._waiters.remove(me)
        self._is_locked = True
        self._holder = _process()
        if self._holder is not self._made_by and self._holder is not None:
            self._holder.held += 1
        return True

    def release(self) -> None:
        if not self._is_locked:
            raise RuntimeError("release unlocked lock")
        self._is_locked = False
        if self._holder is not self._made_by and self._holder is not None:
            self._holder.held -= 1
        for each in self._waiters:
            baton.world.wake(each)

    def locked(self) -> bool:
        return self._is_locked

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self._is_locked = False


class RLock:
    """A mutex that its holder may take again."""

    def __init__(self) -> None:
        self._lock, self._owner, self._count = Lock(), 0, 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = get_ident()
        if self._owner == me:
            self._count += 1
            return True
        if self._lock.acquire(blocking, timeout):
            self._owner, self._count = me, 1
            return True
        return False

    def release(self) -> None:
        if self._owner != get_ident():
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = 0
            self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        return self._owner == get_ident()

    def _at_fork_reinit(self) -> None:
        self.__init__()  # type: ignore[misc]

    def _release_save(self) -> tuple[int, int]:
        state = self._count, self._owner
        self._count, self._owner = 0, 0
        self._lock.release()
        return state

    def _acquire_restore(self, state: tuple[int, int]) -> None:
        self._lock.acquire()
        self._count, self._owner = state


class Condition:
    def __init__(self, lock: Any = None) -> None:
        self._lock = lock or RLock()
        self._waiters: deque[list[Any]] = deque()
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> Any:
        return self._lock.__enter__()

    def __exit__(self, *exc_info: object) -> None:
        self._lock.__exit__(*exc_info)

    def wait(self, timeout: float | None = None) -> bool:
        world = baton.world
        entry = [world.current, False]
        self._waiters.append(entry)
        save = getattr(self._lock, "_release_save", None)
        state = save() if save else self._lock.release()
        try:
            until = None if timeout is None else world.now + timeout
            while not entry[1]:
                left = None if until is None else until - world.now
                if left is not None and left <= 0:
                    break
                world.wait(left)
        finally:
            if entry in self._waiters:
                self._waiters.remove(entry)
            if save:
                self._lock._acquire_restore(state)
            else:
                self._lock.acquire()
        return bool(entry[1])

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        until = None if timeout is None else now() + timeout
        while not (result := predicate()):
            left = None if until is None else until - now()
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        for _ in range(min(n, len(self._waiters))):
            entry = self._waiters.popleft()
            entry[1] = True
            baton.world.wake(entry[0])

    def notify_all(self) -> None:
        self.notify(len(self._waiters))

    notifyAll = notify_all  # billiard's name for it


class Event:
    def __init__(self) -> None:
        self._flag = False
        self._waiters: list[Any] = []

    def is_set(self) -> bool:
        return self._flag

    def set(self) -> None:
        self._flag = True
        waiters, self._waiters = self._waiters, []
        for each in waiters:
            baton.world.wake(each)

    def clear(self) -> None:
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        until = None if timeout is None else now() + timeout
        while not self._flag:
            left = None if until is None else until - now()
            if left is not None and left <= 0:
                break
            self._waiters.append(baton.world.current)
            baton.world.wait(left)
        return self._flag

    def _at_fork_reinit(self) -> None: ...


class Semaphore:
    def __init__(self, value: int = 1) -> None:
        self._value, self._condition = value, Condition(Lock())

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        with self._condition:
            if not self._value and not blocking:
                return False
            if not self._condition.wait_for(lambda: self._value, timeout):
                return False
            self._value -= 1
            return True

    def release(self, n: int = 1) -> None:
        with self._condition:
            self._value += n
            self._condition.notify(n)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self.release()


class Thread:
    """A thread of the process that starts it."""

    def __init__(
        self,
        group: None = None,
        target: Any = None,
        name: str | None = None,
        args: Any = (),
        kwargs: Any = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._target, self.name = target, name or "thread"
        self._args, self._kwargs = args, kwargs or {}
        self.daemon, self.ident, self.native_id = daemon, None, 0
        self._actor: baton.Actor | None = None

    def run(self) -> None:
        self._target(*self._args, **self._kwargs)

    def start(self) -> None:
        self._actor = baton.world.spawn(baton.world.current.process, self.name, self.run)
        self._actor.thread = self
        self.ident = self._actor.number  # type: ignore[assignment]

    def is_alive(self) -> bool:
        return self._actor is not None and not self._actor.is_done

    def join(self, timeout: float | None = None) -> None:
        while self._actor is not None and self.is_alive():
            self._actor.joined.append(baton.world.current)
            if not baton.world.wait(timeout):
                return


_main_thread = threading.main_thread()


def current_thread() -> Any:
    actor = None if baton.world is None else baton.world.current
    if actor is None or actor is baton.world.main:
        return _main_thread
    if actor.thread is None:
        actor.thread = Thread(name=str(actor))
        actor.thread.ident, actor.thread._actor = actor.number, actor
    return actor.thread


def get_ident() -> int:
    return real_ident if baton.world is None else baton.world.current.number or real_ident


def urandom(size: int) -> bytes:
    return b"\x01" * size if baton.world is None else baton.world.noise.randbytes(size)


def getpid() -> int:
    return real_pid() if baton.world is None else baton.world.current.process.pid


def _process() -> Any:
    return None if baton.world is None else baton.world.current.process


_real_datetime = datetimes.datetime


class _KindOfDatetime(type(_real_datetime)):  # type: ignore[misc]
    def __instancecheck__(cls, each: Any) -> bool:
        return isinstance(each, _real_datetime)

    def __subclasscheck__(cls, each: Any) -> bool:
        return issubclass(each, _real_datetime)


class datetime(_real_datetime, metaclass=_KindOfDatetime):
    __slots__ = ()

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return cls.fromtimestamp(wall(), tz)

    @classmethod
    def utcnow(cls) -> Any:
        return cls.fromtimestamp(wall(), datetimes.timezone.utc).replace(tzinfo=None)


def _install() -> None:
    time.time = wall
    time.monotonic = time.perf_counter = now
    time.clock_gettime = lambda clock_id: now()
    time.time_ns = lambda: int(wall() * 1e9)
    time.monotonic_ns = time.perf_counter_ns = lambda: int(now() * 1e9)
    time.sleep = sleep
    queue.time = now  # type: ignore[attr-defined]  it has taken `monotonic` at its import
    os.urandom, os.getpid = urandom, getpid
    os.register_at_fork = lambda **hooks: None  # type: ignore[assignment]
    random._urandom = urandom  # type: ignore[attr-defined]  of which `secrets` is made
    datetimes.datetime = datetime  # type: ignore[misc]
    for each in (Lock, RLock, Condition, Event, Thread, Semaphore):
        setattr(threading, each.__name__, each)
    threading.current_thread, threading.get_ident = current_thread, get_ident
    threading.local = local  # type: ignore[misc]
    logging.raiseExceptions = False


if threading.Lock is not Lock:
    _install()

__all__ = ["now", "real_time", "sleep", "wall"]
