"""`QueueOnce` and `AlreadyQueued` of celery-once, on our locks, without that package."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any, ClassVar, Final

from celery import states
from celery.result import AsyncResult, EagerResult

from ..app.internals import hide_setting
from ..app.options import check_option
from ..app.settings import Address
from ..errors import ConfigError, LockConflict
from ..protocol.checks import FLAG, checked
from ..protocol.holders import Holder
from ..protocol.keys import MAX_LIMIT, lock_keys, name_of
from ..tasks.locked import break_keys
from ..tasks.reserve import CallOptions
from .leftovers import section, translators
from .translating import TranslatedTask, known, names_of_arguments

__all__ = ["AlreadyQueued", "QueueOnce"]

_PACKAGE: Final = "celery-once"
#: Seconds, as in celery-once.
_TIMEOUT: Final = 3600.0
_OF_TASK: Final = ("graceful", "keys", "timeout", "unlock_before_run")
_OF_CALL: Final = ("graceful", "timeout")
_BACKENDS: Final = ("celery_once.backends.Redis", "celery_once.backends.redis.Redis")
_SETTINGS: Final = ("blocking", "blocking_timeout", "default_timeout", "url")


class AlreadyQueued(LockConflict):
    """The task was sent before, and has not ended yet.

    Attributes:
        countdown: seconds until the lock expires if its holder dies now; None if unknown.
        message: the same in words.
    """

    __module__ = "celery_redislock.compat.celery_once"
    _reason = "the task is already queued or running"

    def __init__(
        self,
        countdown: float | None = None,
        key: str | None = None,
        holder: Holder | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(key, holder)
        self.countdown = countdown
        self.message = f"Expires in {countdown} seconds"
        self.args = (countdown, *self.args)


class QueueOnce(TranslatedTask):
    """A task that is not sent while an equal one is queued or running, as in celery-once.

        @app.task(base=QueueOnce, once={"keys": ["account_id"], "graceful": True})
        def sync(account_id, force=False): ...

    All options of `SingletonTask` are accepted too, but `lock_key`, `lock_scope`,
    `lock_queued_ttl` and `on_queued_conflict`, which `once` says.

    Attributes:
        once: a dict. `keys`: the arguments that calls have in common, by default all; [] for none.
            `graceful`: a duplicate returns a result without an id, whose state is REJECTED,
            instead of raising `AlreadyQueued`. `timeout`: seconds for which a message that was
            lost keeps the lock. `unlock_before_run`: the lock is free once the task starts.
    """

    abstract = True
    once: Any = {"graceful": False, "unlock_before_run": False}  # noqa: RUF012  as there

    _redislock_package = _PACKAGE
    _redislock_names_task = False
    _redislock_translates = frozenset({"once"})
    _redislock_replaced: ClassVar[Any] = (
        *("default_timeout", "get_key", "once_backend", "once_config"),
        "unlock_before_run",
    )

    @classmethod
    def _redislock_options(cls, where: str, app: Any) -> Mapping[str, Any]:
        once = known(where, "once", cls.once, _OF_TASK)
        is_set = {
            name: checked(where, f"once[{name!r}]", once.get(name, False), FLAG)
            for name in ("graceful", "unlock_before_run")
        }
        options: dict[str, Any] = {
            "lock_scope": "queued" if is_set["unlock_before_run"] else "queued+running",
            "on_queued_conflict": "existing" if is_set["graceful"] else "raise",
            "lock_queued_ttl": _timeout(where, once) or _default_timeout(app.conf),
        }
        if once.get("keys") is not None:
            keys = names_of_arguments(where, "once['keys']", once["keys"])
            # Without keys one text is the lock of all calls. Braces would make a field of it.
            one = f"{cls.name}:all".replace("{", "{{").replace("}", "}}")
            options["lock_key"] = keys or one
        return options

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        *more: Any,
        once: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncResult[Any]:
        """Send the task.

        Args:
            args: the task's positional arguments.
            kwargs: the task's keyword arguments.
            more: as Celery's.
            once: `graceful` and `timeout` for this call.
            options: as Celery's.

        Returns:
            The task's result. With `graceful` a duplicate has one without an id, which is REJECTED.

        Raises:
            AlreadyQueued: it is a duplicate.
            ConfigError: `once` is wrong.
        """
        if self.lock_options is not None:
            options = self._redislock_call(options, self._call_options(once or {}))
        return super().apply_async(args, kwargs, *more, **options)

    def _call_options(self, once: Mapping[str, Any]) -> CallOptions:
        where = f"a call of task {self.name}"
        known(where, "once", once, _OF_CALL)
        own = self.lock_options
        given = once.get("graceful", own.on_queued_conflict == "existing")
        graceful = checked(where, "once['graceful']", given, FLAG)
        return CallOptions(
            (lambda conflict: EagerResult(None, None, states.REJECTED)) if graceful else _raise,
            raises=not graceful,
            queued_ttl=_timeout(where, once) or own.lock_queued_ttl,
        )

    def get_key(self, args: Any = None, kwargs: Any = None) -> str:
        """The whole key in Redis of the lock for this call."""
        return self.keys_of_call(args or (), kwargs or {}).lock

    @staticmethod
    def _redislock_address(conf: Any) -> Address | None:
        url = ((conf.get("ONCE") or {}).get("settings") or {}).get("url")
        return Address(url, {}) if url else None

    def _redislock_original_key(self, args: Any, kwargs: Any) -> str:
        bound = signature(self.run).bind(*args, **kwargs).arguments
        keys = self.once.get("keys")
        given = bound if keys is None else {name: bound[name] for name in keys}
        parts = (f"{name}-{_as_text(value)}" for name, value in sorted(given.items()))
        return "_".join(["qo", self.name, *parts])

    @property
    def once_backend(self) -> Locks:
        """What clears a lock: `task.once_backend.clear_lock(task.get_key(args, kwargs))`."""
        return Locks(self)


class Locks:
    """The locks of a task, with what remains of celery-once's backends."""

    def __init__(self, task: QueueOnce) -> None:
        self._task = task

    def clear_lock(self, key: str) -> bool:
        """Take the lock with this key away from its holder. Returns whether somebody held it."""
        prefix = self._task.app_locks.prefix
        name = name_of(prefix, key)
        return name is not None and break_keys(self._task, lock_keys(prefix, name, MAX_LIMIT))


