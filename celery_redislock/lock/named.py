"""What `RedisLock` and `AsyncRedisLock` have in common: which lock it is, and where."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import lru_cache
from types import AsyncGeneratorType, CoroutineType
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias, TypeVar

from ..errors import ConfigError
from ..protocol import checks, holders, signatures
from ..protocol.claims import Claim, to_ms
from ..protocol.keys import LockKeys, lock_keys
from ..protocol.names import KeyMaker, has_fields
from ..protocol.tokens import new_token
from ..servers import stand_in
from ..servers.factory import Client
from ..servers.server import Server
from . import sources
from .lease import Lease
from .sources import CeleryApp, Fixed, reader_of

#: A lock's name, or what makes it from the arguments of a decorated function's call.
Name: TypeAlias = str | Callable[..., str]
_NAME: Final = checks.text("a non-empty str, or a callable that returns one")
_LABEL: Final = checks.text("None or a non-empty str")
_TIMEOUT: Final = checks.or_none(checks.SECONDS)
_PREFIX: Final = checks.or_none(checks.PREFIX)
_HISTORY: Final = checks.or_none(checks.HISTORY)

L = TypeVar("L", bound="NamedLock")


class _Given(NamedTuple):
    """Arguments of a lock, normalised."""

    ttl: float
    timeout: float | None
    prefix: str | None
    history: int | None


@lru_cache(typed=True)  # a program makes many locks with the same; and 1 is a ttl, but True is not
def _normalised(kind: str, ttl: Any, timeout: Any, prefix: Any, history: Any) -> _Given:
    return _Given(
        checks.checked(kind, "ttl", ttl, checks.TTL),
        checks.checked(kind, "timeout", timeout, _TIMEOUT),
        checks.checked(kind, "prefix", prefix, _PREFIX),
        checks.checked(kind, "history", history, _HISTORY),
    )


class _CallsName(str):
    """The name of the lock of a task's call, which is no template."""

    limit = 1  # how many may hold the lock at once


