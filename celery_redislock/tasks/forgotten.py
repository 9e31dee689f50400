"""Finds tasks with our options but not our base: the likeliest slip, which raises no error."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Final

from celery import Task

from ..app.internals import is_decorated, is_nobodys_app, on_app_complete, tasks_so_far
from ..app.unknown import is_option_or_like_one
from ..protocol.log import logger
from .collecting import is_collecting_errors
from .locked import LockedTask

#: What every task has; a value under such a name is an option of Celery's.
_CELERYS: Final = frozenset(dir(Task))
#: The names of the tasks that this process has warned about, for each app.
_warned: Final[weakref.WeakKeyDictionary[Any, set[str]]] = weakref.WeakKeyDictionary()

#: How a line that names a task and its options goes on.
WHY: Final = (
    "and takes no lock: its base is not SingletonTask, and redislock_tasks does not name it"
)


def options_elsewhere(cls: type[Any]) -> dict[str, Any]:
    """Our options, and names like them, that a task's classes set, if the classes are not ours;
    without what Celery's classes have, and a user's own methods and properties.
    """
    celerys = Task.__mro__
    bases = [b for b in cls.__mro__ if b not in celerys and not issubclass(b, LockedTask)]
    own = set(_CELERYS)
    for base in bases:
        if not is_decorated(vars(base)):  # else a function is an option's value, not a method
            own |= {name for name, v in vars(base).items() if hasattr(type(v), "__get__")}
    return {
        name: value
        for base in reversed(bases)
        for name, value in vars(base).items()
        if name not in own and is_option_or_like_one(name, value)
    }


def forgotten(app: Any) -> Iterator[tuple[str, str]]:
    """The app's tasks that set options of ours and take no lock: each name with these options."""
    for_all = _annotated_for_all(app)
    for name, task in sorted(tasks_so_far(app).items()):
        if not isinstance(task, LockedTask):
            options = sorted(options_elsewhere(type(task)).keys() - for_all)
            if options:
                yield name, " and ".join(options)


def _annotated_for_all(app: Any) -> set[str]:
    """The names that `task_annotations` set on all tasks: they are meant for those with a lock."""
    given = app.conf.task_annotations
    maps = given if isinstance(given, list | tuple) else [given]
    return {name for each in maps if isinstance(each, Mapping) for name in each.get("*") or ()}


def untold(app: Any) -> list[tuple[Any, ...]]:
    """A warning for each forgotten task about which this process has not warned yet."""
    warned = _warned.setdefault(app, set())
    new = [(name, options) for name, options in forgotten(app) if name not in warned]
    warned.update(name for name, _ in new)
    return [(f"redislock: task %s sets %s, {WHY}. Write base=SingletonTask", *each) for each in new]


def _on_app_complete(app: Any) -> None:
    # A `celery` command has no log yet. A worker warns once it has one, and `doctor` does too.
    if "celery.bin.celery" not in sys.modules and not is_nobodys_app(app):
        app.on_after_finalize.connect(_tell, weak=False)


def _tell(sender: Any, **kwargs: Any) -> None:
    if is_collecting_errors():
        return
    for warning in untold(sender):
        logger.warning(*warning)


on_app_complete(_on_app_complete)
