"""The options of a task and the settings of an app, checked and resolved once. Pure. A wrong value
is refused by name; `unknown` refuses what is no option or setting at all.
"""

# No `from __future__ import annotations`: with it a `NamedTuple` takes twice as long to make.
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ..errors import ConfigError
from ..policies import POLICY_NAMES, Policy, policy_named
from ..protocol import checks
from ..protocol.checks import Check
from ..protocol.keys import MAX_LIMIT
from .delivery import KEY

#: In times of its ttl, how long a run has a lock before its duplicates are logged as WARNINGs.
WARN_AFTER: Final = 10


class _Unset:
    """The type of `UNSET`: an option that nobody set. None is a value that somebody may set."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = _Unset()


class Pauses(NamedTuple):
    """For how many seconds the lock stays taken after a run, by how that ended."""

    success: float = 0.0
    failure: float = 0.0


class LockOptions(NamedTuple):
    """The options of one task, resolved. Times are in seconds."""

    on_conflict: Policy
    lock_key: str | tuple[str, ...] | Callable[..., Any] | None = None
    lock_headers: tuple[str, ...] = ()
    lock_ttl: float = 30.0
    lock_max_hold: float | None = None
    lock_min_hold: float | None = None
    lock_pause: Pauses | None = None
    lock_limit: int | Callable[..., int] = 1
    on_lock_lost: str = "flag"
    lock_across_retries: str = "release"
    on_redis_error: str = "defer"
    lock_scope: str = "running"
    lock_queued_ttl: float = 3600.0
    on_queued_conflict: str = "existing"
    lock_label: str | None = None

    @property
    def kept_across_retries(self) -> float:
        """Seconds after a retry's countdown for which the lock is kept for it; 0.0 if it is not."""
        if self.lock_scope == "queued+running":
            return self.lock_queued_ttl
        holds = self.lock_scope == "running" and self.lock_across_retries == "hold"
        return self.lock_ttl if holds else 0.0

    @property
    def warn_after(self) -> float:
        """Seconds: a duplicate that an older holder turns away is logged as a WARNING."""
        return WARN_AFTER * self.lock_ttl

    @property
    def allows_several(self) -> bool:
        """Whether several runs may hold the lock at once."""
        return callable(self.lock_limit) or self.lock_limit > 1

    @property
    def parks(self) -> bool:
        """Whether a duplicate of the task may be put into the waiting room."""
        # A task must not hold a pool slot while it waits for a message that needs a slot.
        return self.on_conflict.parks or self.lock_scope == "queued+running"


OPTIONS: Final = LockOptions._fields

#: The task option that each app-wide default is for.
DEFAULTS: Final = {
    "redislock_ttl": "lock_ttl",
    "redislock_on_conflict": "on_conflict",
    "redislock_on_lock_lost": "on_lock_lost",
}

SETTINGS: Final = (
    "redislock_url",
    "redislock_transport_options",
    "redislock_min_replicas",
    "redislock_prefix",
    *DEFAULTS,
    "redislock_enabled",
    "redislock_eager",
    "redislock_history",
    "redislock_offer_for",
    "redislock_tasks",
)


_LIMIT: Final = checks.whole(1, MAX_LIMIT)


def limit_of_call(task: str, value: Any) -> int:
    """The limit that a `lock_limit` callable returned. Raises `ValueError` for another value."""
    try:
        limit: int = _LIMIT.read(value)
    except ValueError:
        raise ValueError(
            f"{task}: lock_limit gives {value!r} for this call; it must be {_LIMIT.accepted}"
        ) from None
    return limit


def _limit(value: Any) -> Any:
    return value if callable(value) else _LIMIT.read(value)


def _pause(value: Any) -> Pauses | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        return Pauses(*[checks.TTL.read(value)] * 2)
    if not value or not {*value} <= {*Pauses._fields}:
        raise ValueError
    return Pauses(**{name: checks.TTL.read(seconds) for name, seconds in value.items()})


def _one_of(*accepted: str) -> Check:
    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in accepted:
            raise ValueError
        return value

    return Check(read, f"{', '.join(map(repr, accepted[:-1]))} or {accepted[-1]!r}")


def _key(value: Any) -> str | tuple[str, ...] | Callable[..., Any] | None:
    if value is None or (isinstance(value, str) and value) or callable(value):
        return value  # type: ignore[no-any-return]
    if isinstance(value, list | tuple) and value and all(isinstance(v, str) for v in value):
        if len(set(value)) < len(value):
            raise ValueError
        return tuple(value)
    raise ValueError


