"""`Singleton` and the other names of celery-singleton, on our locks, without that package."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from inspect import signature
from typing import Any, ClassVar, Final

from celery.result import AsyncResult

from ..app.options import check_option
from ..app.settings import Address
from ..errors import ConfigError, LockConflict
from ..protocol.checks import FLAG, PREFIX, checked
from ..protocol.holders import Holder
from ..servers.urls import is_redis_url
from ..tasks.reserve import CallOptions
from .leftovers import section, translators
from .translating import TranslatedTask, names_of_arguments

__all__ = ["DuplicateTaskError", "Singleton", "clear_locks"]

_PACKAGE: Final = "celery-singleton"
_PREFIX: Final = "SINGLETONLOCK_"
_BACKENDS: Final = (
    "celery_singleton.backends.redis.RedisBackend",
    "celery_singleton.backends.RedisBackend",
)
#: The states of locks that are kept for a message, and for what these are kept.
_KEPT: Final = (("queued", None), ("kept", "its retry"))


class DuplicateTaskError(LockConflict):
    """The task was sent before, and has not ended yet.

    Attributes:
        task_id: the id of the task that has the lock.
    """

    __module__ = "celery_redislock.compat.celery_singleton"

    def __init__(
        self,
        message: str = "",
        task_id: str | None = None,
        key: str | None = None,
        holder: Holder | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(key, holder)
        self.task_id = task_id
        self.args = (message, task_id, *self.args)

    def __str__(self) -> str:
        return str(self.args[0]) or super().__str__()


class Singleton(TranslatedTask):
    """A task that is not sent while an equal one is queued or running, as in celery-singleton.

        @app.task(base=Singleton, unique_on=["account_id"])
        def sync(account_id, force=False): ...

    All options of `SingletonTask` are accepted too, but `lock_key`, `lock_scope`,
    `lock_queued_ttl` and `on_queued_conflict`, which these say.

    Attributes:
        unique_on: the names of the arguments, or the name of the argument, that calls have in
            common. Default: all arguments.
        raise_on_duplicate: True: sending a duplicate raises `DuplicateTaskError`. False: it
            returns the result of the task that has the lock. Default:
            `singleton_raise_on_duplicate`, False.
        lock_expiry: seconds for which a message that was lost keeps the lock. Default:
            `singleton_lock_expiry`, or an hour.
    """

    abstract = True
    unique_on: Any = None
    raise_on_duplicate: Any = None
    lock_expiry: Any = None

    _redislock_package = _PACKAGE
    _redislock_names_task = True
    _redislock_translates = frozenset({"lock_expiry", "raise_on_duplicate", "unique_on"})
    _redislock_replaced: ClassVar[Any] = (
        *("aquire_lock", "generate_lock", "get_existing_task_id", "lock_and_run"),
        *("release_lock", "singleton_backend", "singleton_config", "unlock"),
    )

    @classmethod
    def _redislock_options(cls, where: str, app: Any) -> Mapping[str, Any]:
        raises = cls.raise_on_duplicate
        if raises is None:
            setting = app.conf.get("singleton_raise_on_duplicate")
            raises = checked("app", "singleton_raise_on_duplicate", setting or False, FLAG)
        raises = checked(where, "raise_on_duplicate", raises, FLAG)
        options: dict[str, Any] = {
            "lock_scope": "queued+running",
            "on_queued_conflict": "raise" if raises else "existing",
        }
        setting = app.conf.get("singleton_lock_expiry")
        for place, name, value in (
            ("app", "singleton_lock_expiry", setting),
            (where, "lock_expiry", cls.lock_expiry),
        ):
            if value is not None:
                options["lock_queued_ttl"] = check_option(place, name, value, "lock_queued_ttl")
        unique_on = [cls.unique_on] if isinstance(cls.unique_on, str) else cls.unique_on
        if unique_on:
            options["lock_key"] = names_of_arguments(where, "unique_on", unique_on)
        return options

    @staticmethod
    def _redislock_address(conf: Any) -> Address | None:
        url = conf.get("singleton_backend_url")
        if url is None:  # as that package has it
            results = conf.result_backend
            url = results if str(results).startswith("redis://") else conf.broker_url
        return (
            Address(url, conf.get("singleton_backend_kwargs") or {}) if is_redis_url(url) else None
        )

    def _redislock_original_key(self, args: Any, kwargs: Any) -> str:
        if self.unique_on:
            names = [self.unique_on] if isinstance(self.unique_on, str) else self.unique_on
            bound = signature(self.run).bind(*args, **kwargs).arguments
            args, kwargs = [], {name: bound[name] for name in names}
        given = json.dumps(args or [], sort_keys=True) + json.dumps(kwargs or {}, sort_keys=True)
        digest = hashlib.md5((self.name + given).encode(), usedforsecurity=False).hexdigest()
        return f"{self.app.conf.get('singleton_key_prefix', _PREFIX)}{digest}"

    def apply_async(
        self, args: Any = None, kwargs: Any = None, *more: Any, **options: Any
    ) -> AsyncResult[Any]:
        """Send the task, or do what `on_duplicate` does. Arguments are as Celery's.

        Raises:
            DuplicateTaskError: it is a duplicate, and `raise_on_duplicate` is True.
        """
        if self.lock_options is not None:
            own = self.lock_options
            raises = own.on_queued_conflict == "raise"
            call = CallOptions(self._on_duplicate, raises, own.lock_queued_ttl)
            options = self._redislock_call(options, call)
        return super().apply_async(args, kwargs, *more, **options)

    def _on_duplicate(self, conflict: LockConflict) -> Any:
        holder = conflict.holder
        try:
            return self.on_duplicate(None if holder is None else holder.task_id)
        except DuplicateTaskError as exc:
            if exc.key is None:
                exc.key, exc.holder = conflict.key, holder
                exc.args = (*exc.args[:2], *conflict.args)
            raise

    def on_duplicate(self, existing_task_id: str | None) -> Any:
        """What `apply_async` returns for a duplicate. A subclass may override it.

        Raises:
            DuplicateTaskError: `raise_on_duplicate` is True.
        """
        if self.lock_options.on_queued_conflict == "raise":
            message = f"Attempted to queue a duplicate of task ID {existing_task_id}"
            raise DuplicateTaskError(message, existing_task_id)
        return self.AsyncResult(existing_task_id)

    def release_lock(self, task_args: Any = None, task_kwargs: Any = None) -> None:
        """Take the lock for this call away from its holder, which learns that it lost it."""
        self.break_lock(*(task_args or ()), **(task_kwargs or {}))


def clear_locks(app: Any) -> None:
    """Free the locks that are kept for the messages and the retries of the app's `Singleton` tasks.

    It leaves the locks of runs alone: those of dead runs expire, and those of living ones protect.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    from ..operations import break_locks, list_locks  # most programs never do

    found = [
        each
        for each in list_locks(app)
        if (each.state, each.kept_for) in _KEPT and isinstance(app.tasks.get(each.task), Singleton)
    ]
    break_locks(app, found)


def _settings_of(conf: Any) -> dict[str, Any]:
    """Settings of ours from the app's `singleton_*`."""
    backend = conf.get("singleton_backend_class") or _BACKENDS[0]
    module, name = (getattr(backend, each, "") for each in ("__module__", "__qualname__"))
    if (backend if isinstance(backend, str) else f"{module}.{name}") not in _BACKENDS:
        raise ConfigError(
            f"app: singleton_backend_class={backend!r} is not accepted: locks are in Redis; it must"
            f" be {_BACKENDS[0]!r}, or left out; see {section(_PACKAGE)}"
        )
    given = {
        "redislock_url": conf.get("singleton_backend_url"),
        "redislock_transport_options": conf.get("singleton_backend_kwargs") or None,
        "redislock_prefix": conf.get("singleton_key_prefix"),
    }
    settings = {name: value for name, value in given.items() if value is not None}
    if "redislock_prefix" in settings:
        checked("app", "singleton_key_prefix", settings["redislock_prefix"], PREFIX)
    return settings


translators[_PACKAGE] = _settings_of
