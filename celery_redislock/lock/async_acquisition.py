"""One acquisition by coroutines: what `async with` an `AsyncRedisLock` gives."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Coroutine, Generator
from functools import partial
from typing import Any, Final, TypeVar

from ..errors import LockLost, LockUnavailable
from ..protocol import past
from ..protocol.calls import Release, acquire, settle
from ..protocol.claims import Claim, Extended, Extension
from ..protocol.clock import clock
from ..protocol.waiting import Block, Sleep, Step, Try, waiting
from ..servers.async_server import AsyncServer, InThreads
from ..servers.server import Server
from ..servers.threads import release_in_background
from .lease import Lease
from .ownership import out_of_sight
from .right import Ask

T = TypeVar("T")

#: Seconds, to be multiplied by `crowd`, between which a waiter asks again if too many wait for each
#: of them to block.
ASK_AGAIN: Final = (0.05, 0.15)
#: A release outside of tasks publishes no message.
_RELEASE: Final = Release(publishes=False)
_ORPHANED: Final = (
    "its AsyncRedisLock was dropped, or the task or the event loop ended that acquired it"
)


class _LoopLease(Lease):
    """The lease of an acquisition, kept alive by a thread as long as its event loop is there."""

    def __init__(self, server: Server, claim: Claim, beats: bool) -> None:
        self.loop = loop = asyncio.get_running_loop()
        self.ended = ended = asyncio.Event()
        super().__init__(server, claim, beats=beats, on_lost=partial(_wake, loop, ended))

    def extension(self, now: float) -> Extension | None:
        if self.loop.is_closed():
            self.orphan(_ORPHANED)
        return None if self.is_orphaned else super().extension(now)


def _wake(loop: asyncio.AbstractEventLoop, ended: asyncio.Event, lease: Lease) -> None:
    """Wake those who wait for the end. Any thread may call this."""
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
        loop.call_soon_threadsafe(ended.set)


class AsyncAcquisition:
    """One acquisition of an `AsyncRedisLock`, and never another one.

        async with AsyncRedisLock(app, "account:5") as held:
            await save(balance, fence=held.fence)

    Any coroutine of its event loop may use it.

    Raises:
        RuntimeError: a method is called in another event loop.
    """

    def __init__(self, server: Server, claim: Claim, asks: AsyncServer, beats: bool) -> None:
        self._lease = _LoopLease(server, claim, beats)
        self._asks = asks

    def __repr__(self) -> str:
        return f"<AsyncAcquisition of {self.key} fence={self.fence} lost={bool(self.lost)}>"

    def __del__(self) -> None:
        lease = self.__dict__.get("_lease")  # its making may have been interrupted
        if lease is not None:
            lease.orphan(_ORPHANED)

    @property
    def key(self) -> str:
        """The lock's whole key in Redis."""
        return self._lease.key

    @property
    def fence(self) -> int:
        """The fencing token, which rises with every acquisition of the key; 0 once the lock was
        released. Pass it to the resource, which must refuse a lower one than it has seen.
        """
        return 0 if self._is_ended else self._lease.fence

    @property
    def lost(self) -> Lost:
        """True if the lock cannot be confirmed now. `ensure` asks the server; `await held.lost`
        waits until the lock is lost or released.
        """
        return Lost(self)

    async def ensure(self) -> None:
        """Return if the lock is held.

        Raises:
            LockLost: it was lost, or released.
        """
        self._check_loop()
        if self._is_ended or not await self._confirm():
            raise self._error()

    async def extend(self) -> bool:
        """Extend the lock to a whole ttl from now.

        Returns:
            True.

        Raises:
            LockLost: it was lost, or released.
            LockUnavailable: the server did not answer in time.
        """
        self._check_loop()
        if self._is_ended or self._lease.is_lost or not await self._extend():
            raise self._error()
        return True

    def release(self) -> Coroutine[Any, Any, bool]:
        """Release the lock. This begins with the call, also if its task is cancelled before it ran.
        If it is cancelled later, a thread goes on with it.

        Returns:
            Whether the lock was still held.
        """
        self._check_loop()
        return self._give_back()

    def _give_back(self) -> Coroutine[Any, Any, bool]:
        lease = self._lease
        if lease.is_over or lease.inherited:
            return _false()
        release = lease.to_release(_RELEASE, past.RELEASED, wait=False)
        lease.is_over = True
        lease.ended.set()
        return self._release(release, _Begin(self, release))

    # -- whose it is ----------------------------------------------------------------------

    @property
    def _is_ended(self) -> bool:
        """Whether nothing is held here: it was released, its loop is closed, or this is a fork."""
        lease = self._lease
        return lease.is_over or lease.inherited or lease.loop.is_closed()

    @property
    def _is_of_another_loop(self) -> bool:
        """Whether another event loop runs here than its own."""
        return asyncio._get_running_loop() not in (None, self._lease.loop)

    def _check_loop(self) -> None:
        if self._is_of_another_loop:
            raise RuntimeError(f"{self!r} belongs to another event loop, in which it was acquired")

    def _error(self) -> LockLost:
        return self._lease.lost_error() if self._lease.is_lost else LockLost(self.key)

    # -- acquiring ------------------------------------------------------------------------

    async def _acquire(self, timeout: float | None) -> bool:
        """Take the lock, within so many seconds, or without end. A failure gives it back."""
        try:
            with out_of_sight():
                if timeout == 0:
                    await self._do(Try(acquire(self._lease.claim), 0.0))
                else:
                    await self._wait_in_line(timeout)
        except BaseException:
            # The server may have given us the lock, or count us among those who wait for it.
            self._call_off()
            raise
        if not self._lease.fence:
            self._call_off()  # a request that had no reply may have taken the lock meanwhile
        return self._lease.fence > 0

    def _call_off(self) -> None:
        release = self._lease.to_release(_RELEASE, past.NOT_RUN, wait=False)
        self._release_in_thread(release)

    async def _wait_in_line(self, timeout: float | None) -> None:
        """Wait behind those in this loop who wait for the lock, then ask the server for it."""
        give_up = None if timeout is None else clock() + timeout
        line = self._asks.line_for(self.key)
        if not await line.enter(timeout):
            return
        self._asks.asking += 1
        try:
            left = None if give_up is None else max(give_up - clock(), 0.0)
            await self._go(waiting(self._lease.claim, left))
        except LockUnavailable as exc:
            line.fail(exc)  # each of the others would find out for itself, one after another
            raise
        finally:
            self._asks.asking -= 1
            line.leave()

    async def _go(self, steps: Generator[Step | Ask, Any, T]) -> T:
        """Take these steps. Returns what they return."""
        try:
            step = next(steps)
            while True:
                try:
                    answer = await self._do(step)
                except BaseException as exc:
                    step = steps.throw(exc)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def _do(self, step: Step | Ask) -> Any:
        lease = self._lease
        if isinstance(step, Ask):
            if step.call.script == "extend" and isinstance(self._asks, InThreads):
                # The thread goes on if its coroutine is cancelled.
                ask = partial(lease.server.run, step.call, once=True)
                return await self._asks.in_turn(lease.key, lambda: self._undone(ask()))
            return self._undone(await self._asks.run(step.call, once=step.once))
        lease.asked = True
        if isinstance(step, Sleep):
            return await asyncio.sleep(step.seconds)
        if isinstance(step, Try):
            asked = self._asks.run(step.call, hold_off=step.hold_off)
        elif (crowd := self._asks.crowd) <= 1:
            asked = self._asks.block(*step)
        else:
            await asyncio.sleep(min(step.seconds, random.uniform(*ASK_AGAIN) * crowd))
            asked = self._asks.run(step.call, hold_off=0.0)
        was_in_doubt, lease.in_doubt = lease.in_doubt, True
        answer = await asked
        lease.in_doubt = was_in_doubt or step.call.in_doubt
        return lease.accept(answer, clock() if isinstance(step, Block) else None)

    # -- what the holder may believe ------------------------------------------------------

    async def _confirm(self) -> bool:
        """Whether the lock is still ours. Asks the server if the right has ended."""
        if not self._lease.is_lost and self._lease.is_in_doubt:
            # If only this request failed, the heartbeat has extended the lock meanwhile.
            with contextlib.suppress(LockUnavailable):
                await self._extend()
        return not self._lease.is_lost

    async def _extend(self) -> bool:
        lease = self._lease
        if lease.is_over:
            return False
        with out_of_sight():
            return await self._go(lease.extending()) and not lease.is_over

    def _undone(self, reply: Extended) -> Extended:
        """The reply, after the lock is given back if it was released, and this took it again."""
        if self._lease.is_released and reply.takes_again:
            self._lease.is_undone = True  # first: the release may find nothing for that
            self._release_in_thread(_RELEASE)
        return reply

    async def _ends(self) -> bool:
        """Wait until the lock is released or lost. Returns whether it was lost."""
        lease = self._lease
        while not lease.ended.is_set():
            # Without a heartbeat, a look at the lock must not extend it.
            if lease.is_in_doubt and not (lease.beats and await self._confirm()):
                return True
            left = max(lease.deadline - clock(), 0.0)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(lease.ended.wait(), left)
        return lease.is_lost

    # -- giving the lock back -------------------------------------------------------------

    async def _release(self, release: Release, begin: _Begin) -> bool:
        begin.has_begun = True
        lease = self._lease
        call = settle(lease.claim, release)
        try:
            with out_of_sight():
                settled = await self._asks.run(call)
                if not settled.ours:
                    await self._go(lease.asking_why(call))
        except LockUnavailable as exc:
            lease.say_not_released(exc)
            return False
        except BaseException:
            self._release_in_thread(release)
            raise
        return (settled.ours or lease.is_undone) and not lease.is_lost

    async def _end_block(self, failed: bool) -> None:
        """Release the lock at the end of a block: `LockLost`, if it was lost and nothing failed."""
        if not self._is_ended:
            await self._give_back()
            if self._lease.is_lost and not failed:
                raise self._lease.lost_error()

    def _abandon(self) -> None:
        """Forget the lock, which has expired."""
        self._lease.abandon()
        self._lease.ended.set()

    def _release_in_thread(self, release: Release) -> None:
        """Release the lock without a coroutine."""
        lease = self._lease
        lease.is_over = True
        if lease.asked and not lease.inherited:
            call = settle(lease.claim, release)
            release_in_background(
                lease.server, call, patient=lease.fence > 0, unheard=lease.say_not_released
            )

    def _release_soon(self, release: Release) -> None:
        """Release the lock without a coroutine. Safe in a finalizer: this waits for no mutex."""
        try:
            self._lease.loop.call_soon_threadsafe(self._release_in_thread, release)
        except RuntimeError:  # the loop is closed
            self._release_in_thread(release)


class _Begin:
    """Notices that the coroutine which was to release a lock is dropped before it has begun."""

    def __init__(self, held: AsyncAcquisition, release: Release) -> None:
        self._held = held
        self._release = release
        self.has_begun = False

    def __del__(self) -> None:
        if not self.has_begun:
            self._held._release_soon(self._release)


async def _false() -> bool:
    return False


class Lost:
    """Whether a lock was lost: true or false, and something to wait for.

        if held.lost: ...
        await held.lost.wait()

    What was never acquired is not lost.
    """

    def __init__(self, held: AsyncAcquisition | None) -> None:
        self._held = held

    def __bool__(self) -> bool:
        return self._held is not None and self._held._lease.is_in_doubt

    def __repr__(self) -> str:
        return f"<Lost {bool(self)}>"

    async def wait(self) -> bool:
        """Wait until the lock is lost, or released. Returns whether it was lost."""
        return self._held is not None and await self._held._ends()

    def __await__(self) -> Generator[Any, None, bool]:
        return self.wait().__await__()
