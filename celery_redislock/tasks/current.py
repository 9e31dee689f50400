"""The lock of the task that runs here, for code that has no `self`; and whether a beat sends."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from celery.signals import beat_init

from ..app.internals import running_task
from ..errors import LockLost
from .ends import LEASE, UNLOCKED

if TYPE_CHECKING:
    from datetime import timedelta

    from ..lock.lease import Lease

#: Whether this thread is a beat's. Before Celery 5.7 no header of its messages says so.
is_beat: Final[ContextVar[bool]] = ContextVar("redislock_beat", default=False)


@beat_init.connect
def _note_beat(**_: Any) -> None:
    is_beat.set(True)


#: The lock of the body that this code was started from, perhaps in another thread: a coroutine that
#: the body awaits in a loop elsewhere, or what it gives to `asyncio.to_thread`.
lock_of_body: Final[ContextVar[Lease | None]] = ContextVar("redislock_body", default=None)


class _Outlived:
    """The lock of a body that has ended, for a coroutine that goes on."""

    lost = True

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def ensure(self) -> None:
        raise LockLost(self._lease.key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lease, name)


class _CurrentLock:
    """The lock of the task that runs here, for code that has no `self`: in the body's thread, and
    in coroutines and threads to which the body's context was given (`asyncio` does so).

    Has the attributes of `self.lock`. A call returns the lease itself, or None.
    """

    def __call__(self) -> Lease | None:
        task = running_task()
        if task is not None:
            own: Lease | None = task.request.__dict__.get(LEASE)
            return own
        lease = lock_of_body.get()
        return None if lease is None or lease.is_over else lease

    if TYPE_CHECKING:
        key: str | None
        token: str | None
        ttl: float
        fence: int
        lost: bool

        def ensure(self) -> None: ...

        def describe(self, text: str) -> None: ...

        def pause(self, seconds: float | timedelta) -> None: ...

    else:

        def __getattr__(self, name: str) -> Any:
            lease = self()
            if lease is None and running_task() is None and (ended := lock_of_body.get()):
                return getattr(_Outlived(ended), name)
            return getattr(lease or UNLOCKED, name)

    def __bool__(self) -> bool:
        return self() is not None

    def __repr__(self) -> str:
        return repr(self() or UNLOCKED)


current_lock: Final = _CurrentLock()
