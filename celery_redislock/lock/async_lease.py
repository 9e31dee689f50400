"""A lease for coroutines: an acquisition of an `AsyncRedisLock`."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final

from ..errors import LockUnavailable
from ..protocol import past
from ..protocol.calls import Release, acquire, settle
from ..protocol.claims import Claim, Extended, Extension
from ..protocol.clock import clock
from ..protocol.exchange import Call
from ..protocol.log import get_logger
from ..protocol.waiting import Answer, Block, Step, Try, waiting
from ..servers.async_server import AsyncServer, InThreads
from ..servers.server import Server
from ..servers.threads import give_back, in_thread
from .heartbeat import heartbeat
from .held import extension_of, heard, revives, say_not_released, unheard
from .lease import Lease
from .ownership import out_of_sight

logger = get_logger()

#: The most locks of a server and loop for which a connection blocks. Who waits for further ones
#: asks again and again.
LISTENING: Final = 32
#: Between so many seconds they ask again, and the more of them there are the more seldom.
ASK_AGAIN: Final = (0.05, 0.15)
#: A release outside of tasks publishes no message.
_RELEASE: Final = Release(publishes=False)


class AsyncLease(Lease):
    """An acquisition of an `AsyncRedisLock`, by coroutines of one event loop.

    The heartbeat, which is a thread, keeps it alive.

    Attributes:
        ended: set once the lease is lost, or over.
        task: the name of the task that acquired it.
        stray_release_is_told: the warning that another task tried to release it was logged.
    """

    task = ""
    stray_release_is_told = False

    def __init__(self, server: Server, claim: Claim, asks: AsyncServer, *, beats: bool) -> None:
        super().__init__(server, claim, beats=beats, on_lost=_tell)
        self._asks = asks
        self._loop = asyncio.get_running_loop()
        self.ended = asyncio.Event()

    def extension(self, now: float) -> Extension | None:
        """See `Held.extension`. Nobody can release a lock whose event loop is closed."""
        if self._loop.is_closed():
            self.abandon()
            self.teller.tell(partial(_say_dropped, self.key, self.ttl))
            return None
        return super().extension(now)

    def __del__(self) -> None:
        # The garbage collector may call this anywhere. So the heartbeat's thread logs the warning.
        if self._beats and self.is_held:
            heartbeat.call_soon(partial(_say_dropped, self.key, self.ttl))

    @property
    def is_in_doubt(self) -> bool:
        """Whether ownership cannot be confirmed without asking the server."""
        return self.is_lost or (not self.is_over and self.fence > 0 and clock() >= self.deadline)

    @property
    def is_ended(self) -> bool:
        """Whether nothing is held here: it was released, its loop is closed, or this is a fork."""
        return self.is_over or self.inherited or self.is_loop_closed

    @property
    def is_of_another_loop(self) -> bool:
        """Whether another event loop runs here than its own."""
        return asyncio._get_running_loop() not in (None, self._loop)

    @property
    def is_loop_closed(self) -> bool:
        """Whether its event loop is closed."""
        return self._loop.is_closed()

    # -- acquiring ------------------------------------------------------------------------

    async def acquire_in_time(self, timeout: float | None) -> bool:
        """Take the lock. If this is cancelled or fails, what the server gave is given back.

        Args:
            timeout: seconds to wait; None for ever, 0 to try once.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        try:
            with out_of_sight():
                if timeout == 0:
                    await self._take(Try(acquire(self.claim), 0.0))
                else:
                    await self._wait_in_line(timeout)
        except BaseException:
            # The server may have given us the lock, or count us among those who wait for it.
            self.give_back_in_thread(_RELEASE)
            raise
        return self.fence > 0

    async def _wait_in_line(self, timeout: float | None) -> None:
        """Wait behind those in this loop who wait for the lock, then ask the server for it."""
        give_up = None if timeout is None else clock() + timeout
        line = self._asks.line_for(self.key)
        if not await line.enter(timeout):
            return
        self._asks.asking += 1
        try:
            await self._wait(None if give_up is None else max(give_up - clock(), 0.0))
        except LockUnavailable as exc:
            line.fail(exc)  # each of the others would find out for itself, one after another
            raise
        finally:
            self._asks.asking -= 1
            line.leave()

    async def _wait(self, timeout: float | None) -> None:
        """See `Lease.wait`."""
        steps = waiting(self.claim, timeout)
        with contextlib.suppress(StopIteration):
            step = next(steps)
            while True:
                try:
                    answer = await self._take(step)
                except LockUnavailable as exc:
                    step = steps.throw(exc)
                else:
                    step = steps.send(answer)

    async def _take(self, step: Step) -> Answer | None:
        """Take one step of a wait. See `Lease._do`."""
        self.asked = True
        if isinstance(step, Try):
            return self._heard(step, await self._asks.run(step.call, hold_off=step.hold_off))
        if isinstance(step, Block):
            often = self._asks.asking / LISTENING
            if often <= 1:
                return self._heard(step, await self._asks.block(*step))
            await asyncio.sleep(min(step.seconds, random.uniform(*ASK_AGAIN) * often))
            return self._heard(step, await self._asks.run(step.call, hold_off=0.0))
        await asyncio.sleep(step.seconds)
        return None

    # -- what the holder may believe ------------------------------------------------------

    async def confirm(self) -> bool:
        """Whether the lock is still ours. Asks the server if the right has ended."""
        if not self.is_lost and self.is_in_doubt:
            # If only this request failed, the heartbeat has extended the lock meanwhile.
            with contextlib.suppress(LockUnavailable):
                await self.extend_soon()
        return not self.is_lost

    async def extend_soon(self) -> bool:
        """See `Held.extend_now`."""
        if self.is_over:
            return False
        call, sent_at = extension_of(self, retake=True)
        self.unanswered += 1  # it stays so if this is cancelled
        try:
            if isinstance(self._asks, InThreads):  # a thread goes on when this is cancelled
                reply = await in_thread(partial(self._extend_in_thread, call))
            else:
                with out_of_sight():
                    reply = await self._asks.run(call, once=True)
        except LockUnavailable as exc:
            return unheard(self, exc)
        self.unanswered -= 1
        return heard(self, reply, sent_at) and not self.is_over

    def _extend_in_thread(self, call: Call[Extended]) -> Extended:
        """The reply to an extension, which is undone if the lock was released meanwhile."""
        reply = self.server.run(call, once=True)
        if self.is_released and revives(self, reply):
            self.give_back_in_thread(_RELEASE)
        return reply

    async def ends(self) -> bool:
        """Wait until the lock is released or lost. Returns whether it was lost."""
        while not self.ended.is_set():
            # Without a heartbeat the lock is not to be extended because somebody looks at it.
            if self.is_in_doubt and not (self._beats and await self.confirm()):
                return True
            left = max(self.deadline - clock(), 0.0)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.ended.wait(), left)
        return self.is_lost

    def tell(self) -> None:
        """Wake those who wait for the end. Any thread may call this."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self.ended.set)

    # -- giving the lock back -------------------------------------------------------------

    def give_back(self) -> Coroutine[Any, Any, bool]:
        """Release the lock: from this call on, even if its task is cancelled before it begins. If
        it is cancelled, a thread goes on with it.

        Returns:
            Whether it was still ours.
        """
        if self.is_over or self.inherited:
            return _false()
        release = self._to_release(_RELEASE, past.RELEASED, wait=False)
        self.is_over = True
        self.ended.set()
        return self._give_back(release, _Begin(self, release))

    async def _give_back(self, release: Release, begin: _Begin) -> bool:
        begin.has_begun = True
        call = settle(self.claim, release)
        try:
            with out_of_sight():
                settled = await self._asks.run(call)
        except LockUnavailable as exc:
            say_not_released(self, exc)
            return False
        except BaseException:
            self.give_back_in_thread(release)
            raise
        question, reply = None if settled.ours else self._question_why_gone(call), None
        if question is not None:
            try:
                with contextlib.suppress(LockUnavailable):
                    reply = await self._asks.run(question, once=True)
            finally:
                self._lose_at_release(reply)
        return settled.ours and not self.is_lost

    def give_back_in_thread(self, release: Release) -> None:
        """Release the lock without a coroutine."""
        self.is_over = True
        if self.asked and not self.inherited:
            call = settle(self.claim, release)
            unheard = partial(say_not_released, self)
            give_back(self.server, call, patient=self.fence > 0, unheard=unheard)

    def give_back_soon(self, release: Release) -> None:
        """Release the lock without a coroutine. Safe in a finalizer: this waits for no mutex."""
        try:
            self._loop.call_soon_threadsafe(self.give_back_in_thread, release)
        except RuntimeError:  # the loop is closed
            self.give_back_in_thread(release)


class _Begin:
    """Notices that a coroutine is dropped that was to release a lock, and has not begun: a task was
    cancelled first. Only that coroutine refers to it.

    Attributes:
        has_begun: the coroutine has begun.
    """

    def __init__(self, lease: AsyncLease, release: Release) -> None:
        self._lease = lease
        self._release = release
        self.has_begun = False

    def __del__(self) -> None:
        if not self.has_begun:
            self._lease.give_back_soon(self._release)


async def _false() -> bool:
    return False


def _tell(lease: AsyncLease) -> None:
    lease.tell()


def _say_dropped(key: str, ttl: float) -> None:
    logger.warning(
        "redislock: %s was never released: its AsyncRedisLock was dropped, or the task or the event"
        " loop ended that acquired it. It is no longer extended and expires within %g s", key, ttl,
    )  # fmt: skip
