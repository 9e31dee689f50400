"""`current_lock`: the lock of the task that runs here, for code that has no `self`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..app.internals import running_task
from .ends import LEASE, UNLOCKED

if TYPE_CHECKING:
    from ..lock.lease import Lease


class _CurrentLock:
    """The lock of the task that runs in this thread, for code that has no `self`.

    Has the attributes of `self.lock`. A call returns the lease itself, or None.
    """

    def __call__(self) -> Lease | None:
        task = running_task()
        return None if task is None else task.request.__dict__.get(LEASE)

    if TYPE_CHECKING:
        key: str | None
        token: str | None
        ttl: float
        fence: int
        lost: bool

        def ensure(self) -> None: ...

    else:

        def __getattr__(self, name: str) -> Any:
            return getattr(self() or UNLOCKED, name)

    def __bool__(self) -> bool:
        return self() is not None

    def __repr__(self) -> str:
        return repr(self() or UNLOCKED)


current_lock: Final = _CurrentLock()
