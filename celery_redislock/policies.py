"""The policies: each says what a duplicate does. No I/O is here.

A policy's `act` gets a `Conflict`, and returns what one of the conflict's methods, its verbs,
returns: a value, which the worker carries out. To write your own policy, subclass `Policy` or one
of the policies here:

    class SkipAtNight(Policy):
        def act(self, conflict):
            return conflict.skip() if night() else conflict.defer(60)
"""

from __future__ import annotations

import abc
import copy
import dataclasses
from typing import TYPE_CHECKING, Any, Final

from .errors import ConfigError
from .protocol.checks import Seconds, is_int, is_number
from .verbs import NO_RESULT, Conflict, Decision


class Policy(abc.ABC):
    """What a duplicate does. Policies are shared by all calls and keep no state.

    The other attributes describe the policy in advance; their defaults fit any `act`.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # The parent's attributes do not describe a subclass that has its own `act`.
        parents = [each for each in cls.__bases__ if issubclass(each, Policy)]
        if any(each.act not in (cls.act, Policy.act) for each in parents):
            for name in {"parks", "parks_all", "turns_away", "describe", "eager"} - {*vars(cls)}:
                setattr(cls, name, vars(Policy)[name])

    #: Whether the policy may put tasks into the waiting room. Workers then look after it.
    parks: bool = True
    #: Whether the policy parks every duplicate, whoever has the lock. If the lock is likely to be
    #: held, a task is then parked before the lock is asked for.
    parks_all: bool = False
    #: Whether the policy decides before the lock is asked for, in `admit`.
    admits: bool = False
    #: Whether the policy may end the holder. If so, holders ask every second if they must end.
    replaces: bool = False
    #: Whether no conflict ends in a run. If so, the script that finds one leaves the done note.
    turns_away: bool = False
    #: Whether the tasks that the policy turns away end as failed.
    fails: bool = False
    #: Why the policy needs a lock with a limit of 1; "" if it does not.
    one_run: str = ""
    #: The result of a task that a newer one replaces; `NO_RESULT` if it ends as REVOKED.
    result_if_replaced: Any = NO_RESULT

    def longest_countdown(self) -> float:
        """The longest countdown that the policy may use, in seconds, without the random part."""
        return 0.0

    def eager(self) -> Policy:
        """The policy for eager mode, in which no worker runs a published task."""
        return self

    def describe(self, waiting: int = 0) -> str:
        """What would happen to a duplicate now, while this many tasks wait in the room."""
        return f"{self!r}, your own policy, would decide"

    def admit(self, conflict: Conflict) -> Decision | None:
        """Decide before the lock is asked for; only if the policy `admits`. It is not asked of a
        retry, or of a task that comes from the waiting room. The conflict has no holder. Returns
        None to ask for the lock.
        """
        return None

    @abc.abstractmethod
    def act(self, conflict: Conflict) -> Decision:
        """How the conflict ends: what one of its verbs returns."""


class _Bounded(Policy):
    """A policy that may give up, after which `then` acts."""

    then: Policy

    def __post_init__(self) -> None:
        if not isinstance(self.then, Policy):
            known = ", ".join(f"{each.__name__}()" for each in _NAMED.values())
            what = f"{type(self).__name__}: then={self.then!r} must be a policy object"
            raise ConfigError(f"{what}, such as {known}")

    if not TYPE_CHECKING:  # to type checkers they are what a subclass may set: plain attributes
        parks = property(lambda self: self.then.parks)
        replaces = property(lambda self: self.then.replaces)
        one_run = property(lambda self: self.then.one_run)
        result_if_replaced = property(lambda self: self.then.result_if_replaced)

    def longest_countdown(self) -> float:
        return self.then.longest_countdown()

    def eager(self) -> Policy:
        return self.then.eager()

    def _after(self, seconds: float | None) -> str:
        return "" if seconds is None else f"; after {seconds:g} s, {self.then.describe()}"


@dataclasses.dataclass(frozen=True)
class Skip(Policy):
    """End without running.

    Args:
        result: the task's result. Its state is SUCCESS, and chords and chains go on. Without a
            result, the state is REVOKED, `get()` raises `TaskSkipped`, and chords and chains fail.
    """

    result: Any = NO_RESULT
    parks = False
    turns_away = True

    def __repr__(self) -> str:
        result = "" if self.result is NO_RESULT else f"result={self.result!r}"
        return f"{type(self).__qualname__}({result})"

    def describe(self, waiting: int = 0) -> str:
        ends = "REVOKED" if self.result is NO_RESULT else f"SUCCESS with {self.result!r}"
        return f"it would be skipped: {ends}"

    def act(self, conflict: Conflict) -> Decision:
        return conflict.skip(self.result)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Defer(_Bounded):
    """Publish the task again with a countdown. It keeps its id, and this is not a retry.

    Args:
        delay: seconds before the next try; up to a quarter is added at random.
        backoff: factor for the delay of each further try, at least 1.
        max_delay: largest delay in seconds, before the random part. Default: 60, or `delay` if
            that is more.
        max_wait: seconds since the first conflict after which `then` acts; None defers for ever.
        then: the policy after `max_wait`.
    """

    delay: Seconds[float] = Seconds(5.0)
    backoff: float = 1.0
    max_delay: Seconds[float | None] = Seconds(None)
    max_wait: Seconds[float | None] = Seconds(None)
    then: Policy = Skip()

    def __post_init__(self) -> None:
        if not is_number(self.backoff) or not 1 <= self.backoff < float("inf"):
            raise ConfigError(f"Defer: backoff={self.backoff!r} must be a number of at least 1")
        super().__post_init__()

    def longest_countdown(self) -> float:
        return max(self.countdown(10_000), self.then.longest_countdown())

    def describe(self, waiting: int = 0) -> str:
        then = self._after(self.max_wait)
        return f"it would be deferred, and tried again in {self.countdown(0):g} s{then}"

    def act(self, conflict: Conflict) -> Decision:
        if self.max_wait is not None and conflict.waited >= self.max_wait:
            return self.then.act(conflict)
        return conflict.defer(self.countdown(conflict.deferrals))

    def countdown(self, deferrals: int) -> float:
        """Seconds until the next try, after this many deferrals, without the random part."""
        most = max(60.0, self.delay) if self.max_delay is None else self.max_delay
        try:
            return min(self.delay * self.backoff**deferrals, most)
        except OverflowError:
            return most if self.delay else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wait(_Bounded):
    """Hold the pool slot until the lock is released, then run. The release wakes the task.

    Args:
        timeout: seconds after which `then` acts; None waits for ever.
        then: the policy after the timeout.
    """

    timeout: Seconds[float | None] = Seconds(None)
    then: Policy = Skip()

    def eager(self) -> Policy:
        then = self.then.eager()
        if then is self.then:
            return self
        # A copy, not a new object: a subclass may take other arguments.
        policy = copy.copy(self)
        object.__setattr__(policy, "then", then)
        return policy

    def describe(self, waiting: int = 0) -> str:
        return f"it would wait in its pool slot{self._after(self.timeout)}"

    def act(self, conflict: Conflict) -> Decision:
        return conflict.wait(self.timeout, self.then)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Queue(_Bounded):
    """Wait in Redis, not in a pool slot, and run in the order of arrival.

    Args:
        limit: how many tasks may wait; `then` acts for one more. None for any number.
        max_wait: seconds since the first conflict after which `then` acts; None waits for ever.
        then: the policy beyond `limit` and after `max_wait`.
    """

    limit: int | None = None
    max_wait: Seconds[float | None] = Seconds(None)
    then: Policy = Skip()
    parks = True
    parks_all = True

    def __post_init__(self) -> None:
        if self.limit is not None and not (is_int(self.limit) and self.limit >= 1):
            raise ConfigError(f"Queue: limit={self.limit!r} must be None or an int of at least 1")
        super().__post_init__()

    def describe(self, waiting: int = 0) -> str:
        if self.limit is not None and waiting >= self.limit:
            reached = f"the limit of waiting tasks is reached ({waiting} of {self.limit})"
            return f"{reached}: {self.then.describe(waiting)}"
        return f"it would wait in Redis, with {waiting} before it{self._after(self.max_wait)}"

    def act(self, conflict: Conflict) -> Decision:
        if self.max_wait is not None and conflict.waited >= self.max_wait:
            return self.then.act(conflict)
        return conflict.park(limit=self.limit, max_wait=self.max_wait, then=self.then)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class _Replacing(Policy):
    """A policy by which a newer task replaces an older one."""

    result: Any = NO_RESULT

    def __repr__(self) -> str:
        values = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        shown = (f"{k}={v!r}" for k, v in values.items() if v is not NO_RESULT)
        return f"{type(self).__name__}({', '.join(shown)})"

    if not TYPE_CHECKING:  # as above
        result_if_replaced = property(lambda self: self.result)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Coalesce(_Replacing):
    """One task runs and at most one waits: a newer duplicate replaces the waiting one, which is
    skipped. The task that a worker received last always runs. A retry or redelivery replaces no
    task, and runs first.

    Args:
        result: the result of a replaced task. Its state is SUCCESS, and chords and chains go on;
            its message goes through the queue once more for that. Without a result, the state is
            REVOKED, `get()` raises `TaskReplaced`, and chords and chains fail.
    """

    one_run = "allows one run"
    parks_all = True

    def describe(self, waiting: int = 0) -> str:
        return "it would wait in Redis, and replace the waiting task of this name, if there is one"

    def act(self, conflict: Conflict) -> Decision:
        return conflict.park(newest=True)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Debounce(Coalesce):
    """Run once for a burst of calls, when it is over: every call waits in Redis, also if the lock
    is free; a newer call replaces it and begins the quiet time anew; the last one runs. Calls that
    come while it runs make the next burst. A retry does not wait for quiet.

    Args:
        quiet: seconds without a newer call after which the last one runs.
        max_wait: seconds since the burst's first call after which the last one runs in any case.
        result: the result of a replaced call, as for `Coalesce`.
    """

    quiet: Seconds[float] = Seconds(5.0)
    max_wait: Seconds[float] = Seconds(60.0)
    admits = True

    def __post_init__(self) -> None:
        if not 0 < self.quiet <= self.max_wait:
            raise ConfigError(
                f"Debounce: quiet={self.quiet!r} must be more than 0 s, and at most"
                f" max_wait={self.max_wait!r}"
            )

    def describe(self, waiting: int = 0) -> str:
        return (
            f"it would wait in Redis until no newer call has come for {self.quiet:g} s, or"
            f" {self.max_wait:g} s after the first"
        )

    def admit(self, conflict: Conflict) -> Decision:
        return conflict.park(newest=True, quiet=(self.quiet, self.max_wait))


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Replace(_Replacing):
    """The newer run wins: the older run is told to end, and terminated if it does not.

    Within a second the older run's `self.lock.lost` is True; with `on_lock_lost="abort"` it ends
    with `LockLost`. A prefork worker then terminates its pool process; in the solo, threads, gevent
    and eventlet pools the newer run waits for its end. The older run's result is `TaskReplaced`,
    which names the newer run, unless the body returned or raised something else.

    Args:
        grace: seconds between telling the older run and terminating it.
        result: the older run's result instead of `TaskReplaced`, as for `Coalesce`.
    """

    grace: Seconds[float] = Seconds(5.0)
    replaces = True
    one_run = "ends the run that holds the lock"

    def describe(self, waiting: int = 0) -> str:
        return f"it would end the running task, within {self.grace:g} s, and then run"

    def act(self, conflict: Conflict) -> Decision:
        return conflict.replace(self.grace)


@dataclasses.dataclass(frozen=True)
class Raise(Policy):
    """Fail with `LockConflict`, which names the key and the holder."""

    parks = False
    turns_away = True
    fails = True

    def describe(self, waiting: int = 0) -> str:
        return "it would fail with LockConflict"

    def act(self, conflict: Conflict) -> Decision:
        return conflict.fail()


_NAMED: Final[dict[str, type[Policy]]] = {
    each.__name__.lower(): each
    for each in (Skip, Defer, Wait, Queue, Coalesce, Debounce, Replace, Raise)
}


#: The short names of the policies, for messages.
POLICY_NAMES: Final = tuple(sorted(_NAMED))


def policy_named(name: str) -> Policy:
    """The policy with this short name and default arguments. A `ValueError` lists the names."""
    if name in _NAMED:
        return _NAMED[name]()
    raise ValueError(f"unknown policy {name!r}; accepted: {', '.join(POLICY_NAMES)}")