def _headers(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    from celery.app.task import Context  # `Context` knows which headers are Celery's

    names: Any = _key(value) if isinstance(value, list | tuple) else ()
    custom = [name for name in names if name and Context({name: 1}).headers == {name: 1}]
    if not names or len(custom) < len(names) or KEY in names:
        raise ValueError
    return tuple(names)


def _policy(value: Any) -> Policy:
    if isinstance(value, Policy):
        return value
    if isinstance(value, str):
        return policy_named(value)
    raise ValueError


_CHECKS: Final = {
    "lock_key": Check(
        _key,
        "a non-empty list of different argument names, a str.format template, or a callable",
    ),
    "lock_headers": Check(
        _headers,
        "None or a non-empty list of different names of message headers, such as ['tenant'], which"
        " are not Celery's own, such as 'id', and not 'redislock'",
    ),
    "lock_ttl": checks.TTL,
    "lock_max_hold": checks.or_none(checks.TTL),
    "lock_min_hold": checks.or_none(checks.TTL),
    "lock_pause": Check(
        _pause,
        f"None, {checks.TTL.accepted}, or a dict of these by 'success' and 'failure', such as"
        " {'success': 60, 'failure': 5}",
    ),
    "lock_limit": Check(_limit, f"{_LIMIT.accepted}, or a callable that returns one"),
    "on_conflict": Check(
        _policy,
        "a policy object (an instance, not a class) or one of "
        + ", ".join(map(repr, POLICY_NAMES)),
    ),
    "on_lock_lost": _one_of("flag", "abort"),
    "lock_across_retries": _one_of("release", "hold"),
    "on_redis_error": _one_of("defer", "run", "raise"),
    "lock_scope": _one_of("running", "queued", "queued+running"),
    "lock_queued_ttl": checks.TTL,
    "on_queued_conflict": _one_of("existing", "raise", "publish"),
    "lock_label": checks.or_none(
        checks.text("a non-empty str.format template, such as 'order {order_id}'")
    ),
}

#: For each scope, what a task must not set beside it, and why.
_CONTRADICTIONS: Final[dict[str, tuple[tuple[str, Any, str], ...]]] = {
    "running": (
        ("lock_queued_ttl", None, "no lock is held for a task in the queue"),
        ("on_queued_conflict", None, "no task is refused when it is sent"),
    ),
    "queued": (
        ("on_conflict", None, "nothing is locked when the task runs"),
        ("on_queued_conflict", "publish", "nothing is locked when the task runs"),
        ("lock_min_hold", None, "nothing is locked when the task runs"),
        ("lock_pause", None, "nothing is locked when the task runs"),
        ("lock_max_hold", None, "nothing is locked when the task runs"),
        ("on_lock_lost", "abort", "nothing is locked when the task runs"),
        ("lock_across_retries", "hold", "nothing is locked when the task runs"),
    ),
    "queued+running": (
        ("lock_across_retries", "release", "the lock is held until the task has ended"),
    ),
}


def check_option(where: str, option: str, value: Any, as_option: str | None = None) -> Any:
    """The value of an option of `where`, normalised, by the check of that or another option."""
    return checks.checked(where, option, value, _CHECKS[as_option or option])


def resolve(where: str, given: Mapping[str, Any], settings: Mapping[str, Any]) -> LockOptions:
    """A task's own options, and the app's for those that are UNSET. Raises `ConfigError`."""
    resolved: dict[str, Any] = {"on_conflict": policy_named("skip")}
    for setting, option in DEFAULTS.items():
        if setting in settings:
            resolved[option] = check_option("app", setting, settings[setting], option)
    for option, value in given.items():
        if value is not UNSET:
            resolved[option] = check_option(where, option, value)
    options = LockOptions(**resolved)
    _refuse_contradictions(where, options)
    _refuse_against_scope(where, options.lock_scope, given)
    if options.lock_scope == "queued+running":
        return options._replace(lock_across_retries="hold")
    return options


def _refuse_contradictions(where: str, options: LockOptions) -> None:
    if options.lock_max_hold is not None and options.lock_max_hold < options.lock_ttl:
        raise ConfigError(
            f"{where}: lock_max_hold={options.lock_max_hold:g} is shorter than"
            f" lock_ttl={options.lock_ttl:g}, for which a lock lasts even if it is never extended;"
            " it must be None or a number of seconds not below lock_ttl"
        )
    most = options.lock_max_hold
    if options.lock_min_hold is not None and most is not None and options.lock_min_hold > most:
        raise ConfigError(
            f"{where}: lock_min_hold={options.lock_min_hold:g} is longer than"
            f" lock_max_hold={most:g}, the longest time for which the lock is held; it must be None"
            " or a number of seconds not above lock_max_hold"
        )
    if options.allows_several and options.on_conflict.one_run:
        raise ConfigError(
            f"{where}: on_conflict={options.on_conflict!r} {options.on_conflict.one_run}, and"
            f" lock_limit={options.lock_limit!r} allows several; with a limit above 1 use another"
            " policy, such as Queue()"
        )
    if options.on_conflict.admits and options.lock_scope == "queued+running":
        raise ConfigError(
            f"{where}: on_conflict={options.on_conflict!r} contradicts"
            " lock_scope='queued+running': a call has to be sent to replace the one that waits;"
            " leave one of them out"
        )


def _refuse_against_scope(where: str, scope: str, given: Mapping[str, Any]) -> None:
    for option, value, why in _CONTRADICTIONS[scope]:
        is_set = given.get(option, UNSET) not in (UNSET, None)
        if is_set and value in (None, given[option]):
            raise ConfigError(
                f"{where}: {option}={given[option]!r} contradicts lock_scope={scope!r}: {why};"
                " leave one of them out"
            )
