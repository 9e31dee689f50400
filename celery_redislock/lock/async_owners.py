"""What was acquired by an `AsyncRedisLock`, and for whom the object speaks."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from ..protocol.keys import LockKeys
from ..protocol.log import logger
from .async_acquisition import AsyncAcquisition
from .ownership import Request, Task, note_request, requests_here, runs, this_task


class Acquisitions:
    """What tasks acquired by one `AsyncRedisLock`."""

    def __init__(self, lock: Any) -> None:
        self._lock = weakref.ref(lock)
        self._acquired: weakref.WeakKeyDictionary[Request, AsyncAcquisition] = (
            weakref.WeakKeyDictionary()
        )
        #: What the blocks of `async with` hold that have not ended, and which task entered them.
        self._entered: list[tuple[Task, AsyncAcquisition]] = []
        #: The last acquisition and the name of its task, until a warning has named it.
        self._last: Callable[[], AsyncAcquisition | None] = lambda: None
        self._last_task = ""

    def request(self) -> tuple[Request, list[Request]]:
        """Note that this task asks for the lock from now on. See `note_request`."""
        return note_request(self._lock)

    def add(self, request: Request, held: AsyncAcquisition, is_known: bool) -> None:
        """Keep what was acquired for this request. `is_known`: warn others who release it."""
        self._acquired[request], request.acquired = held, weakref.ref(held)
        if is_known:
            task = request.task and request.task()
            self._last, self._last_task = weakref.ref(held), task.get_name() if task else ""

    @property
    def here(self) -> AsyncAcquisition | None:
        """What this task acquired last and has not released; if it has not asked, what the task
        acquired that gave it its context.
        """
        held = first_held(requests_here(self._lock))
        return None if held is None or held._is_of_another_loop else held

    def enter(self, held: AsyncAcquisition) -> None:
        """Note that this task begins a block that holds this."""
        self._entered = [each for each in self._entered if not each[1]._lease.loop.is_closed()]
        self._entered.append((this_task(), held))

    def leave(self) -> AsyncAcquisition | None:
        """What the block holds that ends now; None, with a warning, if that is not known."""
        task = this_task()
        blocks = [each for each in self._entered if each[0] is task][-1:]
        if not blocks:
            # Another task entered it, as with generators. Prefer one of a task that has ended, then
            # one that holds nothing: what is held may belong to a block that goes on.
            blocks = sorted(
                self._entered, key=lambda each: (runs(each[0]), each[1]._lease.is_held)
            )[:1]
        if not blocks:
            self.warn_of_stray_release()
            return None
        self._entered.remove(blocks[0])
        return blocks[0][1]

    def warn_of_stray_release(self) -> None:
        """Warn once that another task holds the lock, so that this one cannot release it."""
        held = self._last()
        if held is None or not held._lease.is_held:
            return
        self._last = lambda: None
        task = asyncio.current_task()
        logger.warning(
            "redislock: did not release %s: it belongs to the task %r that acquired it, and this is"
            " %r. Release it there, or by what `async with lock as held` gives",
            held.key, self._last_task, task and task.get_name(),
        )  # fmt: skip


def first_held(
    requests: Iterable[Request], keys: LockKeys | None = None
) -> AsyncAcquisition | None:
    """The first that is held for these requests, of the lock with these keys."""
    for request in requests:
        held: AsyncAcquisition | None = request.held
        if held is not None and keys in (None, held._lease.claim.keys):
            return held
    return None
