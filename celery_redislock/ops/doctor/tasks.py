"""Whether the tasks' options fit each other, Celery's limits and the broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from celery import Task

from ...app.documents import page
from ...app.unknown import refuse_options_of_call
from ...errors import ConfigError
from ...tasks.act import SPREAD
from ...tasks.decide import longest_countdown
from ...tasks.forgotten import WHY, forgotten
from ...tasks.protect import errors_of, protect_tasks
from ...tasks.task import SingletonTask
from ..table import count_of, some
from .checkup import ERROR, OK, WARNING, Checkup, Finding


def check_tasks(checkup: Checkup) -> Iterator[Finding]:
    """Whether the tasks' options are right, and any task takes locks."""
    errors = errors_of(checkup.app)
    for error in errors:
        yield Finding(
            ERROR, str(error), f"correct it: no worker starts until then. See {page('options')}"
        )
    if not checkup.locks.enabled:
        yield Finding(WARNING, "redislock_enabled is False: no task takes a lock", "set it to True")
    elif not checkup.tasks and not errors:
        yield Finding(WARNING, "no task takes locks", "use base=SingletonTask or redislock_tasks")
    elif checkup.tasks:
        take = "take" if len(checkup.tasks) > 1 else "takes"
        yield Finding(OK, f"{count_of(len(checkup.tasks), 'task')} {take} locks")


def check_names(checkup: Checkup) -> Iterator[Finding]:
    """Whether each entry of `redislock_tasks` protects a task."""
    try:
        idle = protect_tasks(checkup.app)
    except ConfigError:  # `check_tasks` tells it
        return
    for pattern, why in idle:
        yield Finding(
            WARNING, f"redislock_tasks[{pattern!r}] {why}",
            "correct the name, import the task's module (`imports`), or remove the entry",
        )  # fmt: skip
    if not idle:
        yield Finding(OK, "every entry protects a task, or there is none")


def check_forgotten(checkup: Checkup) -> Iterator[Finding]:
    """Whether a task sets options of a lock, but takes none."""
    without_lock = list(forgotten(checkup.app))
    for name, options in without_lock:
        yield Finding(
            WARNING, f"{name} sets {options}, {WHY}",
            "write base=SingletonTask (in Django: LockedTask), or name the task in redislock_tasks",
        )  # fmt: skip
    if not without_lock:
        yield Finding(OK, "every task with options of a lock takes one")


def check_beat(checkup: Checkup) -> Iterator[Finding]:
    """Whether beat can send the tasks, and they expire if no worker takes them in time."""
    schedule = checkup.app.conf.beat_schedule or {}
    if not isinstance(schedule, Mapping):
        yield Finding(
            ERROR, f"beat_schedule is a {type(schedule).__name__}, which beat cannot read",
            "make it a dict of names to entries",
        )  # fmt: skip
        return
    tasks = {task.name: task for task in checkup.tasks}
    entries = {
        name: (entry, task)
        for name, entry in sorted(schedule.items(), key=lambda each: str(each[0]))
        if isinstance(entry, Mapping) and (task := tasks.get(str(entry.get("task")))) is not None
    }
    for name, (entry, task) in entries.items():
        try:
            refuse_options_of_call(task.name, entry.get("options") or {})
        except ConfigError as exc:
            yield Finding(ERROR, f"{name}: {exc}", "take it out of the entry's 'options'")
    endless = [
        f"{name} ({task.name})"
        for name, (entry, task) in entries.items()
        if task.lock_options.lock_scope == "running"  # else beat sends no second message
        and (entry.get("options") or {}).get("expires", task.expires) is None
    ]
    if endless:
        yield Finding(
            WARNING,
            f"without expires: {some(endless)}: what beat sends while no worker is there comes all"
            " at once, and is run, skipped or refused one by one",
            "set 'options': {'expires': SECONDS} in the entry, about its interval",
        )
    else:
        yield Finding(
            OK, "every entry of beat_schedule for a locked task expires, or there is none"
        )


def check_hold(checkup: Checkup) -> Iterator[Finding]:
    """Whether a body that hangs ends, and its lock with it."""
    findings = [*check_outlived(checkup), *check_endless(checkup)]
    yield from findings or [Finding(OK, "every lock ends with a time limit or lock_max_hold")]


def check_outlived(checkup: Checkup) -> Iterator[Finding]:
    """Whether a body may outlive its lock."""
    for task in checkup.tasks:
        most, limit = task.lock_options.lock_max_hold, _time_limit(task, checkup.app)
        if most is not None and (not limit or limit > most):
            what = f"a time limit of {limit:g} s" if limit else "no time limit"
            yield Finding(
                WARNING,
                f"{task.name}: lock_max_hold={most:g} and {what}: a body may outlive its lock",
                f"set time_limit={most:g} or less",
            )


