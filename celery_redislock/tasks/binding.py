"""Checks a locked task's class when Celery binds it to an app."""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Iterator
from typing import Any, Final

from celery import Task

from ..app.internals import is_decorated, is_nobodys_app
from ..app.options import OPTIONS, UNSET, LockOptions, resolve
from ..app.settings import AppLocks, Elsewhere, app_locks
from ..app.unknown import refuse_name, refuse_unknown_options
from ..errors import ConfigError
from ..policies import Policy
from ..protocol.names import KeyMaker, WithDefaults
from ..protocol.signatures import is_async
from ..verbs import NO_RESULT
from .forgotten import options_elsewhere
from .locked import LockedTask

#: Where a `__call__` that takes the lock keeps the `__call__` that it wraps.
OUTERMOST: Final = "_redislock_outermost"
#: The names of another package's options that a class of ours translates.
TRANSLATES: Final = "_redislock_translates"
#: Where a class that `redislock_tasks` made keeps what is wrong with its entry, if anything.
REFUSED: Final = "_redislock_refused"
#: What a task may override with a value: Celery's own attributes, and the options.
_SETTABLE: Final = frozenset(dir(Task)).union(OPTIONS)

#: The functions of tasks for which some app has a lock server. Celery binds every task to every
#: other app too; such an app may serve another purpose without Redis, and must not fail for that.
_at_home: weakref.WeakSet[Any] = weakref.WeakSet()


def resolve_options(cls: type[LockedTask], door: type[LockedTask], app: Any) -> None:
    """Check the task's options, and store them, resolved, in its class; `door` is the class that
    users subclass. Raises `ConfigError` if an option or a setting is unknown or wrong.
    """
    where = f"task {cls.name}"
    if (refused := getattr(cls, REFUSED, None)) is not None:
        raise refused
    _require_our_tracer(where, cls, door)
    refuse_unknown_options(where, _own_attributes(cls, door), _taken(door))
    locks = app_locks(app, refresh=True)
    given = {option: _plain(inspect.getattr_static(cls, option)) for option in OPTIONS}
    # Our class hides them if it is the first base, also where `redislock_tasks` put it.
    for name, value in options_elsewhere(cls).items():
        if name not in OPTIONS:
            refuse_name(where, name)
        if given[name] is UNSET:
            given[name] = _plain(value)
    given.update(cls._redislock_translated(app, given))
    options = resolve(where, given, locks.settings)
    function = inspect.getattr_static(cls, "run").__get__(object(), cls)
    if is_async(function) and not _has_own_call(cls):
        raise ConfigError(
            f"{where}: its body is an `async def`, which Celery does not await: the lock"
            " would be released before the body runs. Use a plain function that calls"
            " asyncio.run"
        )
    headers = options.lock_headers
    key_maker = KeyMaker(cls.name, function, options.lock_key, cls._normalise, headers=headers)
    if callable(options.lock_limit):
        limit = WithDefaults(f"{where}: lock_limit", "task", options.lock_limit, function)
        cls._redislock_limit = limit
    cls._redislock_key_maker = key_maker
    label = options.lock_label
    cls._redislock_label_maker = (
        None
        if label is None
        else KeyMaker(cls.name, function, label, cls._normalise, "lock_label", headers)
    )
    if options.lock_scope != "running" and not cls.typing and key_maker.binds:
        raise ConfigError(
            f"{where}: typing={cls.typing!r} contradicts"
            f" lock_scope={options.lock_scope!r}, which needs the real arguments where"
            " the task is sent; accepted are typing=True, or a lock_key that is a callable or"
            " has no fields"
        )
    _require_result_for_messages(where, cls, options.on_conflict)
    if locks.is_quorum:
        _require_no_room(where, options)
    cls.lock_options = options  # not before: without them it counts as a task without a lock
    if locks.enabled and (locks.eager or not app.conf.task_always_eager):
        _require_server(cls, app, locks)


def _require_result_for_messages(where: str, cls: type[LockedTask], policy: Policy) -> None:
    """Refuse a `result=` that messages cannot carry: the next task of a chain gets it."""
    result = policy.result_if_replaced
    try:
        if result is not NO_RESULT:
            cls._normalise(result)
    except Exception as exc:
        raise ConfigError(
            f"{where}: on_conflict={policy!r} is not accepted: its result"
            f" must be something that the task's messages can carry, by serializer"
            f" {cls.serializer!r}: {exc}"
        ) from exc


