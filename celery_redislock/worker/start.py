"""Prepares a worker at its start, and settles messages that only its main process sees. The package
always imports this module, so it imports what only workers need when one starts.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from celery import signals

from ..app.delivery import KEY, Kept
from ..app.internals import worker_has_ended
from ..app.outcomes import burst
from ..app.settings import app_locks, has_locks, read_settings
from ..app.unknown import refuse_unknown_settings
from ..errors import ConfigError, LockUnavailable
from ..protocol.log import logger
from ..tasks.forgotten import untold
from ..tasks.protect import errors_of, protect_tasks
from ..tasks.task import SingletonTask, locked_tasks

#: Warnings to log once Celery has set up its log: earlier lines are in no logfile.
_warnings: Final[weakref.WeakKeyDictionary[Any, list[tuple[Any, ...]]]] = (
    weakref.WeakKeyDictionary()
)


def _on_worker_init(sender: Any, **kwargs: Any) -> None:
    """Prepare the app, in the worker's main process, before its pool starts."""
    # The pool's processes inherit what runs tasks, instead of importing it one by one.
    from ..tasks import tracer  # noqa: F401

    app = sender.app
    burst.begin()
    try:
        refuse_unknown_settings(read_settings(app)[1])
        idle = _prepare_tasks(app)
    except Exception as exc:
        # Celery only logs a receiver's ordinary errors: the worker would go on without locks.
        if not isinstance(exc, ConfigError):
            logger.exception("redislock: unexpected error at the worker's start")
        raise SystemExit(f"redislock: {exc}") from exc
    warnings = _warnings[app] = [
        *(("redislock: redislock_tasks[%r] %s", pattern, why) for pattern, why in idle),
        *untold(app),
    ]
    if has_locks(app) and app_locks(app).enabled:
        warnings += _look_at_server(app)
    from celery.apps.worker import Worker  # only workers need it

    if not isinstance(sender, Worker):  # a worker within another program, whose log is set up
        _on_log_is_there(sender, sender)
        _look_after_rooms(sender)  # Celery sends no worker_ready for it


def _prepare_tasks(app: Any) -> list[tuple[str, str]]:
    """Lock what `redislock_tasks` names, and bind what is not bound yet. Returns the names and
    globs that protect no task, each with the reason. Raises a `ConfigError` with all that is wrong
    with the setting, or with tasks, a line each.
    """
    with contextlib.suppress(ConfigError):  # `errors_of` finds it again
        protect_tasks(app)
    for task in app.tasks.values():
        if isinstance(task, SingletonTask) and (
            task.lock_options is None or task._redislock_error is not None
        ):
            with contextlib.suppress(ConfigError):  # the task keeps it
                task.bind(app)
    if errors := errors_of(app):
        raise ConfigError("\nredislock: ".join(map(str, errors)))
    return protect_tasks(app)


def _on_log_is_there(sender: Any, instance: Any, **kwargs: Any) -> None:
    """Log the warnings, now that Celery has set up its log."""
    _say_if_unheard()
    for warning in _warnings.pop(instance.app, ()):
        logger.warning(*warning)
    _say_where(instance.app)


def _say_if_unheard() -> None:
    """Warn on another logger if ours is disabled: otherwise nobody would learn of a lost lock."""
    if not logger.disabled:
        return
    text = (
        "redislock: the logger 'celery_redislock' is disabled: nobody will hear of lost locks."
        " logging.config disables each logger that it does not name; name it, or set"
        " disable_existing_loggers to False"
    )
    for other in (logging.getLogger("celery.worker"), logging.getLogger()):
        if not other.disabled and other.isEnabledFor(logging.WARNING) and other.hasHandlers():
            other.warning(text)
            return
    print(text, file=sys.stderr)


def _say_where(app: Any) -> None:
    """Log where the locks are and how many tasks have them, if any."""
    count = len(locked_tasks(app))
    if not count:
        return
    locks, tasks = app_locks(app), "1 task" if count == 1 else f"{count} tasks"
    if not locks.enabled:
        logger.info("redislock: redislock_enabled is False: %s without locks", tasks)
    elif locks.knows_server:
        logger.info("redislock: locks of %s on %s", tasks, locks.describe_server())


