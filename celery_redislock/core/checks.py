"""What users give, checked: a ttl, the prefix. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ..errors import ConfigError

#: The shortest lifetime that leaves a heartbeat (a third of it) room to be late.
MIN_TTL: Final = 0.1
#: The longest: thirty years, which every timer on the way can count.
MAX_SECONDS: Final = 1e9
#: What a ttl may be, in words.
TTL: Final = f"a number of seconds from {MIN_TTL} to {MAX_SECONDS:g}"


def ttl(value: Any) -> float:
    """A ttl in seconds.

    Raises:
        ValueError: it is no number, or too small or too large.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError
    if not MIN_TTL <= value <= MAX_SECONDS:
        raise ValueError
    return float(value)


def checked(where: str, option: str, value: Any, check: Callable[[Any], Any], accepted: str) -> Any:
    """What the check makes of the value.

    Args:
        where: what the option belongs to, for the message.
        option: its name as the user wrote it.
        value: its value as the user wrote it.
        check: raises `ValueError` for what is not accepted.
        accepted: what is, in words.

    Raises:
        ConfigError: the value is not accepted.
    """
    try:
        return check(value)
    except ValueError:
        raise ConfigError(
            f"{where}: {option}={value!r} is not accepted; it must be {accepted}"
        ) from None


def check_prefix(prefix: Any) -> str:
    """The prefix of all keys.

    Raises:
        ConfigError: it is not a non-empty string without braces, which mark a hash tag.
    """
    if not isinstance(prefix, str) or not prefix or "{" in prefix or "}" in prefix:
        raise ConfigError(
            f"redislock_prefix={prefix!r} is not accepted; it must be a non-empty str"
            " without braces"
        )
    return prefix
