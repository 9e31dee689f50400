"""What was acquired by an `AsyncRedisLock`, and for whom the object speaks."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from ..protocol.keys import LockKeys
from ..protocol.log import get_logger
from .async_lease import AsyncLease
from .ownership import Request, Task, note_request, requests_here, runs, this_task

logger = get_logger()


class Acquisitions:
    """What tasks acquired by one `AsyncRedisLock`.

    Args:
        lock: the object.
    """

    def __init__(self, lock: Any) -> None:
        self._lock = weakref.ref(lock)
        self._leases: weakref.WeakKeyDictionary[Request, AsyncLease] = weakref.WeakKeyDictionary()
        #: What the blocks of `async with` hold that have not ended, and which task entered them.
        self._entered: list[tuple[Task, AsyncLease]] = []
        #: The last acquisition, for a warning.
        self._last: Callable[[], AsyncLease | None] = lambda: None

    def request(self) -> tuple[Request, list[Request]]:
        """Note that this task asks for the lock from now on. See `note_request`."""
        return note_request(self._lock, self._held_for)

    def add(self, request: Request, lease: AsyncLease, is_known: bool) -> None:
        """Keep what was acquired for this request. `is_known`: warn others who release it."""
        task = request.task and request.task()
        lease.task = task.get_name() if task else ""
        self._leases[request] = lease
        if is_known:
            self._last = weakref.ref(lease)

    def _held_for(self, request: Request) -> AsyncLease | None:
        """What was acquired for this request and not released, even if it was lost."""
        lease = self._leases.get(request)
        return None if lease is None or lease.is_ended else lease

    def held(self, requests: Iterable[Request], keys: LockKeys | None = None) -> AsyncLease | None:
        """The first that is held for these requests, of the lock with these keys."""
        for lease in map(self._held_for, requests):
            if lease is not None and keys in (None, lease.claim.keys):
                return lease
        return None

    @property
    def here(self) -> AsyncLease | None:
        """What this task acquired last and has not released; if it has not asked, what the task
        acquired from which it has its context.
        """
        lease = self.held(requests_here(self._lock, self._held_for))
        return None if lease is None or lease.is_of_another_loop else lease

    def enter(self, lease: AsyncLease) -> None:
        """Note that this task begins a block that holds this."""
        self._entered = [each for each in self._entered if not each[1].is_loop_closed]
        self._entered.append((this_task(), lease))

    def leave(self) -> AsyncLease | None:
        """What the block holds that ends now; None, with a warning, if that is not known."""
        task = this_task()
        blocks = [each for each in self._entered if each[0] is task][-1:]
        if not blocks:
            # Another task entered it, as that of a generator may be. It is rather one that has
            # ended, and rather one that holds nothing: what is held may be a block's that goes on.
            blocks = sorted(self._entered, key=lambda each: (runs(each[0]), each[1].is_held))[:1]
        if not blocks:
            self.warn_of_stray_release()
            return None
        self._entered.remove(blocks[0])
        return blocks[0][1]

    def warn_of_stray_release(self) -> None:
        """Warn once that another task holds the lock, so that this one cannot release it."""
        lease = self._last()
        if lease is None or lease.stray_release_is_told or not lease.is_held:
            return
        lease.stray_release_is_told = True
        task = asyncio.current_task()
        logger.warning(
            "redislock: did not release %s: it belongs to the task %r that acquired it, and this is"
            " %r. Release it there, or by what `async with lock as held` gives",
            lease.key, lease.task, task and task.get_name(),
        )  # fmt: skip
