"""Whose an acquisition of a `RedisLock` is, and for whom the object speaks."""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

from ..protocol import past
from ..protocol.calls import Release
from ..protocol.keys import LockKeys
from ..protocol.log import logger
from .greenlets import patched_by
from .lease import Lease


class Owner:
    """A thread that acquired a `RedisLock`; in an event loop its task, or a greenlet. It ends with
    its thread, unless a `with` block has it, which may end in another thread.
    """

    count = 1  # how often it was acquired, and not released
    is_entered = False  # a `with` block has it

    def __init__(self, lease: Lease) -> None:
        self.thread = threading.current_thread().name
        runner = runner_here()
        self.runner = None if runner is None else weakref.ref(runner)
        self.lease = lease

    def __del__(self) -> None:
        lease = self.__dict__.get("lease")  # its making may have been interrupted
        if lease is not None and not lease.is_over:
            why = f"the thread {self.thread!r} that acquired it ended, or dropped the RedisLock"
            lease.orphan(why)

    @property
    def is_mine(self) -> bool:
        """Whether what runs now in this thread acquired it itself."""
        return self._is_in_sight and (self.runner and self.runner()) is runner_here()

    @property
    def is_here(self) -> bool:
        """Whether this thread speaks for it. What a task or a greenlet acquired only that one
        speaks for, until it ends.
        """
        if not self._is_in_sight:
            return False
        runner = self.runner and self.runner()
        return runner is None or _has_ended(runner) or runner is runner_here()

    @property
    def outlasts_waiting(self) -> bool:
        """Whether it would not be released while this thread waits for it."""
        runner, here = self.runner and self.runner(), runner_here()
        if runner is None and here is None:
            return self._is_in_sight
        if isinstance(runner, asyncio.Task) or isinstance(here, asyncio.Task):
            return True  # the loop stands still meanwhile
        return runner is here or patched_by("socket") is None

    @property
    def _is_in_sight(self) -> bool:
        """Whether no `with` block has it, or what runs now began in that block. Frameworks run the
        halves of a block in any threads, and other requests in these threads meanwhile.
        """
        return not self.is_entered or any(each() is self for each in _entered.get())


#: What the `with` blocks have that this context knows.
_entered: Final[ContextVar[tuple[weakref.ref[Owner], ...]]] = ContextVar(
    "redislock_entered", default=()
)


def runner_here() -> Any:
    """The task of asyncio, or the greenlet, that runs in this thread; None for the thread itself.
    Greenlets may share what is a thread's: `gevent.monkey` may leave threads alone, or come late.
    """
    if asyncio._get_running_loop() is not None:
        return asyncio.current_task()
    greenlets = sys.modules.get("greenlet")
    greenlet = None if greenlets is None else greenlets.getcurrent()
    return None if greenlet is None or greenlet.parent is None else greenlet


def _has_ended(runner: Any) -> bool:
    return bool(runner.done() if isinstance(runner, asyncio.Task) else runner.dead)


def _name_of(runner: Any) -> str:
    return str(runner.get_name() if isinstance(runner, asyncio.Task) else runner)


class _Mine(threading.local):
    """What this thread acquired, the last at the end. Each change is one step."""

    def __init__(self) -> None:
        self.owners: list[Owner] = []


class Owners:
    """Those who acquired one `RedisLock`."""

    def __init__(self) -> None:
        self._mine = _Mine()
        #: What the `with` blocks have that have not ended, the last at the end.
        self._entered: list[Owner] = []
        #: The last acquisition in any thread, for the others; and its owner, as long as that lives,
        #: until a warning has named it.
        self._last: Lease | None = None
        self._last_owner: Callable[[], Owner | None] = lambda: None

    def add(self, lease: Lease, is_known: bool) -> Owner:
        """Keep what this thread acquired. If `is_known`, the lock tells other threads of it."""
        owner, mine = Owner(lease), self._mine.owners
        if mine:  # another thread may have given them back
            mine[:] = [each for each in mine if not each.lease.is_over]
        mine.append(owner)
        if is_known:
            self._last, self._last_owner = lease, weakref.ref(owner)
        return owner

    def forget(self, owner: Owner) -> None:
        """Do not keep this any more."""
        if owner in self._mine.owners:
            self._mine.owners.remove(owner)

    def enter(self, owner: Owner) -> None:
        """Note that a `with` block begins, which has this."""
        others = (ref for ref in _entered.get() if ref())  # else what ended elsewhere would stay
        _entered.set((*others, weakref.ref(owner)))
        owner.is_entered = True
        self._entered.append(owner)

    def held(self, keys: LockKeys | None = None) -> Owner | None:
        """What this thread acquired last, and has not released. What it speaks for comes first."""
        found = None
        for owner in self._mine.owners:
            lease = owner.lease
            if not (lease.is_over or lease.inherited) and keys in (None, lease.claim.keys):
                found = owner if found is None or owner.is_here else found
        return found

    @property
    def here(self) -> Owner | None:
        """What this thread acquired last and has not released, if it speaks for that."""
        owner = self.held()
        return owner if owner is not None and owner.is_here else None

    @property
    def known(self) -> Lease | None:
        """What this thread acquired and has not released, even if it was lost, as with another's
        fence its late writes would be accepted; else what was acquired last in any thread.
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

    def leave_block(self, failed: bool) -> None:
        """Release what the `with` block has that ends now, in whatever thread. See `leave`."""
        entered = self._entered
        try:
            owner = entered[0] if len(entered) == 1 else self._likely_block()
            if owner is not None:
                entered.remove(owner)
        except (IndexError, ValueError):  # another thread has just found the same
            return self.leave_block(failed)
        known = _entered.get()
        if known and known[-1]() is owner:
            _entered.set(known[:-1])
        if owner is None or owner.lease.is_over:
            owner = self.here or owner  # it was released in the block, and acquired again
        return self.leave(owner, failed)

    def _likely_block(self) -> Owner | None:
        """What the `with` block has that seems to end now."""
        entered = [each for each in self._entered if not each.lease.inherited]
        for each in reversed(entered):
            if each.is_here:
                return each
        # Another thread entered it. Prefer one that holds nothing: what is held may belong to a
        # block that goes on.
        return min(entered, key=lambda each: each.lease.is_held, default=None)

    def leave(self, owner: Owner | None, failed: bool) -> None:
        """Release the lock at the end of a block: `LockLost`, if it was lost and nothing failed."""
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
        runner, mine = other.runner and other.runner(), runner_here()
        if runner is not None and mine is not None and owner == here:
            owner, here = _name_of(runner), _name_of(mine)
            same = "task" if isinstance(runner, asyncio.Task) else "greenlet"
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
