"""What a duplicate does: one small class for each answer. Pure; the verbs are the worker's.

A policy's `act` is given the conflict, and ends it with one of the conflict's verbs. Write your
own by subclassing `Policy`, or one of the policies here:

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
        return "NO_RESULT"  # the same one, also from a pickle


NO_RESULT: Final = _NoResult()
#: Seconds up to which a delay grows where nobody says how far.
_MAX_DELAY: Final = 60.0


class Conflict(Protocol):
    """A task that met a held lock, and the ways in which it can end.

    Attributes:
        key: the lock's whole key in Redis.
        holder: who holds the lock; None if it is just being handed to a waiter.
        remaining: seconds after which the lock lapses, should the holder die now.
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
        """End the task without running it: with a result, or as revoked."""

    def defer(self, countdown: float) -> Any:
        """Publish the task again, to be run after this many seconds."""

    def wait(self, timeout: float | None) -> bool:
        """Hold the pool slot until the lock is taken: True, or False after the timeout."""

    def park(
        self, *, limit: int | None = None, max_wait: float | None = None, newest: bool = False
    ) -> bool:
        """End the delivery, and let the task wait in Redis until the lock is handed to it.

        Args:
            limit: how many may wait; None for any number.
            max_wait: seconds since it first met the held lock, after which it meets its policy
                once more.
            newest: replace those of this task that wait.

        Returns:
            True: the lock was free after all, and is taken. False: as many wait as may.
        """

    def replace(self, grace: float) -> bool:
        """End the delivery, tell the holder to end, and let the task wait in Redis until it has,
        before all others. Those of this task that wait are replaced too.

        Args:
            grace: seconds after which the holder's process is terminated, in a prefork worker.

        Returns:
            True: the lock was free after all, and is taken.
        """

    def run(self) -> Any:
        """Run the task; only after `wait`, `park` or `replace` took the lock."""

    def fail(self) -> Any:
        """End the task as failed with `LockConflict`."""


class Policy(abc.ABC):
    """What a duplicate does. Policies are shared by all calls and keep no state."""

    @property
    def parks(self) -> bool:
        """Whether it may put a task into the waiting room, after which workers then look."""
        return True

    @property
    def replaces(self) -> bool:
        """Whether it may end the holder. If so, a holder asks every second whether it is to end."""
        return False

    @property
    def turns_away(self) -> bool:
        """Whether every conflict ends without a run, and is known to before the lock is asked for.
        The done note is then left by the same script.
        """
        return False

    @abc.abstractmethod
    def act(self, conflict: Conflict) -> Any:
        """End the conflict. Return what its verb returned."""


@dataclasses.dataclass(frozen=True)
class Skip(Policy):
    """End without running.

    Args:
        result: the task's result; its state is SUCCESS, and chords and chains go on. Without
            it the state is REVOKED, `get()` raises `TaskSkipped`, and chords and chains fail.
    """

    result: Any = NO_RESULT

    @property
    def parks(self) -> bool:
        return False

    @property
    def turns_away(self) -> bool:
        return type(self).act is Skip.act  # else it is another's, who decides later

    def act(self, conflict: Conflict) -> Any:
        return conflict.skip(self.result)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Defer(Policy):
    """Publish the task again with a countdown. It keeps its id and counts no retry.

    Args:
        delay: seconds before the first new try; up to a quarter is added at random.
        backoff: what the delay is multiplied by for each further try, at least 1.
        max_delay: seconds that the delay never exceeds, before the random part. Default: 60, or
            `delay` if that is more.
        max_wait: seconds since the first try after which `then` acts; None defers for ever.
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
    """Hold the pool slot until the lock is released, then run. Woken, not polling.

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
    """Wait in Redis, not in the pool, and run in the order of arrival.

    Args:
        limit: how many may wait; one more meets `then`. None for any number.
        max_wait: seconds of waiting after which `then` acts; None waits for ever.
        then: the policy beyond the limit and after `max_wait`.
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
    """One runs and at most one waits: a newer duplicate replaces the one that waits, which is
    skipped. The last one sent always gets its run. A retry, or a run that died and is delivered
    again, is not newer: it replaces none, and runs before the one that waits.
    """

    def act(self, conflict: Conflict) -> Any:
        conflict.park(newest=True)
        return conflict.run()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replace(Policy):
    """The newer run wins: the running one is told to end, and terminated if it does not.

    Told: its `self.lock.lost` is True, and with `on_lock_lost="abort"` it ends with `LockLost`.
    Terminated: its pool process, in a prefork worker; in other pools its end is waited for. Its
    result is `TaskReplaced`, which names the newer one, unless it ends otherwise by itself.

    Args:
        grace: seconds from telling it to terminating it. It hears of it within a second.
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
    """The policy with that short name and its default arguments.

    Raises:
        ValueError: there is none.
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
