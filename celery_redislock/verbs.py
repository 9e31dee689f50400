"""What a policy gets, and what it can do with it: the verbs of a conflict. No I/O is here."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final, Protocol

from .protocol.holders import Holder


class NoResult:
    """The type of `NO_RESULT`, which means that no result was given: None is a result."""

    def __repr__(self) -> str:
        return "NO_RESULT"

    def __reduce__(self) -> str:
        return "NO_RESULT"  # pickle gives the same object


NO_RESULT: Final = NoResult()


class Decision:
    """How a conflict ends. A verb of `Conflict` makes the decision, and `Policy.act` returns it."""


class Conflict(Protocol):
    """A duplicate that met a held lock, and the verbs (methods) that end the conflict.

    Attributes:
        key: the lock's whole key in Redis.
        holder: the run that holds the lock; None while the lock is handed to a waiting task.
        remaining: seconds until the lock expires if the holder dies now.
        deferrals: how often this task was deferred before, by any policy.
        waited: seconds since this task first met the held lock.
    """

    @property
    def key(self) -> str: ...
    @property
    def holder(self) -> Holder | None: ...
    @property
    def remaining(self) -> float: ...
    @property
    def deferrals(self) -> int: ...
    @property
    def waited(self) -> float: ...

    def skip(self, result: Any = NO_RESULT) -> Decision:
        """End the task without running it: with this result, or as REVOKED without one."""

    def defer(self, countdown: float | timedelta) -> Decision:
        """Publish the task again with this countdown in seconds."""

    def wait(self, timeout: float | timedelta | None) -> bool:
        """Hold the pool slot until this task has the lock.

        Args:
            timeout: seconds to wait at most; None waits for ever.

        Returns:
            True: the task has the lock. False: the timeout is over.
        """

    def park(
        self,
        *,
        limit: int | None = None,
        max_wait: float | timedelta | None = None,
        newest: bool = False,
        quiet: tuple[float | timedelta, float | timedelta] | None = None,
    ) -> bool:
        """End the delivery, and let the task wait in Redis until it is next.

        Args:
            limit: how many tasks may wait; None for any number.
            max_wait: seconds since the task's first conflict after which its policy acts again.
            newest: replace the waiting task of the same name.
            quiet: with `newest`: it is not next until so many seconds have passed without a newer
                one, or so many (the second number) since the first of them.

        Returns:
            True: the lock was free after all, and the task has it. False: the room is full.
        """

    def replace(self, grace: float | timedelta) -> bool:
        """End the delivery, tell the holder to end, and let the task wait in Redis, before all
        others, until the holder has ended. The waiting task of the same name is replaced too.

        Args:
            grace: seconds after which a prefork worker terminates the holder's process.

        Returns:
            True: the lock was free after all, and the task has it.
        """

    def run(self) -> Decision:
        """Run the task. Allowed only after `wait`, `park` or `replace` returned True."""

    def fail(self) -> Decision:
        """Fail the task with `LockConflict`."""