def _require_no_room(where: str, options: LockOptions) -> None:
    """Refuse waiting rooms and slots with redlock://: independent servers share neither."""
    if options.parks:
        raise ConfigError(
            f"{where}: on_conflict={options.on_conflict!r} with"
            f" lock_scope={options.lock_scope!r} lets tasks wait in Redis, which redlock://"
            " does not support; accepted are Skip(), Raise(), Defer(), Wait() and your own policies"
            " with parks = False, and lock_scope='running' or 'queued'"
        )
    if options.allows_several:
        raise ConfigError(
            f"{where}: lock_limit={options.lock_limit!r} is not accepted with a redlock:// server,"
            " whose majorities could let in more; it must be 1"
        )


def _require_our_tracer(where: str, cls: type[LockedTask], door: type[LockedTask]) -> None:
    strategy = _plain(inspect.getattr_static(cls, "Strategy"))
    if not _is_celerys_strategy(strategy):
        raise ConfigError(
            f"{where}: Strategy={getattr(strategy, '__qualname__', strategy)!r} is not accepted: a"
            " worker would call the task without its lock. Accepted is Celery's own,"
            " 'celery.worker.strategy:default'. In a task of celery-batches, take a RedisLock"
        )
    if inspect.getattr_static(cls, "__trace__") is not vars(door)["__trace__"]:
        raise ConfigError(f"{where}: __trace__ is not accepted: Celery keeps the tracer there")


def _is_celerys_strategy(strategy: Any) -> bool:
    """Whether it is Celery's own, which calls the task through its `__trace__`."""
    if isinstance(strategy, str):
        return strategy.replace(":", ".") == "celery.worker.strategy.default"
    module = sys.modules.get("celery.worker.strategy")  # only workers import it
    return module is not None and strategy is module.default


def _require_server(cls: type[LockedTask], app: Any, locks: AppLocks) -> None:
    function = _plain(inspect.getattr_static(cls, "run"))
    try:
        locks.require_address()
    except ConfigError as exc:
        if not _is_fallback(app) and function not in _at_home:
            raise
        # The task must not run there as if it needed no lock.
        cls._redislock_error = Elsewhere(str(exc))
    else:
        _at_home.add(function)


def is_celerys_own(cls: type[Any]) -> bool:
    """Whether it is a task of Celery's: Celery(task_cls=SingletonTask) binds such tasks, too."""
    return str(cls.name).startswith("celery.") and cls.__module__.startswith("celery.")


def _is_fallback(app: Any) -> bool:
    # Celery makes this app when gevent's patching touches Celery's lazy names. No task runs in it.
    if is_nobodys_app(app):
        return True
    # The same goes for the app that pytest-celery has as a template for its containers.
    template = sys.modules.get("pytest_celery.vendors.worker.content.app")
    return app is getattr(template, "app", None)


def _taken(door: type[LockedTask]) -> frozenset[str]:
    """Names that a task may override with a method, but not set as an option."""
    return frozenset(vars(door)).union(vars(LockedTask)) - _SETTABLE


def _own_attributes(cls: type[Any], door: type[LockedTask]) -> Iterator[tuple[str, Any]]:
    """The names that the task and its bases below ours set or annotate, and no base above has."""
    mro = cls.__mro__
    known = {name for base in mro[mro.index(LockedTask) + 1 :] for name in vars(base)}
    for base in mro[: mro.index(door)]:
        if TRANSLATES in vars(base):
            continue  # a class of ours, with another package's options
        own = dict(vars(base))
        if not is_decorated(own):  # else the annotations are those of the task's function
            own = {**dict.fromkeys(own.get("__annotations__", ()), UNSET), **own}
        for name, value in own.items():
            is_ours = name.startswith(("__", "_redislock_")) or name in getattr(cls, TRANSLATES)
            if name not in known and not is_ours:
                yield name, value


def _plain(value: Any) -> Any:
    return value.__func__ if isinstance(value, staticmethod) else value


def _has_own_call(cls: type[Any]) -> bool:
    """Whether the task has a `__call__`, neither ours nor Celery's, that may await the body."""
    mro = cls.__mro__
    calls = (vars(base).get("__call__", LockedTask.__call__) for base in mro[: mro.index(Task)])
    inner = (getattr(call, OUTERMOST, call) for call in calls)
    ours = ("celery_redislock.", "celery.app.")
    return not all((getattr(call, "__module__", None) or "").startswith(ours) for call in inner)