def check_endless(checkup: Checkup) -> Iterator[Finding]:
    """Whether a body that hangs holds its lock for ever."""
    endless = [
        task.name
        for task in checkup.tasks
        if (options := task.lock_options).lock_scope != "queued"
        and options.lock_max_hold is None
        and not _time_limit(task, checkup.app)
    ]
    if endless:
        yield Finding(
            WARNING, f"a body that hangs holds its lock for ever: {some(endless)}",
            "set time_limit or lock_max_hold",
        )  # fmt: skip


def _time_limit(task: SingletonTask, app: Any) -> float | None:
    limit: float | None = task.time_limit or app.conf.task_time_limit
    return limit


def check_visibility(checkup: Checkup) -> Iterator[Finding]:
    """Whether the broker may redeliver messages before they are acknowledged or due."""
    redelivery, findings = checkup.locks.redelivery, list[Finding]()
    for task in checkup.tasks:
        if redelivery.closes_after is not None:
            findings += _closes_channel(task, checkup.app, redelivery.closes_after)
        if redelivery.after is not None:
            findings += _outlasts(task, checkup.app, redelivery.after, redelivery.option)
    text = "the broker does not deliver messages again after a time"
    if redelivery.after is not None:
        text = (
            f"messages are delivered again after {redelivery.after:g} s; keep every countdown and"
            " eta below that"
        )
    yield from findings or [Finding(OK, text)]


def _closes_channel(task: SingletonTask, app: Any, most: float) -> Iterator[Finding]:
    deferral = SPREAD * task.lock_options.on_conflict.longest_countdown()
    for what, seconds in (*_long_times(task, app), ("a deferral", deferral)):
        if seconds > most:
            yield Finding(
                WARNING,
                f"{task.name}: {what} of {seconds:g} s, and RabbitMQ closes a channel on which a"
                f" message is not acknowledged for {most:g} s, and delivers all of them again",
                f"set consumer_timeout of the server above {1000 * seconds:g} ms, if it is not",
            )


def _outlasts(task: SingletonTask, app: Any, visible: float, option: str) -> Iterator[Finding]:
    setting = f"broker_transport_options[{option!r}]"
    for what, seconds in _long_times(task, app):
        if seconds > visible:
            yield Finding(
                WARNING,
                f"{task.name}: {what} of {seconds:g} s, and the broker delivers again after"
                f" {option}={visible:g}",
                f"set {setting} above {seconds:g}",
            )
    options = task.lock_options
    if options.lock_scope != "queued" and options.lock_ttl > visible:
        yield Finding(
            WARNING,
            f"{task.name}: lock_ttl={options.lock_ttl:g}, and the broker delivers again after"
            f" {option}={visible:g}: before a dead worker's lock expires",
            f"use a lock_ttl below {visible:g}: it is not the length of the task",
        )
    deferral = SPREAD * task.lock_options.on_conflict.longest_countdown()
    if task.lock_options.lock_scope != "queued" and deferral > longest_countdown(visible):
        yield Finding(
            WARNING,
            f"{task.name}: a deferral of {deferral:g} s is cut to {longest_countdown(visible):g} s,"
            f" half of {option}={visible:g}",
            f"set {setting} to {2 * deferral:g} or more, or use a shorter delay",
        )


def check_limits(checkup: Checkup) -> Iterator[Finding]:
    """Whether tasks that share a lock agree on how many may hold it."""
    limits: dict[str, dict[Any, str]] = {}
    for task in checkup.tasks:
        key = task.lock_options.lock_key
        if isinstance(key, str):
            limits.setdefault(key, {})[task.lock_options.lock_limit] = task.name
    different = [(key, names) for key, names in limits.items() if len(names) > 1]
    for key, names in different:
        values = ", ".join(f"{name}: {limit}" for limit, name in names.items())
        yield Finding(
            ERROR, f"lock_key={key!r} with different values of lock_limit: {values}",
            "give tasks that share a lock the same limit",
        )  # fmt: skip
    if not different:
        yield Finding(OK, "tasks that share a lock have the same limit")


def _long_times(task: SingletonTask, app: Any) -> Iterator[tuple[str, float]]:
    """The times for which settings may keep a message of the task unacknowledged, in seconds."""
    options = task.lock_options
    if task.acks_late:
        limit = _time_limit(task, app) or options.lock_max_hold
        if limit:
            yield "acks_late and a run", limit
    if task.default_retry_delay and task.default_retry_delay != Task.default_retry_delay:
        yield "default_retry_delay", float(task.default_retry_delay)
