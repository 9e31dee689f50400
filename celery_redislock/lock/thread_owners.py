"""Whose an acquisition of a `RedisLock` is, and for whom the object speaks."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from typing import Any

from ..protocol import past
from ..protocol.calls import Release
from ..protocol.keys import LockKeys
from ..protocol.log import get_logger
from .lease import Lease

logger = get_logger()


class Owner:
    """A thread that acquired a `RedisLock`; in an event loop its task. Only that thread refers to
    this, so it ends with the thread.

    Attributes:
        lease: what it acquired.
        thread: the thread's name.
        task: the task of asyncio that acquired it, or None.
        count: how often it was acquired, and not released.
    """

    count = 1

    def __init__(self, lease: Lease) -> None:
        self.thread = threading.current_thread().name
        task = this_task()
        self.task = None if task is None else weakref.ref(task)
        self.lease = lease

    def __del__(self) -> None:
        lease = self.__dict__.get("lease")  # its making may have been interrupted
        if lease is not None and not lease.is_over:
            why = f"the thread {self.thread!r} that acquired it ended, or dropped the RedisLock"
            lease.orphan(why)

    @property
    def is_here(self) -> bool:
        """Whether it is what runs now in this thread. In an event loop that is the task, until the
        task ends.
        """
        task = None if self.task is None else self.task()
        return task is None or task.done() or task is this_task()


def this_task() -> asyncio.Task[Any] | None:
    """The task of asyncio that runs in this thread."""
    return None if asyncio._get_running_loop() is None else asyncio.current_task()


class _Mine(threading.local):
    """What this thread acquired, the last at the end. Each change is one step."""

    def __init__(self) -> None:
        self.owners: list[Owner] = []


class Owners:
    """Those who acquired one `RedisLock`."""

    def __init__(self) -> None:
        self._mine = _Mine()
        #: The last acquisition in any thread, for the others; and its owner, as long as that lives,
        #: until a warning has named it.
        self._last: Lease | None = None
        self._last_owner: Callable[[], Owner | None] = lambda: None

    def add(self, lease: Lease, is_known: bool) -> Owner:
        """Keep what this thread acquired. `is_known`: the object speaks for it in other threads."""
        owner = Owner(lease)
        self._mine.owners.append(owner)
        if is_known:
            self._last, self._last_owner = lease, weakref.ref(owner)
        return owner

    def forget(self, owner: Owner) -> None:
        """Do not keep this any more."""
        if owner in self._mine.owners:
            self._mine.owners.remove(owner)

    def held(self, keys: LockKeys | None = None) -> Owner | None:
        """What this thread acquired last, and has not released. What is this task's comes first."""
        found = None
        for owner in self._mine.owners:
            lease = owner.lease
            if not (lease.is_over or lease.inherited) and keys in (None, lease.claim.keys):
                found = owner if found is None or owner.is_here else found
        return found

    @property
    def here(self) -> Owner | None:
        """What this thread acquired last and has not released; in an event loop, this task."""
        owner = self.held()
        return owner if owner is not None and owner.is_here else None

    @property
    def known(self) -> Lease | None:
        """What this thread acquired and has not released, even if it was lost: with the fence of
        another thread, its late writes would be accepted. Else what the last thread acquired.
        """
        owner, last = self.here, self._last
        if owner is not None:
            return owner.lease
        return None if last is None or last.is_over or last.inherited else last

    def give_back(self, owner: Owner) -> bool:
        """Release the lock, or undo one `acquire`. Returns whether this thread still held it."""
        if owner.count > 1 and not owner.lease.lost:
            owner.count -= 1
            return True
        try:
            try:
                return release(owner.lease)
            finally:
                if not owner.lease.is_over:
                    release(owner.lease)  # again, if an exception from outside interrupted it
        finally:
            self.forget(owner)

    def leave(self, owner: Owner | None, failed: bool) -> None:
        """Release the lock at the end of a block.

        Raises:
            LockLost: it was lost, and the block ended without an error of its own.
        """
        if owner is None:
            self.warn_of_stray_release()
        elif not owner.lease.is_over:
            self.give_back(owner)
            if owner.lease.is_lost and not failed:
                raise owner.lease.lost_error()

    def warn_of_stray_release(self) -> None:
        """Warn once that another thread holds the lock, so that this thread cannot release it."""
        other = self._last_owner()
        if other is None or not other.lease.is_held:
            return
        self._last_owner = lambda: None
        owner, here, same = other.thread, threading.current_thread().name, "thread"
        task, mine = None if other.task is None else other.task(), this_task()
        if task is not None and mine is not None and owner == here:
            owner, here, same = task.get_name(), mine.get_name(), "task"
        logger.warning(
            "redislock: did not release %s: it belongs to the %s %r that acquired it, and this is"
            " %r. Acquire and release it in the same %s%s",
            *(other.lease.key, same, owner, here, same),
            ", or in an executor of one thread" if same == "thread" else "",
        )


def release(lease: Lease) -> bool:
    """Release the lock. Returns whether it was still ours."""
    settled = lease.release(Release(publishes=False), past.RELEASED)
    return settled is not None and settled.ours
