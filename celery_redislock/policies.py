"""What a duplicate does: one small class for each policy. Pure; the worker implements the verbs.

A policy's `act` gets the conflict, and ends it with one of the conflict's verbs. To write your
own policy, subclass `Policy` or one of the policies here:

    class SkipAtNight(Policy):
        def act(self, conflict):
            return conflict.skip() if night() else conflict.defer(60)
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, Final, Protocol

from .core.holders import Holder
from .errors import ConfigError


class _NoResult:
    """The type of `NO_RESULT`: a skip without a result. None is a result."""

    def __repr__(self) -> str:
        return "NO_RESULT"

    def __reduce__(self) -> str:
        return "NO_RESULT"  # pickle gives the same object


NO_RESULT: Final = _NoResult()
#: Seconds up to which a delay grows if `max_delay` is not given.
_MAX_DELAY: Final = 60.0


class Conflict(Protocol):
    """A task that met a held lock, and the verbs that end the conflict.

    Attributes:
        key: the lock's whole key in Redis.
        holder: who holds the lock; None while it is being handed to a waiter.
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

    def skip(self, result: Any = NO_RESULT) -> Any:
        """End the task without running it: with the result, or as REVOKED without one."""

    def defer(self, countdown: float) -> Any:
        """Publish the task again with this countdown in seconds."""

    def wait(self, timeout: float | None) -> bool:
        """Hold the pool slot until this task has the lock.

        Args:
            timeout: seconds to wait at most; None waits for ever.

        Returns:
            True: the task has the lock. False: the timeout is over.
        """

    def park(
        self, *, limit: int | None = None, max_wait: float | None = None, newest: bool = False
    ) -> bool:
        """End the delivery, and let the task wait in Redis until it has its turn.

        Args:
            limit: how many tasks may wait; None for any number.
            max_wait: seconds since its first conflict, after which its policy acts again.
            newest: replace the waiting tasks of the same name.

        Returns:
            True: the lock was free after all, and the task has it. False: `limit` tasks wait.
        """

    def replace(self, grace: float) -> bool:
        """End the delivery, tell the holder to end, and let the task wait in Redis, before all
        others, until the holder has ended. Waiting tasks of the same name are replaced too.

        Args:
            grace: seconds after which a prefork worker terminates the holder's process.

        Returns:
            True: the lock was free after all, and the task has it.
        """

    def run(self) -> Any:
        """Run the task. Allowed only after `wait`, `park` or `replace` returned True."""

    def fail(self) -> Any:
        """Fail the task with `LockConflict`."""


class Policy(abc.ABC):
    """What a duplicate does. Policies are shared by all calls and keep no state."""

    @property
    def parks(self) -> bool:
        """Whether it may put a task into the waiting room. If so, workers look after that room."""
        return True

    @property
    def replaces(self) -> bool:
        """Whether it may end the holder. If so, holders ask every second whether they must end."""
        return False

    @property
    def turns_away(self) -> bool:
        """Whether every conflict is certain to end without a run. The script that finds the lock
        held then also leaves the done note.
        """
        return False

    @abc.abstractmethod
    def act(self, conflict: Conflict) -> Any:
        """End the conflict with one of its verbs, and return what the verb returned."""


