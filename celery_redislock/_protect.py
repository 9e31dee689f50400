"""Locks for tasks that one does not own (`redislock_tasks`), and a worker's start."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from celery import signals
from celery._state import connect_on_app_finalize

from ._app import app_locks, has_locks, setting_names
from ._events import channel
from ._lock import logger
from ._options import OPTIONS, refuse_unknown_settings
from ._room import Sweeper
from ._task import SingletonTask
from .errors import ConfigError, LockUnavailable

#: Seconds that a worker's start may be held up by a lock server that does not answer.
_PATIENCE: Final = 6.0

_PROTECTED: Final = "_redislock_protected"


def protect_tasks(app: Any) -> list[tuple[str, str]]:
    """Make the tasks that `redislock_tasks` names locked ones, with the options it gives.

    Returns:
        The names and globs that protect no task, each with the reason.

    Raises:
        ConfigError: the setting is not a dict of dicts, or has an unknown option.
    """
    wanted = _wanted(app)
    idle = dict.fromkeys(wanted, "matches no task of this worker")
    used = set()
    for name, task in list(app._tasks.items()):
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
    setting = app_locks(app).settings.get("redislock_tasks") if _has_setting(app) else None
    if setting is None:
        return {}
    if not isinstance(setting, Mapping):
        raise ConfigError(
            f"app: redislock_tasks={setting!r} is not accepted; it must be a dict of task names"
            " or globs to dicts of options"
        )
    for pattern, options in setting.items():
        where = f"redislock_tasks[{pattern!r}]"
        if not isinstance(options, Mapping):
            raise ConfigError(f"{where}={options!r} is not accepted; it must be a dict of options")
        for option in options:
            if option not in OPTIONS:
                raise ConfigError(
                    f"{where}: unknown option {option!r}. Accepted: {', '.join(sorted(OPTIONS))}"
                )
    return dict(setting)


def _has_setting(app: Any) -> bool:
    return any(str(key).lower().endswith("redislock_tasks") for key in app.conf)


def _pattern_for(name: str, wanted: Mapping[str, Any]) -> str | None:
    """The name itself, or else the longest glob, which is the most specific."""
    if name in wanted:
        return name
    matching = [pattern for pattern in wanted if fnmatchcase(name, pattern)]
    return max(matching, key=len, default=None)


def pattern_of(task: Any) -> str | None:
    """The entry of `redislock_tasks` that protects the task, or None if it has options itself."""
    pattern: str | None = vars(type(task)).get(_PROTECTED)
    return pattern


def _protect(task: Any, options: Mapping[str, Any], pattern: str) -> None:
    cls = type(task)
    given = {k: staticmethod(v) if callable(v) else v for k, v in options.items()}
    namespace = {**given, _PROTECTED: pattern, "__module__": cls.__module__, "__doc__": cls.__doc__}
    task.__class__ = type(cls.__name__, (SingletonTask, cls), namespace)


class _AfterPending:
    """Waits in an app's list of pending tasks until those before it are registered."""

    def __init__(self, app: Any) -> None:
        self._app = app

    def __maybe_evaluate__(self) -> None:
        protect_tasks(self._app)  # Celery binds every task next


def _on_finalize(app: Any) -> None:
    if _has_setting(app):
        app._pending.append(_AfterPending(app))


def _on_worker_init(sender: Any, **kwargs: Any) -> None:
    """In the worker's main process, before its pool starts."""
    from . import _control  # noqa: F401  registers the remote control commands, for workers only

    app = sender.app
    try:
        refuse_unknown_settings(setting_names(app))
        idle = protect_tasks(app)
        for task in app.tasks.values():
            if isinstance(task, SingletonTask) and task.lock_options is None:
                task.bind(app)
    except ConfigError as exc:
        # A receiver's ordinary errors are only logged, and the worker would go on without locks.
        raise SystemExit(f"redislock: {exc}") from exc
    for pattern, why in idle:
        logger.warning("redislock: redislock_tasks[%r] %s", pattern, why)
    if has_locks(app) and app_locks(app).enabled:
        channel.open()
        _look_at_server(app)


def _on_worker_ready(sender: Any, **kwargs: Any) -> None:
    app = sender.app
    if not has_locks(app) or not app_locks(app).enabled:
        return
    tasks = [task for task in app.tasks.values() if isinstance(task, SingletonTask)]
    if any(task.lock_options and task.lock_options.parks for task in tasks):
        Sweeper(app).start()


def _look_at_server(app: Any) -> None:
    """Warn of a server that may evict locks. The pool's processes inherit which server it is,
    and so know a restarted one.
    """
    locks = app_locks(app)
    if locks.server is None:
        return
    try:
        policy = locks.store.eviction_policy(_PATIENCE)
    except LockUnavailable as exc:
        logger.warning("redislock: the lock server does not answer yet: %s", exc.reason)
        return
    if policy not in (None, "noeviction"):
        logger.warning(
            "redislock: the lock server has a memory limit and maxmemory-policy %s: it may evict"
            " locks that are held. Use a server with noeviction for redislock_url",
            policy,
        )


connect_on_app_finalize(_on_finalize)
signals.worker_init.connect(_on_worker_init, weak=False)
signals.worker_ready.connect(_on_worker_ready, weak=False)
