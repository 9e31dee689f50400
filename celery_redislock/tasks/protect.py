"""Locks tasks whose code the user cannot change: the setting `redislock_tasks`."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final

from celery import Task

from ..app import settings
from ..app.internals import on_app_complete, on_registration, real_app, tasks_so_far
from ..app.options import OPTIONS
from ..app.settings import Elsewhere, read_settings
from ..app.unknown import refuse_name
from ..errors import ConfigError
from ..lock import sources
from ..lock.sources import CallsLock
from .binding import REFUSED, is_celerys_own
from .locked import Calls, LockedTask
from .task import SingletonTask

_PROTECTED: Final = "_redislock_protected"
_GIVEN: Final = "_redislock_given"
#: The apps whose tasks are locked as they are registered.
_watched: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def protect_tasks(app: Any) -> list[tuple[str, str]]:
    """Lock the tasks that `redislock_tasks` names; one whose entry is wrong gets that error.
    Returns the names and globs that protect no task, each with the reason. Raises `ConfigError` if
    the setting is no dict of dicts, or has an unknown option: what other entries name is locked
    then.
    """
    wanted = _wanted(app)
    idle = dict.fromkeys(wanted, "matches no task of this app")
    used = set()
    for name, task in list(tasks_so_far(app).items()):
        pattern = _protect_one(task, wanted)
        if pattern is None:
            continue
        if _PROTECTED in vars(type(task)) or (
            wanted[pattern] is None and not isinstance(task, SingletonTask)
        ):
            used.add(pattern)
        else:
            idle[pattern] = f"is ignored: {name} is a SingletonTask and has options of its own"
    for pattern, options in wanted.items():
        _check_options_of(pattern, options)
    return sorted((pattern, why) for pattern, why in idle.items() if pattern not in used)


def protect_all(app: Any) -> None:
    """Lock the tasks that `redislock_tasks` names: those that are registered by now, and those that
    will be, even before the app is complete. A task whose options are wrong keeps the error.
    """
    app = real_app(app)
    if app not in _watched:
        _watched.add(app)
        on_registration(app, partial(_protect_next, app))
    if not tasks_so_far(app):
        return  # the settings may not be there yet
    with contextlib.suppress(ConfigError):
        protect_tasks(app)
    for task in list(tasks_so_far(app).values()):
        if isinstance(task, SingletonTask) and task.lock_options is None:
            with contextlib.suppress(ConfigError):
                task.bind(app)


def _protect_next(app: Any, task: Any) -> None:
    # An error would keep other tasks from being bound. The tasks that it is about have it; a
    # worker's start ends with it, and the checks tell it.
    with contextlib.suppress(ConfigError):
        _protect_one(task, _wanted(app))


def errors_of(app: Any) -> list[ConfigError]:
    """The errors in `redislock_tasks`, and in the options of the app's tasks in the order of their
    names. One that all tasks have, such as a wrong setting, comes once.
    """
    errors: list[ConfigError] = []
    try:
        protect_tasks(app)
    except ConfigError as exc:
        errors.append(exc)
    for _, task in sorted(tasks_so_far(app).items()):
        error = task._redislock_error if isinstance(task, SingletonTask) else None
        if error is not None and not isinstance(error, Elsewhere):
            errors.append(error)
    return [*{str(error): error for error in errors}.values()]


def calls_of(task: Any) -> Calls:
    """The questions about the calls of this task, also one that `redislock_tasks` names, or of
    `task.with_headers(...)`. Raises `TypeError` if it is no task, or takes no lock.
    """
    if isinstance(task, Calls):
        return task
    if not isinstance(task, Task):
        raise TypeError(f"{task!r} is no task")
    if not isinstance(task, LockedTask):
        protect_all(task.app)
    if not isinstance(task, LockedTask):
        raise TypeError(
            f"{task.name} takes no lock: its base is not SingletonTask, and redislock_tasks does"
            " not name it"
        )
    return Calls(task)


def _lock_of_call(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallsLock:
    """See `sources.lock_of_call`."""
    calls = calls_of(task)
    keys, options = calls.keys_of_call(args, kwargs), calls.task.lock_options
    label = calls.label_of_call(args, kwargs)
    return CallsLock(calls.task.app, keys.name, len(keys.slots) + 1, options.lock_ttl, label)


sources.lock_of_call = _lock_of_call


def _wanted(app: Any) -> dict[str, Any]:
    # Not by way of `app_locks`: what other settings have wrong is said by each locked task.
    setting = read_settings(app)[0].get("redislock_tasks")
    if setting is None:
        return {}
    if not isinstance(setting, Mapping):
        raise ConfigError(
            f"app: redislock_tasks={setting!r} is not accepted; it must be a dict of task names"
            " or globs to dicts of options"
        )
    for name in setting:
        if not isinstance(name, str):
            raise ConfigError(
                f"redislock_tasks[{name!r}] is not accepted; it must be a task's name or a glob, a"
                " str"
            )
    return dict(setting)


def _check_options_of(pattern: str, options: Any) -> None:
    where = f"redislock_tasks[{pattern!r}]"
    if options is None:
        return
    if not isinstance(options, Mapping):
        raise ConfigError(
            f"{where}={options!r} is not accepted; it must be a dict of options, or None, which"
            " exempts from a glob"
        )
    for option in options:
        if option not in OPTIONS:
            refuse_name(where, str(option))


def _pattern_for(name: str, wanted: Mapping[str, Any]) -> str | None:
    """The name itself, or else the longest glob, which is the most specific."""
    if name in wanted:
        return name
    matching = [pattern for pattern in wanted if fnmatchcase(name, pattern)]
    return max(matching, key=len, default=None)


def pattern_of(task: Any) -> str | None:
    """The entry of `redislock_tasks` that protects the task, or None."""
    pattern: str | None = vars(type(task)).get(_PROTECTED)
    return pattern


def _protect_one(task: Any, wanted: Mapping[str, Any]) -> str | None:
    """Lock the task if it is to be locked and is not. Returns the entry that names it, if any."""
    name = getattr(task, "name", None)
    if not isinstance(name, str) or name.startswith("celery."):
        return None  # a registry takes anything
    pattern = _pattern_for(name, wanted)
    if pattern is not None and wanted[pattern] is not None and not isinstance(task, SingletonTask):
        _protect(task, wanted[pattern], pattern)
    return pattern


def _protect(task: Any, options: Any, pattern: str) -> None:
    cls, given, refused = type(task), {}, None
    try:
        _check_options_of(pattern, options)
        given = {k: staticmethod(v) if callable(v) else v for k, v in options.items()}
    except ConfigError as exc:
        refused = exc
    about = {_PROTECTED: pattern, _GIVEN: options, REFUSED: refused}
    namespace = {**given, **about, "__module__": cls.__module__, "__doc__": cls.__doc__}
    task.__class__ = type(cls.__name__, (SingletonTask, cls), namespace)


def _resolve_again(app: Any) -> None:
    """Lock what `redislock_tasks` names by now, and resolve the options of the app's tasks again,
    since its settings have changed. Raises `ConfigError` if by these a task is wrong that was not;
    or one that is locked had other options in `redislock_tasks`, or would have no lock.
    """
    wanted, tasks = _wanted(app), list(tasks_so_far(app).items())
    for name, task in tasks:
        about, pattern = vars(type(task)), _pattern_for(name, wanted)
        if _GIVEN in about and (pattern is None or wanted[pattern] != about[_GIVEN]):
            raise ConfigError(
                f"redislock_tasks[{about[_PROTECTED]!r}] locks {name} by now, and must stay as it"
                " is; a later change needs a new process"
            )
    protect_tasks(app)
    wrong = None
    for _, task in tasks:
        if not isinstance(task, SingletonTask) or is_celerys_own(type(task)):
            continue
        was_wrong = task._redislock_error is not None
        try:
            task.bind(app) if task.lock_options is None else task._redislock_resolve(app)
            task.__trace__ = vars(task).get("__trace__")  # a worker may have made a plain one
        except ConfigError as exc:
            wrong = wrong or (None if was_wrong else exc)
    if wrong is not None:
        raise wrong


settings.resolve_again = _resolve_again


def _on_app_complete(app: Any) -> None:
    if "redislock_tasks" in read_settings(app)[0]:
        protect_all(app)


on_app_complete(_on_app_complete)