@dataclasses.dataclass(frozen=True)
class Skip(Policy):
    """End without running.

    Args:
        result: the task's result. Its state is SUCCESS, and chords and chains go on. Without a
            result, the state is REVOKED, `get()` raises `TaskSkipped`, and chords and chains fail.
    """

    result: Any = NO_RESULT

    @property
    def parks(self) -> bool:
        return False

    @property
    def turns_away(self) -> bool:
        return type(self).act is Skip.act  # a subclass may decide otherwise

    def act(self, conflict: Conflict) -> Any:
        return conflict.skip(self.result)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Defer(Policy):
    """Publish the task again with a countdown. It keeps its id, and this is not a retry.

    Args:
        delay: seconds before the next try; up to a quarter is added at random.
        backoff: factor for the delay of each further try, at least 1.
        max_delay: largest delay in seconds, before the random part. Default: 60, or `delay` if
            that is more.
        max_wait: seconds since the first conflict after which `then` acts; None defers for ever.
        then: the policy after `max_wait`.
    """

    delay: float = 5.0
    backoff: float = 1.0
    max_delay: float | None = None
    max_wait: float | None = None
    then: Policy = Skip()

    def __post_init__(self) -> None:
        _check_seconds("Defer", "delay", self.delay)
        _check_seconds("Defer", "max_delay", self.max_delay, none=True)
        _check_seconds("Defer", "max_wait", self.max_wait, none=True)
        if not _is_number(self.backoff) or not 1 <= self.backoff < float("inf"):
            raise ConfigError(f"Defer: backoff={self.backoff!r} must be a number of at least 1")
        _check_policy("Defer", self.then)

    @property
    def parks(self) -> bool:
        return self.then.parks

    @property
    def replaces(self) -> bool:
        return self.then.replaces

    def act(self, conflict: Conflict) -> Any:
        if self.max_wait is not None and conflict.waited >= self.max_wait:
            return self.then.act(conflict)
        return conflict.defer(self.countdown(conflict.deferrals))

    def countdown(self, deferrals: int) -> float:
        """Seconds until the next try, after this many deferrals, without the random part."""
        most = max(_MAX_DELAY, self.delay) if self.max_delay is None else self.max_delay
        try:
            return min(self.delay * self.backoff**deferrals, most)
        except OverflowError:
            return most if self.delay else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wait(Policy):
    """Hold the pool slot until the lock is released, then run. The release wakes it.

    Args:
        timeout: seconds after which `then` acts; None waits for ever.
        then: the policy after the timeout.
    """

    timeout: float | None = None
    then: Policy = Skip()

    def __post_init__(self) -> None:
        _check_seconds("Wait", "timeout", self.timeout, none=True)
        _check_policy("Wait", self.then)

    @property
    def parks(self) -> bool:
        return self.then.parks

    @property
    def replaces(self) -> bool:
        return self.then.replaces

    def act(self, conflict: Conflict) -> Any:
        if conflict.wait(self.timeout):
            return conflict.run()
        return self.then.act(conflict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Queue(Policy):
    """Wait in Redis, not in a pool slot, and run in the order of arrival.

    Args:
        limit: how many tasks may wait; `then` acts for one more. None for any number.
        max_wait: seconds since the first conflict after which `then` acts; None waits for ever.
        then: the policy beyond `limit` and after `max_wait`.
    """

    limit: int | None = None
    max_wait: float | None = None
    then: Policy = Skip()

    def __post_init__(self) -> None:
        limit = self.limit
        if limit is not None and (
            not isinstance(limit, int) or isinstance(limit, bool) or limit < 1
        ):
            raise ConfigError(f"Queue: limit={limit!r} must be None or an int of at least 1")
        _check_seconds("Queue", "max_wait", self.max_wait, none=True)
        _check_policy("Queue", self.then)

    @property
    def replaces(self) -> bool:
        return self.then.replaces

    def act(self, conflict: Conflict) -> Any:
        if self.max_wait is not None and conflict.waited >= self.max_wait:
            return self.then.act(conflict)
        if conflict.park(limit=self.limit, max_wait=self.max_wait):
            return conflict.run()
        return self.then.act(conflict)


@dataclasses.dataclass(frozen=True)
class Coalesce(Policy):
    """One task runs and at most one waits: a newer duplicate replaces the waiting one, which is
    skipped. The last one sent always runs. A retry or a redelivery is not newer: it replaces no
    task, and runs before the waiting one.
    """

    def act(self, conflict: Conflict) -> Any:
        conflict.park(newest=True)
        return conflict.run()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replace(Policy):
    """The newer run wins: the older run is told to end, and terminated if it does not.

    Within a second the older run's `self.lock.lost` is True; with `on_lock_lost="abort"` it ends
    with `LockLost`. A prefork worker then terminates its pool process; in other pools the newer run
    waits for its end. The older run's result is `TaskReplaced`, which names the newer run, unless
    the body returned or raised something else.

    Args:
        grace: seconds between telling the older run and terminating it.
    """

    grace: float = 5.0

    def __post_init__(self) -> None:
        _check_seconds("Replace", "grace", self.grace)

    @property
    def replaces(self) -> bool:
        return True

    def act(self, conflict: Conflict) -> Any:
        conflict.replace(self.grace)
        return conflict.run()


@dataclasses.dataclass(frozen=True)
class Raise(Policy):
    """Fail with `LockConflict`, which names the key and the holder."""

    @property
    def parks(self) -> bool:
        return False

    @property
    def turns_away(self) -> bool:
        return type(self).act is Raise.act

    def act(self, conflict: Conflict) -> Any:
        return conflict.fail()


_NAMED: Final = {
    "skip": Skip,
    "defer": Defer,
    "wait": Wait,
    "queue": Queue,
    "coalesce": Coalesce,
    "replace": Replace,
    "raise": Raise,
}


def policy_named(name: str) -> Policy:
    """The policy with this short name, with default arguments.

    Raises:
        ValueError: there is no such policy.
    """
    if name not in _NAMED:
        raise ValueError(f"unknown policy {name!r}; accepted: {', '.join(sorted(_NAMED))}")
    policy: Policy = _NAMED[name]()
    return policy


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_seconds(policy: str, name: str, value: Any, *, none: bool = False) -> None:
    if none and value is None:
        return
    if not _is_number(value) or not 0 <= value < float("inf"):
        accepted = "None or a number of seconds" if none else "a number of seconds"
        raise ConfigError(f"{policy}: {name}={value!r} must be {accepted}, not negative")


def _check_policy(policy: str, value: Any) -> None:
    if not isinstance(value, Policy):
        accepted = ", ".join(cls.__name__ + "()" for cls in _NAMED.values())
        raise ConfigError(f"{policy}: then={value!r} must be a policy object, such as {accepted}")