class NamedLock(ABC):
    """A lock by its name. See `RedisLock` for the arguments."""

    _is_async = False

    def __init__(
        self,
        source: Client | str | CeleryApp,
        name: Name,
        ttl: float | timedelta = 30,
        heartbeat: bool = True,
        *,
        timeout: float | timedelta | None = 10,
        prefix: str | None = None,
        history: int | None = None,
        label: str | None = None,
        transport_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._kind = kind = type(self).__name__
        self.name = name
        self._is_filled = callable(name)  # from a call's arguments
        if not callable(name):
            checks.checked(kind, "name", name, _NAME)
            is_whole = isinstance(name, _CallsName)
            self._is_filled = "{" in name and not is_whole and has_fields(name)
        if label is not None:
            label = holders.label_text(checks.checked(kind, "label", label, _LABEL))
        self._label = label
        self._beats = heartbeat
        self._read = read = reader_of(kind, source, transport_options)
        if isinstance(read, Fixed):  # an app's settings may change, so they are read later
            prefix = read.prefix if prefix is None else prefix
            history = read.history if history is None else history
        given = kind, ttl, timeout, prefix, history
        try:
            known = _normalised(*given)
        except TypeError:  # one cannot be hashed, so it is refused
            known = _normalised.__wrapped__(*given)
        self.ttl, self._timeout, self._prefix, self._history = known
        self._fixed_keys: LockKeys | None = None
        if known.prefix is not None and isinstance(name, str):
            self._fixed_keys = lock_keys(known.prefix, name)
        self._begin()

    @classmethod
    def of(cls: type[L], task: Any, /, *args: Any, **kwargs: Any) -> L:
        """The lock that this call of a task takes, whatever the task's `lock_key` is. Who holds it
        keeps the task's runs out, and they keep others out.

            with RedisLock.of(sync, account_id=5): ...

        The task's app, `lock_ttl`, `lock_label` and `lock_limit` are the lock's. What concerns a
        run, such as `lock_max_hold` and `lock_pause`, is not.

        Args:
            task: the task, or `task.with_headers(...)`.
            args: the call's arguments.
            kwargs: the call's keyword arguments.

        Raises:
            TypeError: the arguments do not fit the task's signature; or this is no task, or one
                that takes no lock.
            ValueError: the call takes no lock, since the task's `lock_key` gives None for it.
            ConfigError: the task's options are wrong.
        """
        call = sources.lock_of_call(task, args, kwargs)
        name = _CallsName(call.name)
        name.limit = call.limit
        return cls(call.app, name, call.ttl, label=call.label)

    @abstractmethod
    def _begin(self) -> None:
        """Begin to note what is acquired, and whose it is."""

    def __repr__(self) -> str:
        return f"<{self._kind} {self.name!r} ttl={self.ttl:g}>"

    @property
    def key(self) -> str:
        """The lock's whole key in Redis.

        Raises:
            ConfigError: the name has fields, and this is not called in the function that the lock
                decorates.
        """
        return self._keys.lock

    @property
    def _keys(self) -> LockKeys:
        if self._is_filled:
            lease = self._lease
            return self._refuse_fields() if lease is None else lease.claim.keys
        return self._fixed_keys or self._keys_named(str(self.name))

    def _keys_named(self, name: str) -> LockKeys:
        prefix = self._read().prefix if self._prefix is None else self._prefix
        limit = self.name.limit if isinstance(self.name, _CallsName) else 1
        return lock_keys(prefix, name, limit)

    @property
    @abstractmethod
    def _lease(self) -> Lease | None:
        """The acquisition for which the lock answers here."""

    def _refuse_fields(self) -> NoReturn:
        what = "is a callable" if callable(self.name) else "has fields"
        raise ConfigError(
            f"{self._kind}: the name {self.name!r} {what}, which only the call of a function that"
            " the lock decorates can fill; accepted here is the lock's whole name, such as"
            " f'account:{account_id}'"
        )

    def _keys_of_calls(self, function: Any) -> Callable[[Any, Any], LockKeys]:
        """The lock's keys for a call of this function, which it decorates. Raises `ConfigError` if
        its body would run without the lock, or the name does not fit its signature.
        """
        _check_decorated(self, function)
        called = getattr(function, "__qualname__", repr(function))
        maker, name = None, self.name
        is_plain = isinstance(name, _CallsName) or {"{", "}"}.isdisjoint(str(name))
        if callable(name) or not is_plain:
            maker = KeyMaker(called, function, self.name, None, "name", kind="function")
        if maker is None or not self._is_filled:
            return lambda args, kwargs: self._keys
        return lambda args, kwargs: self._keys_named(maker.name(args, kwargs))

    @property
    def _server(self) -> Server:
        """The lock server; in tests what replaces it."""
        return self._read().server if stand_in.current is None else stand_in.current.server

    def _claim(self, keys: LockKeys) -> Claim:
        token = new_token()
        value = holders.encode(token, ttl_ms=to_ms(self.ttl), label=self._label)
        history = self._read().history if self._history is None else self._history
        return Claim(keys, token, self.ttl, value, history=history)

    def _seconds(self, timeout: Any) -> float | None:
        """A timeout as a number, or None."""
        if timeout is None:
            return None
        seconds: float | None = checks.checked(self._kind, "timeout", timeout, _TIMEOUT)
        return seconds


def _check_decorated(lock: NamedLock, function: Any) -> None:
    """Refuse to decorate a function whose body would run without the lock."""
    is_async = lock._is_async
    awaited = inspect.iscoroutinefunction(function) or signatures.is_async(function)
    if not callable(function):
        why = "no function; put the lock below the other decorator"
    elif inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        why = "a generator, whose body runs after the call; take the lock inside"
    elif awaited and not is_async:
        why = "a coroutine function; use AsyncRedisLock"
    elif is_async and not awaited:
        why = "no coroutine function; use RedisLock, or put the lock below what hides one"
    else:
        return
    raise ConfigError(f"{lock!r} cannot decorate {function!r}: it is {why}")


def check_result(lock: NamedLock, function: Any, result: Any) -> None:
    """Refuse a result whose function's body has not run yet: a decorator hides an `async def`."""
    if isinstance(result, CoroutineType | AsyncGeneratorType):
        if isinstance(result, CoroutineType):
            result.close()  # else Python warns that nobody awaited it
        raise ConfigError(
            f"{lock!r} cannot decorate {function!r}: it returned {result!r}, whose body runs after"
            " the lock is released; put an AsyncRedisLock below the decorator that hides it"
        )