def _on_worker_ready(sender: Any, **kwargs: Any) -> None:
    _look_after_rooms(sender.controller)


def _look_after_rooms(worker: Any) -> None:
    """Look after the waiting rooms of the worker's tasks until it ends."""
    if not _has_rooms(worker.app):
        return
    from .sweeper import Sweeper  # only workers need it

    Sweeper(worker.app).start(until=partial(worker_has_ended, weakref.ref(worker)))


def _has_rooms(app: Any) -> bool:
    """Whether tasks of this worker may wait in rooms. If it has no locks now, tasks of an earlier
    release may still wait, as long as the lock server is set.
    """
    if not has_locks(app):
        return "redislock_url" in read_settings(app)[0]
    if not app_locks(app).enabled:
        return app_locks(app).address is not None
    if not app_locks(app).is_quorum:
        return True  # what has begun waits there for the end of a suspension
    options = [task.lock_options for task in locked_tasks(app)]
    return any(each.parks or each.lock_scope != "running" for each in options)


def _on_task_received(sender: Any, request: Any, **kwargs: Any) -> None:
    """Settle what is reserved for a message whose task takes no lock here by now."""
    if KEY in request.request_dict and not hasattr(request, "settle"):
        from ..tasks.ends import End
        from ..tasks.settle import settle_beside

        settle_beside(sender.app, Kept.of(request.request_dict), End.UNLOCKED)


def _on_task_rejected(sender: Any, message: Any, **kwargs: Any) -> None:
    """Do the same for a task that this worker does not know, or a message that it cannot read."""
    from ..tasks.ends import End
    from ..tasks.settle import settle_beside

    settle_beside(sender.app, Kept.of(message.headers or {}), End.CANNOT_RUN)


def _look_at_server(app: Any) -> Iterator[tuple[Any, ...]]:
    """Warnings about each Redis server that does not answer, may evict locks, or has them in a
    database that others may flush. The pool's processes inherit the servers' identities, and so
    notice a restart.
    """
    from ..app.neighbours import BESIDE_OTHERS, IN_CACHE, REMEDY, caches_beside, strangers
    from ..protocol.exchange import UNKNOWN_TTL
    from ..servers.looking import eviction_policy, sample

    locks = app_locks(app)
    if locks.address is None:
        return
    caches = caches_beside(locks)
    if caches:
        yield f"redislock: {IN_CACHE}. {REMEDY}", ", ".join(caches)
    try:
        primaries = locks.server.primaries()
    except LockUnavailable as exc:
        yield "redislock: the lock server %s: %s", _what(exc), exc.reason
        return
    for name, server in primaries.items():
        which = f"lock server {name}".rstrip()
        try:
            policy = eviction_policy(server, UNKNOWN_TTL)
            keys = [] if caches else sample(server, UNKNOWN_TTL)
        except LockUnavailable as exc:
            yield "redislock: the %s %s: %s", which, _what(exc), exc.reason
            continue
        if policy not in (None, "noeviction"):
            yield (
                "redislock: the %s has a memory limit and maxmemory-policy %s: it may evict"
                " locks that are held. Use a server with noeviction for redislock_url",
                which,
                policy,
            )
        if others := strangers(locks, app.conf, keys):
            yield f"redislock: {BESIDE_OTHERS}. {REMEDY}", which, others[0]


def _what(failure: LockUnavailable) -> str:
    from ..servers.talk import refuses

    return "cannot be used" if refuses(failure) else "does not answer yet"


signals.worker_init.connect(_on_worker_init, weak=False)
signals.celeryd_after_setup.connect(_on_log_is_there, weak=False)
signals.worker_ready.connect(_on_worker_ready, weak=False)
signals.task_received.connect(_on_task_received, weak=False)
for _signal in (signals.task_unknown, signals.task_rejected):
    _signal.connect(_on_task_rejected, weak=False)
