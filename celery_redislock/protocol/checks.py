"""Checks of what users set: a ttl, seconds, the prefix. Does no I/O."""

# No `from __future__ import annotations`: with it a `NamedTuple` takes twice as long to make.
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, Generic, NamedTuple, TypeVar

from ..errors import ConfigError

T = TypeVar("T", bound=float | None)

#: The shortest lifetime that leaves a heartbeat (a third of it) room to be late.
MIN_TTL: Final = 0.1
#: The longest time: thirty years. Every timer that we use can count it.
MAX_SECONDS: Final = 1e9


class Check(NamedTuple):
    """A check of a value that a user sets."""

    read: Callable[[Any], Any]  # returns the value, normalised; raises `ValueError`
    accepted: str  # in words, for error messages


def is_int(value: Any) -> bool:
    """Whether the value is an int. True and False do not count."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether the value is an int or a float."""
    return is_int(value) or isinstance(value, float)


def plain(value: Any) -> Any:
    """The value; a timedelta as a number of seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def seconds_from(least: float) -> Check:
    """A check: a number of seconds, or a timedelta, not below this."""

    def read(value: Any) -> float:
        value = plain(value)
        if not is_number(value) or not least <= value <= MAX_SECONDS:
            raise ValueError
        return float(value)

    accepted = f"a number of seconds from {least:g} to {MAX_SECONDS:g}, or a timedelta"
    return Check(read, accepted)


def whole(least: int, most: int) -> Check:
    """A check: a whole number in this range."""

    def read(value: Any) -> int:
        if not is_int(value) or not least <= value <= most:
            raise ValueError
        return int(value)

    return Check(read, f"a whole number from {least} to {most}")


def or_none(check: Check) -> Check:
    """The same check, which accepts None too."""
    read, accepted = check
    return Check(lambda value: None if value is None else read(value), f"None or {accepted}")


def text(accepted: str) -> Check:
    """A check: a text that is not empty."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise ValueError
        return value

    return Check(read, accepted)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _seconds(value: Any) -> Any:
    seconds = plain(value)
    if not is_number(seconds) or not 0 <= seconds < float("inf"):
        raise ValueError
    return seconds


def _prefix(value: Any) -> str:
    # Braces mark a hash tag; and UTF-8 cannot encode half of a surrogate pair.
    is_name = isinstance(value, str) and value and not {*value} & {*"{}"}
    if not is_name or value != value.encode(errors="ignore").decode():
        raise ValueError
    return str(value)


TTL: Final = seconds_from(MIN_TTL)
OFFER_FOR: Final = seconds_from(60)
HISTORY: Final = whole(0, 100_000)
MIN_REPLICAS: Final = whole(0, 100)
FLAG: Final = Check(_flag, "True or False")
SECONDS: Final = Check(_seconds, "a number of seconds, not negative, or a timedelta")
PREFIX: Final = Check(_prefix, "a non-empty str without braces")


def checked(where: str, option: str, value: Any, check: Check) -> Any:
    """The value of an option of `where`, normalised. Raises `ConfigError` for another one."""
    try:
        return check.read(value)
    except ValueError:
        raise ConfigError(
            f"{where}: {option}={value!r} is not accepted; it must be {check.accepted}"
        ) from None


class Seconds(Generic[T]):
    """An argument of a policy: a number of seconds or a timedelta, kept as a number; or None, if
    that is the default.
    """

    def __init__(self, default: T) -> None:
        self._default = default
        self._check = or_none(SECONDS) if default is None else SECONDS

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._owner, self._name = owner.__name__, name

    def __get__(self, policy: Any, owner: Any = None) -> T:
        value: T = self._default if policy is None else policy.__dict__[self._name]
        return value

    def __set__(self, policy: Any, value: T | timedelta) -> None:
        policy.__dict__[self._name] = checked(self._owner, self._name, value, self._check)
