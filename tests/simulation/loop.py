"""An event loop of asyncio on the world's time, for `AsyncRedisLock`: where another loop asks the
system whether a socket is ready, it lets other actors go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections import deque
from collections.abc import Coroutine
from typing import Any

from . import baton
from .interpreter import Condition, Lock


class _Sleep:
    """Stands for the selector."""

    def __init__(self) -> None:
        self._is_woken = False
        self._sleeper: baton.Actor | None = None

    def wake(self) -> None:
        self._is_woken = True
        if self._sleeper is not None:
            baton.world.wake(self._sleeper)

    def select(self, timeout: float | None) -> list[Any]:
        if not self._is_woken and timeout != 0:
            self._sleeper = baton.world.current
            try:
                baton.world.wait(timeout)
            finally:
                self._sleeper = None
        self._is_woken = False
        return []


class Loop(asyncio.BaseEventLoop):
    """The loop. It has no sockets."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _Sleep()

    def _process_events(self, events: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        self._selector.wake()


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run this in a loop of its own, as `asyncio.run` does."""
    loop = Loop()
    try:
        return loop.run_until_complete(main)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                loop.run_until_complete(task)
        loop.close()


class SimpleQueue:
    """`queue.SimpleQueue`, which an executor's threads wait for."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._condition = Condition(Lock())

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        with self._condition:
            self._items.append(item)
            self._condition.notify()

    put_nowait = put

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        with self._condition:
            if not self._items and not (
                block and self._condition.wait_for(lambda: self._items, timeout)
            ):
                raise queue.Empty
            return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def qsize(self) -> int:
        return len(self._items)

    def empty(self) -> bool:
        return not self._items


queue.SimpleQueue = SimpleQueue  # type: ignore[assignment, misc]
