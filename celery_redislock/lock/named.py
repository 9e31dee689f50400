"""What `RedisLock` and `AsyncRedisLock` have in common: which lock it is, and where."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from ..errors import ConfigError
from ..protocol import checks, holders
from ..protocol.claims import Claim, to_ms
from ..protocol.keys import LockKeys, lock_keys
from ..protocol.tokens import new_token
from ..servers import stand_in
from ..servers.factory import Client
from ..servers.server import Server
from .sources import CeleryApp, Fixed, reader_of


class NamedLock:
    """A lock by its name. See `RedisLock` for the arguments.

    Attributes:
        name: the lock's name.
        ttl: seconds that the lock outlives a dead holder.
    """

    def __init__(
        self,
        source: Client | str | CeleryApp,
        name: str,
        ttl: float | timedelta,
        heartbeat: bool,
        *,
        timeout: float | timedelta | None,
        prefix: str | None,
        history: int | None,
        label: str | None,
        transport_options: Mapping[str, Any] | None,
    ) -> None:
        self._kind = kind = type(self).__name__
        self.name = name = _check_text(kind, "name", name, "a non-empty str")
        self.ttl: float = checks.checked(kind, "ttl", ttl, checks.ttl, checks.TTL)
        self._timeout = self._seconds(timeout)
        if label is not None:
            label = holders.label_text(_check_text(kind, "label", label, "None or a non-empty str"))
        self._label = label
        self._beats = heartbeat
        self._read = read = reader_of(kind, source, transport_options)
        if isinstance(read, Fixed):  # an app's settings may change, so they are read later
            prefix = read.prefix if prefix is None else prefix
            history = read.history if history is None else history
        if history is not None:
            history = checks.checked(kind, "history", history, checks.history, checks.HISTORY)
        self._history = history
        self._fixed_keys = None if prefix is None else lock_keys(checks.check_prefix(prefix), name)

    def __repr__(self) -> str:
        return f"<{self._kind} {self.name!r} ttl={self.ttl:g}>"

    @property
    def key(self) -> str:
        """The lock's whole key in Redis."""
        return self._keys.lock

    @property
    def _keys(self) -> LockKeys:
        """The lock's keys in Redis."""
        return self._fixed_keys or lock_keys(self._read().prefix, self.name)

    @property
    def _server(self) -> Server:
        """The lock server; in tests what replaces it."""
        return self._read().server if stand_in.current is None else stand_in.current.server

    def _claim(self) -> Claim:
        token = new_token()
        value = holders.encode(token, ttl_ms=to_ms(self.ttl), label=self._label)
        history = self._read().history if self._history is None else self._history
        return Claim(self._keys, token, self.ttl, value, history=history)

    def _seconds(self, timeout: Any) -> float | None:
        """A timeout as a number, or None."""
        seconds: float | None = checks.check_seconds(self._kind, "timeout", timeout, none=True)
        return seconds


def check_decorated(lock: NamedLock, function: Any, is_async: bool) -> None:
    """Refuse to decorate a function whose body would run without the lock.

    Args:
        lock: the lock.
        function: the function.
        is_async: whether the lock is for coroutines.

    Raises:
        ConfigError: it is refused.
    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        why = "a generator, whose body runs after the call; take the lock inside"
    elif inspect.iscoroutinefunction(function) and not is_async:
        why = "a coroutine function; use AsyncRedisLock"
    elif is_async and not inspect.iscoroutinefunction(function):
        why = "no coroutine function; use RedisLock"
    else:
        return
    raise ConfigError(f"{lock!r} cannot decorate {function!r}: it is {why}")


def _check_text(kind: str, what: str, text: Any, accepted: str) -> str:
    if not isinstance(text, str) or not text:
        raise ConfigError(f"{kind}: {what}={text!r} is not accepted; it must be {accepted}")
    return text
