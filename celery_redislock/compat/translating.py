"""What the base classes of other packages have in common here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Final

from ..app.options import UNSET
from ..app.settings import Address
from ..errors import ConfigError, LockUnavailable
from ..protocol.exchange import Query
from ..protocol.holders import one_line
from ..protocol.log import logger
from ..servers import stand_in
from ..servers.factory import server_at
from ..servers.server import Server
from ..servers.urls import source_from_url
from ..tasks.reserve import CALL, CallOptions
from ..tasks.task import SingletonTask
from .leftovers import section

#: The attribute in which an app keeps the servers of the other packages' locks.
_ORIGINALS: Final = "_redislock_original_server"
#: The options of ours that the other package's options say.
_SAID: Final = ("lock_key", "lock_scope", "lock_queued_ttl", "on_queued_conflict")


class TranslatedTask(SingletonTask):
    """A task that is unique from when it is sent, as another package's options say."""

    abstract = True

    _redislock_package: ClassVar[str]
    #: Whether the value of its locks is the task's id.
    _redislock_names_task: ClassVar[bool]
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
        """The options of this call of `apply_async`; with `CallOptions`, if it takes a lock."""
        return {**options, CALL: call} if self._reserves(options) else options

    def _redislock_clear(self, args: Any, kwargs: Any, task_id: str) -> None:
        """Delete the lock that a sender with the other package took for a message that has ended:
        its senders would send no equal task until the lock expires, perhaps never.
        """
        server = self._redislock_original_server()
        if server is None:
            return
        key = self._redislock_original_key(args, kwargs)
        try:
            if self._redislock_names_task:
                value = server.ask(Query([("GET", key)], one), once=True)
                if value != task_id.encode():
                    return
            deleted = server.ask(Query([("DEL", key)], one), once=True)
        except LockUnavailable as exc:
            logger.warning(
                "redislock: could not delete %s, by which senders with %s know %s[%s]: %s",
                one_line(key), self._redislock_package, self.name, task_id, exc.reason,
            )  # fmt: skip
        else:
            if deleted:
                logger.info(
                    "redislock: deleted %s: a sender with %s locked %s[%s] by it",
                    one_line(key), self._redislock_package, self.name, task_id,
                )  # fmt: skip

    def _redislock_original_server(self) -> Server | None:
        """The server with the other package's locks; None if there is none."""
        if stand_in.current is not None or not self.app_locks.enabled:
            return None
        made: dict[str, Server | None] = self.app.__dict__.setdefault(_ORIGINALS, {})
        if self._redislock_package not in made:
            address = self._redislock_address(self.app.conf)
            made[self._redislock_package] = address and server_at(source_from_url(*address))
        return made[self._redislock_package]

    @staticmethod
    def _redislock_address(conf: Any) -> Address | None:
        """Where the other package has its locks, by its own settings."""
        raise NotImplementedError

    def _redislock_original_key(self, args: Any, kwargs: Any) -> str:
        """The key of the other package's lock for this call."""
        raise NotImplementedError


def one(replies: list[Any]) -> Any:
    """The reply to a single command; None if the key has another type."""
    return None if isinstance(replies[0], Exception) else replies[0]


def known(where: str, option: str, given: Any, accepted: Collection[str]) -> Mapping[str, Any]:
    """Check that a setting is a dict with no other keys than these."""
    names = ", ".join(repr(each) for each in accepted)
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where}: {option}={given!r} is not accepted; it must be a dict")
    for each in given:
        if each not in accepted:
            raise ConfigError(f"{where}: {option} has an unknown key {each!r}; accepted: {names}")
    return given


def names_of_arguments(where: str, option: str, value: Any) -> list[str]:
    """Check that a setting is a list of argument names, and return each name once."""
    is_names = isinstance(value, list | tuple | set | frozenset)
    if not is_names or not all(isinstance(each, str) and each for each in value):
        raise ConfigError(
            f"{where}: {option}={value!r} is not accepted; it must be a list of argument names"
        )
    return sorted(set(value)) if isinstance(value, set | frozenset) else [*dict.fromkeys(value)]
