"""Locks tasks whose code the user cannot change: the setting `redislock_tasks`."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final

from ..app.internals import after_registration, on_app_complete, tasks_so_far
from ..app.options import OPTIONS
from ..app.settings import app_locks
from ..app.unknown import refuse_unknown_option
from ..errors import ConfigError
from .task import SingletonTask

_PROTECTED: Final = "_redislock_protected"


def protect_tasks(app: Any) -> list[tuple[str, str]]:
    """Lock the tasks that `redislock_tasks` names, with the options that it gives.

    Returns:
        The names and globs that protect no task, each with the reason.

    Raises:
        ConfigError: the setting is not a dict of dicts, or has an unknown option.
    """
    wanted = _wanted(app)
    idle = dict.fromkeys(wanted, "matches no task of this app")
    used = set()
    for name, task in list(tasks_so_far(app).items()):
        pattern = _pattern_for(name, wanted)
        if pattern is None or name.startswith("celery."):
            continue
        if not isinstance(task, SingletonTask):
            _protect(task, wanted[pattern], pattern)
        if _PROTECTED in vars(type(task)):
            used.add(pattern)
        else:
            idle[pattern] = f"is ignored: {name} is a SingletonTask and has options of its own"
    return sorted((pattern, why) for pattern, why in idle.items() if pattern not in used)


def _wanted(app: Any) -> dict[str, Mapping[str, Any]]:
    setting = app_locks(app).settings.get("redislock_tasks") if has_setting(app) else None
    if setting is None:
        return {}
    if not isinstance(setting, Mapping):
        raise ConfigError(
            f"app: redislock_tasks={setting!r} is not accepted; it must be a dict of task names"
            " or globs to dicts of options"
        )
    for pattern, options in setting.items():
        where = f"redislock_tasks[{pattern!r}]"
        if not isinstance(pattern, str):
            raise ConfigError(f"{where} is not accepted; it must be a task's name or a glob, a str")
        if not isinstance(options, Mapping):
            raise ConfigError(f"{where}={options!r} is not accepted; it must be a dict of options")
        for option in options:
            if option not in OPTIONS:
                refuse_unknown_option(where, str(option))
    return dict(setting)


def has_setting(app: Any, name: str = "redislock_tasks") -> bool:
    return any(str(key).lower().endswith(name) for key in app.conf)


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


def _protect(task: Any, options: Mapping[str, Any], pattern: str) -> None:
    cls = type(task)
    given = {k: staticmethod(v) if callable(v) else v for k, v in options.items()}
    namespace = {**given, _PROTECTED: pattern, "__module__": cls.__module__, "__doc__": cls.__doc__}
    task.__class__ = type(cls.__name__, (SingletonTask, cls), namespace)


def _on_app_complete(app: Any) -> None:
    if has_setting(app):
        after_registration(app, partial(protect_tasks, app))  # Celery binds every task next


on_app_complete(_on_app_complete)