def _as_text(value: Any) -> Any:
    """A value as it is in a key of celery-once."""
    if isinstance(value, dict):
        pairs = ((_as_text(k), _as_text(v)) for k, v in sorted(value.items()))
        return "{" + ", ".join(str({k: v}).strip("{}") for k, v in dict(pairs).items()) + "}"
    return [_as_text(each) for each in value] if isinstance(value, list) else value


def _raise(conflict: LockConflict) -> Any:
    holder = conflict.holder
    raise AlreadyQueued(None if holder is None else holder.ttl, conflict.key, holder)


def _timeout(where: str, once: Mapping[str, Any]) -> float | None:
    """None if it is not given."""
    if "timeout" not in once:
        return None
    seconds = check_option(where, "once['timeout']", once["timeout"], "lock_queued_ttl")
    return float(seconds)


def _default_timeout(conf: Any) -> float:
    settings = (conf.get("ONCE") or {}).get("settings") or {}
    value = settings.get("default_timeout", _TIMEOUT)
    name = "ONCE['settings']['default_timeout']"
    return float(check_option("app", name, value, "lock_queued_ttl"))


def _settings_of(conf: Any) -> dict[str, Any]:
    """Settings of ours from the app's `ONCE`."""
    once = conf.get("ONCE")
    if once is None:
        return {}
    once = known("app", "ONCE", once, ("backend", "settings"))
    backend = once.get("backend", _BACKENDS[0])
    if backend not in _BACKENDS:
        raise ConfigError(
            f"app: ONCE['backend']={backend!r} is not accepted: locks are in Redis; it must be"
            f" {_BACKENDS[0]!r}, or left out; see {section(_PACKAGE)}"
        )
    settings = known("app", "ONCE['settings']", once.get("settings") or {}, _SETTINGS)
    if settings.get("blocking", False) is not False:
        raise ConfigError(
            f"app: ONCE['settings']['blocking']={settings['blocking']!r} is not accepted: a sender"
            f" never waits for a lock; it must be False; see {section(_PACKAGE)}"
        )
    return {"redislock_url": settings["url"]} if "url" in settings else {}


translators[_PACKAGE] = _settings_of
hide_setting("^url$")  # ONCE["settings"]["url"]
