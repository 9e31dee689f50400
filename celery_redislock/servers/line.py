"""A queue of coroutines, for what only so many may do at a time."""

from __future__ import annotations

import asyncio
from collections import deque


class Line:
    """Lets so many coroutines in at a time, in order; a failure is passed on to all who wait."""

    def __init__(self, room: int = 1) -> None:
        self._room = room
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self, timeout: float | None = None) -> bool:
        """Wait until there is room, or so many seconds. Whoever enters must leave. False if the
        time is over; raises what `fail` was called with meanwhile.
        """
        if self._room:
            self._room -= 1
            return True
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await asyncio.wait({turn}, timeout=timeout)
        except BaseException:
            if not turn.cancel() and turn.exception() is None:
                self.leave()  # it was our turn, and we cannot use it
            raise
        if turn.cancel():  # nobody gave us the turn in time
            return False
        turn.result()
        return True

    def leave(self) -> None:
        """Make room for the next one."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._room += 1

    def fail(self, error: Exception) -> None:
        """Raise this error in all who wait."""
        waiting, self._waiting = self._waiting, deque()
        for turn in waiting:
            if not turn.done():
                turn.set_exception(error)
