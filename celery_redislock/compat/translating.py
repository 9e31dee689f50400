"""What the base classes of other packages have in common here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Final

from ..app.leftovers import section
from ..app.options import UNSET
from ..errors import ConfigError, LockConflict
from ..protocol.keys import lock_keys, name_of
from ..tasks.locked import break_keys
from ..tasks.reserve import CALL, CallOptions
from ..tasks.task import SingletonTask

#: The options of ours that the other package's options say.
_SAID: Final = ("lock_key", "lock_scope", "lock_queued_ttl", "on_queued_conflict")


class TranslatedTask(SingletonTask):
    """A task that is unique from when it is sent, as another package's options say."""

    abstract = True

    #: The other package.
    _redislock_package: ClassVar[str]
    #: Its methods and properties that a task cannot override: nothing would call them.
    _redislock_replaced: ClassVar[Collection[str]] = ()

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Check the options, as `SingletonTask.on_bound`. The error also names the page to read."""
        try:
            super().on_bound(app)
        finally:
            page, error = section(cls._redislock_package), cls._redislock_error
            if error is not None and page not in str(error):
                # The task keeps this very error, and raises it whenever it is used.
                error.args = (
                    f"{error}. Its base has the options of {cls._redislock_package}: see {page}",
                )

    @classmethod
    def _redislock_translated(cls, app: Any, given: Mapping[str, Any]) -> Mapping[str, Any]:
        where = f"task {cls.name}"
        for option in _SAID:
            if given[option] is not UNSET:
                raise ConfigError(
                    f"{where}: {option}={given[option]!r} is not accepted: the options of"
                    f" {cls._redislock_package} say it; accepted are"
                    f" {', '.join(sorted(cls._redislock_translates))}, or base=SingletonTask"
                )
        mro = cls.__mro__
        ours = next(n for n, base in enumerate(mro) if "_redislock_package" in vars(base))
        for name in cls._redislock_replaced:
            if any(name in vars(base) for base in mro[:ours]):
                raise ConfigError(
                    f"{where}: it overrides {name!r}, which nothing calls here; accepted is a"
                    " callable lock_key, with base=SingletonTask"
                )
        return cls._redislock_options(where, app)

    @classmethod
    def _redislock_options(cls, where: str, app: Any) -> Mapping[str, Any]:
        """The package's options as ours."""
        raise NotImplementedError

    def _redislock_call(self, options: dict[str, Any], call: CallOptions) -> dict[str, Any]:
        """The options of a call, with what is this call's own."""
        return {**options, CALL: call} if self._reserves(options) else options

    def _redislock_break(self, key: str) -> bool:
        """Break the lock with this whole key."""
        prefix = self.app_locks.prefix
        name = name_of(prefix, key)
        keys = None if name is None else lock_keys(prefix, name, self.lock_options.lock_limit)
        return keys is not None and break_keys(self, keys)


def holder_ttl(conflict: LockConflict) -> float | None:
    """Seconds until the lock expires, if its holder dies now."""
    return None if conflict.holder is None else conflict.holder.ttl


def flag(where: str, option: str, value: Any) -> bool:
    """An option that is True or False.

    Raises:
        ConfigError: it is neither.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{where}: {option}={value!r} is not accepted; it must be True or False")
    return value


def known(where: str, option: str, given: Any, accepted: Collection[str]) -> Mapping[str, Any]:
    """A dict that has only these keys.

    Raises:
        ConfigError: it is no dict, or has other keys.
    """
    names = ", ".join(repr(each) for each in accepted)
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where}: {option}={given!r} is not accepted; it must be a dict")
    for each in given:
        if each not in accepted:
            raise ConfigError(f"{where}: {option} has an unknown key {each!r}; accepted: {names}")
    return given


def names_of_arguments(where: str, option: str, value: Any) -> list[str]:
    """The names of arguments, each once.

    Raises:
        ConfigError: it is no collection of names.
    """
    is_names = isinstance(value, list | tuple | set | frozenset)
    if not is_names or not all(isinstance(each, str) and each for each in value):
        raise ConfigError(
            f"{where}: {option}={value!r} is not accepted; it must be a list of argument names"
        )
    return sorted(set(value)) if isinstance(value, set | frozenset) else [*dict.fromkeys(value)]
