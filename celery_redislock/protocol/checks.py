"""Checks of what users set: a ttl, seconds, the prefix. Does no I/O."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from ..errors import ConfigError

#: The shortest lifetime that leaves a heartbeat (a third of it) room to be late.
MIN_TTL: Final = 0.1
#: The longest time: thirty years. Every timer that we use can count it.
MAX_SECONDS: Final = 1e9
#: What a ttl may be, for error messages.
TTL: Final = f"a number of seconds from {MIN_TTL} to {MAX_SECONDS:g}, or a timedelta"
#: What the number of runs to keep may be, for error messages.
HISTORY: Final = "a whole number from 0 to 100000"
#: The same for the number of replicas that must confirm an acquisition.
MIN_REPLICAS: Final = "a whole number from 0 to 100"
#: The same for a setting that is on or off.
FLAG: Final = "True or False"
#: The same for the time after which a waiting task ends that no worker takes.
OFFER_FOR: Final = f"a number of seconds from 60 to {MAX_SECONDS:g}, or a timedelta"


def is_int(value: Any) -> bool:
    """Whether the value is an int. True and False do not count."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether the value is an int or a float."""
    return is_int(value) or isinstance(value, float)


def plain(value: Any) -> Any:
    """The value; a timedelta as a number of seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def seconds_from(least: float) -> Callable[[Any], float]:
    """A check: a number of seconds, or a timedelta, not below this. Raises `ValueError`."""

    def check(value: Any) -> float:
        value = plain(value)
        if not is_number(value) or not least <= value <= MAX_SECONDS:
            raise ValueError
        return float(value)

    return check


def whole(least: int, most: int) -> Callable[[Any], int]:
    """A check: a whole number in this range. Raises `ValueError`."""

    def check(value: Any) -> int:
        if not is_int(value) or not least <= value <= most:
            raise ValueError
        return int(value)

    return check


ttl: Final = seconds_from(MIN_TTL)
offer_for: Final = seconds_from(60)
history: Final = whole(0, 100_000)
min_replicas: Final = whole(0, 100)


def flag(value: Any) -> bool:
    """A check: True or False. Raises `ValueError`."""
    if not isinstance(value, bool):
        raise ValueError
    return value


def checked(where: str, option: str, value: Any, check: Callable[[Any], Any], accepted: str) -> Any:
    """Run a check on the value of an option of `where`, and return what the check returns. If it
    raises `ValueError`, a `ConfigError` says in words what is `accepted`.
    """
    try:
        return check(value)
    except ValueError:
        raise ConfigError(
            f"{where}: {option}={value!r} is not accepted; it must be {accepted}"
        ) from None


def check_seconds(where: str, name: str, value: Any, *, none: bool = False) -> Any:
    """The value as a number of seconds, or None if `none` allows it. Raises `ConfigError` for
    others.
    """
    seconds = plain(value)
    if none and seconds is None:
        return None
    if not is_number(seconds) or not 0 <= seconds < float("inf"):
        accepted = "None or a number of seconds" if none else "a number of seconds"
        accepted = f"{accepted}, not negative, or a timedelta"
        raise ConfigError(f"{where}: {name}={value!r} must be {accepted}")
    return seconds


class Seconds:
    """An argument of a policy: a number of seconds or a timedelta, kept as a number."""

    def __init__(self, default: float) -> None:
        self._default = default

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._owner, self._name = owner.__name__, name

    def __get__(self, policy: Any, owner: Any = None) -> float:
        return self._default if policy is None else policy.__dict__[self._name]

    def __set__(self, policy: Any, value: float | timedelta) -> None:
        policy.__dict__[self._name] = check_seconds(self._owner, self._name, value)


class SecondsOrNone:
    """The same, or None, which is the default."""

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._owner, self._name = owner.__name__, name

    def __get__(self, policy: Any, owner: Any = None) -> float | None:
        return None if policy is None else policy.__dict__[self._name]

    def __set__(self, policy: Any, value: float | timedelta | None) -> None:
        policy.__dict__[self._name] = check_seconds(self._owner, self._name, value, none=True)


def check_prefix(prefix: Any) -> str:
    """The prefix of all keys. Raises `ConfigError` if it is no string, or empty; if it has braces,
    which mark a hash tag; or half of a surrogate pair, which UTF-8 cannot encode.
    """
    is_name = isinstance(prefix, str) and prefix and not {*prefix} & {*"{}"}
    if not is_name or prefix != prefix.encode(errors="ignore").decode():
        raise ConfigError(
            f"redislock_prefix={prefix!r} is not accepted; it must be a non-empty str"
            " without braces"
        )
    assert isinstance(prefix, str)
    return prefix
