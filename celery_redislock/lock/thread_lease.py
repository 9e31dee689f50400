"""What threads acquired by a `RedisLock`, and for whom the object speaks."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from ..protocol import past
from ..protocol.calls import Release
from ..protocol.claims import Claim
from ..protocol.keys import LockKeys
from ..protocol.log import get_logger
from ..servers.server import Server
from .heartbeat import heartbeat
from .lease import Lease

logger = get_logger()


class ThreadLease(Lease):
    """A thread's acquisition of a `RedisLock`. Only that thread has a reference to it.

    Attributes:
        thread: the thread's name.
        task: the task of asyncio that acquired it, or None. See `is_mine`.
        count: how often it was acquired, and not released.
        last: what other threads know of this acquisition.
        stray_release_is_told: the warning that another thread tried to release it was logged.
    """

    stray_release_is_told = False
    count = 1

    def __init__(self, server: Server, claim: Claim, *, beats: bool) -> None:
        super().__init__(server, claim, beats=beats)
        self.thread = threading.current_thread().name
        task = this_task()
        self.task = None if task is None else weakref.ref(task)
        self.last = Last()

    @property
    def is_mine(self) -> bool:
        """Whether it belongs to what runs now in this thread. In an event loop it is its task's,
        until the task ends.
        """
        task = None if self.task is None else self.task()
        return task is None or task.done() or task is this_task()

    def __del__(self) -> None:
        if self.is_over or not self.asked:  # also one whose making was interrupted
            return
        self.last.ended(self)
        # The garbage collector may call this anywhere, also while a log handler's lock is held. So
        # the heartbeat's thread logs the warning.
        if self._beats and self.is_held:
            heartbeat.call_soon(partial(_say_dropped, self.key, self.ttl, self.thread))


def this_task() -> asyncio.Task[Any] | None:
    """The task of asyncio that runs in this thread."""
    return None if asyncio._get_running_loop() is None else asyncio.current_task()


def _say_dropped(key: str, ttl: float, thread: str) -> None:
    logger.warning(
        "redislock: %s was never released: the thread %r that acquired it ended, or dropped the"
        " RedisLock. It is no longer extended and expires within %g s", key, thread, ttl,
    )  # fmt: skip


class Last:
    """The last acquisition of a `RedisLock` in any thread, for the other threads.

    Attributes:
        lease: a weak reference, so that the lease ends with its thread.
        fence, deadline, is_lost, is_over, pid, stored, lost_because: as `Held` has them, once the
            thread has ended without a release.
    """

    fence, deadline, pid, stored, lost_because = 0, 0.0, 0, "", ""
    is_lost, is_over = False, True

    def __init__(self) -> None:
        self.lease: Callable[[], ThreadLease | None] = lambda: None

    def ended(self, lease: ThreadLease) -> None:
        """Keep what the lease knew when its thread ended. A finalizer calls this: do not wait."""
        self.fence, self.deadline, self.pid = lease.fence, lease.deadline, lease.pid
        self.is_lost, self.is_over, self.stored = lease.is_lost, False, lease.stored
        self.lost_because = lease.lost_because


class _Mine(threading.local):
    """What this thread acquired, the last at the end. Each change is one step."""

    def __init__(self) -> None:
        self.leases: list[ThreadLease] = []


class ThreadLeases:
    """What threads acquired by one `RedisLock`."""

    def __init__(self) -> None:
        self._mine = _Mine()
        self._last: Last | None = None

    def add(self, lease: ThreadLease) -> None:
        """Keep what this thread acquired."""
        self._mine.leases.append(lease)

    def tell_others(self, lease: ThreadLease) -> None:
        """Let the object speak for this acquisition in other threads, too."""
        lease.last.lease = weakref.ref(lease)
        self._last = lease.last

    def warn_of_stray_release(self) -> None:
        """Warn once that another thread holds the lock, so that this thread cannot release it."""
        lease = self.others
        if lease is None or lease.stray_release_is_told or not lease.is_held:
            return
        lease.stray_release_is_told = True
        owner, here, same = lease.thread, threading.current_thread().name, "thread"
        task, other = None if lease.task is None else lease.task(), this_task()
        if task is not None and other is not None and owner == here:
            owner, here, same = task.get_name(), other.get_name(), "task"
        logger.warning(
            "redislock: did not release %s: it belongs to the %s %r that acquired it, and this is"
            " %r. Acquire and release it in the same %s%s",
            *(lease.key, same, owner, here, same),
            ", or in an executor of one thread" if same == "thread" else "",
        )

    def held(self, keys: LockKeys | None = None) -> ThreadLease | None:
        """What this thread acquired last, and has not released. What is this task's comes first."""
        found = None
        for lease in self._mine.leases:
            if not (lease.is_over or lease.inherited) and keys in (None, lease.claim.keys):
                found = lease if found is None or lease.is_mine else found
        return found

    def give_back(self, lease: ThreadLease) -> bool:
        """Release the lock, or undo one `acquire`. Returns whether this thread still held it."""
        if lease.count > 1 and not lease.lost:
            lease.count -= 1
            return True
        try:
            try:
                return release(lease)
            finally:
                if not lease.is_over:
                    release(lease)  # again, if an exception from outside interrupted it
        finally:
            self.forget(lease)

    def forget(self, lease: ThreadLease) -> None:
        """Do not keep this any more."""
        if lease in self._mine.leases:
            self._mine.leases.remove(lease)

    @property
    def here(self) -> ThreadLease | None:
        """What this thread acquired last and has not released; in an event loop, this task."""
        for lease in reversed(self._mine.leases):
            if lease.is_mine and not (lease.is_over or lease.inherited):
                return lease
        return None

    @property
    def others(self) -> ThreadLease | None:
        """The last acquisition in any thread, as long as that thread lives."""
        return None if self._last is None else self._last.lease()

    @property
    def known(self) -> ThreadLease | Last | None:
        """What this thread acquired and has not released, even if it was lost: with the fence of
        another thread, its late writes would be accepted. Else what the last thread acquired.
        """
        lease = self.here
        if lease is not None or self._last is None:
            return lease
        known = self._last.lease() or self._last
        return None if known.is_over or known.pid != os.getpid() else known


def release(lease: Lease) -> bool:
    """Release the lock. Returns whether it was still ours."""
    settled = lease.release(Release(publishes=False), past.RELEASED)
    return settled is not None and settled.ours
