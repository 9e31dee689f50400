"""What a policy gets, and what it answers: a conflict, and values that its verbs return. No I/O."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, Protocol, TypeAlias

from .errors import ConfigError
from .protocol.checks import plain
from .protocol.holders import Holder
from .protocol.suspensions import Suspension


class NoResult:
    """The type of `NO_RESULT`, which means that no result was given: None is a result."""

    def __repr__(self) -> str:
        return "NO_RESULT"

    def __reduce__(self) -> str:
        return "NO_RESULT"  # pickle gives the same object


NO_RESULT: Final = NoResult()


@dataclasses.dataclass(frozen=True)
class ToSkip:
    """See `Conflict.skip`."""

    result: Any = NO_RESULT


@dataclasses.dataclass(frozen=True)
class ToFail:
    """See `Conflict.fail`."""


@dataclasses.dataclass(frozen=True)
class ToDefer:
    """See `Conflict.defer`. The countdown is in seconds."""

    countdown: float


@dataclasses.dataclass(frozen=True)
class ToWait:
    """See `Conflict.wait`. The timeout is in seconds."""

    timeout: float | None
    then: Then = None


@dataclasses.dataclass(frozen=True)
class ToPark:
    """See `Conflict.park`. Times are in seconds."""

    limit: int | None = None
    max_wait: float | None = None
    newest: bool = False
    quiet: tuple[float, float] | None = None
    then: Then = None


@dataclasses.dataclass(frozen=True)
class ToReplace:
    """See `Conflict.replace`. The grace is in seconds."""

    grace: float


#: What is to become of a task: what a verb of `Conflict` returns, and `Policy.act` in turn.
Decision: TypeAlias = ToSkip | ToFail | ToDefer | ToWait | ToPark | ToReplace


class Acts(Protocol):
    """What decides about a conflict: a `Policy`."""

    def act(self, conflict: Conflict) -> Decision: ...


#: What acts if the task did not get the lock by waiting: a policy, or a function of the conflict as
#: it is then. None skips the task.
Then: TypeAlias = Acts | Callable[["Conflict"], Decision] | None


@dataclasses.dataclass(frozen=True)
class Conflict:
    """A duplicate that met a held lock, and the verbs (methods) that end the conflict. A verb does
    nothing: it returns a value, for `Policy.act` to return.

    Attributes:
        key: the lock's whole key in Redis.
        holder: the run that holds the lock; None while the lock is handed to a waiting task, or if
            the task is suspended.
        remaining: seconds until the lock expires if the holder dies now.
        deferrals: how often this task was deferred before, by any policy.
        waited: seconds since this task first met the held lock.
        suspension: what an operator has suspended, if only that keeps the task from the lock; else
            None. `remaining` are the seconds until it ends.
    """

    key: str
    holder: Holder | None
    remaining: float
    deferrals: int = 0
    waited: float = 0.0
    suspension: Suspension | None = None

    def skip(self, result: Any = NO_RESULT) -> Decision:
        """End the task without running it: with this result, or as REVOKED without one."""
        return ToSkip(result)

    def fail(self) -> Decision:
        """Fail the task with `LockConflict`."""
        return ToFail()

    def defer(self, countdown: float | timedelta) -> Decision:
        """Publish the task again with this countdown in seconds."""
        return ToDefer(plain(countdown))

    def wait(self, timeout: float | timedelta | None, then: Then = None) -> Decision:
        """Hold the pool slot until this task has the lock, and run it.

        Args:
            timeout: seconds to wait at most; None waits for ever.
            then: what acts after the timeout. Default: the task is skipped.

        Raises:
            ConfigError: `then` is neither a policy nor a function.
        """
        return ToWait(plain(timeout), _checked(then))

    def park(
        self,
        *,
        limit: int | None = None,
        max_wait: float | timedelta | None = None,
        newest: bool = False,
        quiet: tuple[float | timedelta, float | timedelta] | None = None,
        then: Then = None,
    ) -> Decision:
        """End the delivery, and let the task wait in Redis until it is next. If the lock is free by
        then, the task runs at once.

        Args:
            limit: how many tasks may wait; None for any number.
            max_wait: seconds since the task's first conflict after which its policy acts again.
            newest: replace the waiting task of the same name.
            quiet: with `newest`: it is not next until so many seconds have passed without a newer
                one, or so many (the second number) since the first of them.
            then: what acts if the room is full. Default: the task is skipped.

        Raises:
            ConfigError: `then` is neither a policy nor a function.
        """
        spans = None if quiet is None else (plain(quiet[0]), plain(quiet[1]))
        return ToPark(limit, plain(max_wait), newest, spans, _checked(then))

    def replace(self, grace: float | timedelta) -> Decision:
        """End the delivery, tell the holder to end, and let the task wait in Redis, before all
        others, until the holder has ended. The waiting task of the same name is replaced too. If
        the lock is free by then, the task runs at once.

        Args:
            grace: seconds after which a prefork worker terminates the holder's process.
        """
        return ToReplace(plain(grace))


def _checked(then: Any) -> Then:
    if then is not None and not callable(then) and not hasattr(then, "act"):
        raise ConfigError(
            f"then={then!r} must be a policy object, such as Skip(), or a function of the conflict"
        )
    return then  # type: ignore[no-any-return]
