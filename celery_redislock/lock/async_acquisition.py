"""`AsyncAcquisition`: what `async with` an `AsyncRedisLock` gives."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any

from ..errors import LockLost
from .async_lease import AsyncLease


class AsyncAcquisition:
    """One acquisition of an `AsyncRedisLock`, and never another one.

        async with AsyncRedisLock(app, "account:5") as held:
            await save(balance, fence=held.fence)

    Any coroutine of its event loop may use it.

    Raises:
        RuntimeError: a method is called in another event loop.
    """

    def __init__(self, lease: AsyncLease) -> None:
        self._lease = lease

    def __repr__(self) -> str:
        return f"<AsyncAcquisition of {self.key} fence={self.fence} lost={bool(self.lost)}>"

    @property
    def key(self) -> str:
        """The lock's whole key in Redis."""
        return self._lease.key

    @property
    def fence(self) -> int:
        """The fencing token, which rises with every acquisition of the key; 0 once the lock was
        released. Pass it to the resource, which must refuse a lower one than it has seen.
        """
        return 0 if self._lease.is_ended else self._lease.fence

    @property
    def lost(self) -> Lost:
        """True if the lock cannot be confirmed now. `ensure` asks the server; `await held.lost`
        waits until the lock is lost or released.
        """
        return Lost(self._lease)

    async def ensure(self) -> None:
        """Return if the lock is held.

        Raises:
            LockLost: it was lost, or released.
        """
        lease = self._usable()
        if lease.is_ended or not await lease.confirm():
            raise self._error()

    async def extend(self) -> bool:
        """Extend the lock to a whole ttl from now.

        Returns:
            True.

        Raises:
            LockLost: it was lost, or released.
            LockUnavailable: the server did not answer in time.
        """
        lease = self._usable()
        if lease.is_ended or lease.is_lost or not await lease.extend_soon():
            raise self._error()
        return True

    def release(self) -> Coroutine[Any, Any, bool]:
        """Release the lock. This begins with the call, also if its task is cancelled before it ran.
        If it is cancelled later, a thread goes on with it.

        Returns:
            Whether the lock was still held.
        """
        return self._usable().give_back()

    def _usable(self) -> AsyncLease:
        if self._lease.is_of_another_loop:
            raise RuntimeError(f"{self!r} belongs to another event loop, in which it was acquired")
        return self._lease

    def _error(self) -> LockLost:
        return self._lease.lost_error() if self._lease.is_lost else LockLost(self.key)


class Lost:
    """Whether a lock was lost: true or false, and something to wait for.

        if held.lost: ...
        await held.lost.wait()

    Args:
        lease: the acquisition; None if there is none, which is not lost.
    """

    def __init__(self, lease: AsyncLease | None) -> None:
        self._lease = lease

    def __bool__(self) -> bool:
        return self._lease is not None and self._lease.is_in_doubt

    def __repr__(self) -> str:
        return f"<Lost {bool(self)}>"

    async def wait(self) -> bool:
        """Wait until the lock is lost, or released.

        Returns:
            Whether it was lost.
        """
        return self._lease is not None and await self._lease.ends()

    def __await__(self) -> Generator[Any, None, bool]:
        return self.wait().__await__()
