"""Tasks with options of ours and not our base: the likeliest slip, and no error of its own."""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any, Final

from celery import Task

from ..app.internals import is_decorated, is_nobodys_app, on_app_complete, tasks_so_far
from ..app.unknown import is_option_or_like_one
from ..protocol.log import get_logger
from .locked import LockedTask

logger = get_logger()

#: What every task has; a value under such a name is an option of Celery's.
_CELERYS: Final = frozenset(dir(Task))
#: The names of the tasks that were told of in this process.
_told: Final[weakref.WeakKeyDictionary[Any, set[str]]] = weakref.WeakKeyDictionary()

#: How a line that names a task and its options goes on.
WHY: Final = (
    "and takes no lock: its base is not SingletonTask, and redislock_tasks does not name it"
)


def options_elsewhere(cls: type[Any]) -> dict[str, Any]:
    """Options of ours, and names like one, that a task's classes set which are not ours.

    Left out is what belongs to a class of the user's: its methods, and what its code reads.
    """
    celerys = Task.__mro__
    bases = [b for b in cls.__mro__ if b not in celerys and not issubclass(b, LockedTask)]
    written = [base for base in bases if not is_decorated(vars(base))]
    values = [value for base in written for value in vars(base).values()]
    not_ours = _CELERYS.union(*map(_names, values))
    found: dict[str, Any] = {}
    for base in bases:
        for name, value in vars(base).items():
            is_method = base in written and hasattr(type(value), "__get__")
            if name not in not_ours and not is_method and is_option_or_like_one(name, value):
                found.setdefault(name, value)
    return found


def _names(value: Any) -> tuple[str, ...]:
    """The names of attributes that a method or a property reads."""
    function = getattr(value, "fget", None) or getattr(value, "__func__", value)
    is_function = inspect.isfunction(function)
    code = getattr(inspect.unwrap(function), "__code__", None) if is_function else None
    return () if code is None else tuple(_names_in(code))


def _names_in(code: CodeType) -> Iterator[str]:
    """The names that code reads, also in functions within it, and those that `getattr` is given."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, CodeType):
            yield from _names_in(constant)


def forgotten(app: Any) -> Iterator[tuple[str, str]]:
    """The names of the app's tasks that set options of ours and take no lock, each with the
    options.
    """
    for_all = _annotated_for_all(app)
    for name, task in sorted(tasks_so_far(app).items()):
        if not isinstance(task, LockedTask):
            options = sorted(options_elsewhere(type(task)).keys() - for_all)
            if options:
                yield name, " and ".join(options)


def _annotated_for_all(app: Any) -> set[str]:
    """What `task_annotations` set on all tasks: those with a lock are meant."""
    given = app.conf.task_annotations
    maps = given if isinstance(given, list | tuple) else [given]
    return {name for each in maps if isinstance(each, Mapping) for name in each.get("*") or ()}


def untold(app: Any) -> list[tuple[Any, ...]]:
    """A warning for each forgotten task that was not told of yet."""
    told = _told.setdefault(app, set())
    new = [(name, options) for name, options in forgotten(app) if name not in told]
    told.update(name for name, _ in new)
    return [(f"redislock: task %s sets %s, {WHY}. Write base=SingletonTask", *each) for each in new]


def _on_app_complete(app: Any) -> None:
    # A `celery` command has no log yet. A worker says it once it has, and `doctor` says it too.
    if "celery.bin.celery" not in sys.modules and not is_nobodys_app(app):
        app.on_after_finalize.connect(_tell, weak=False)


def _tell(sender: Any, **kwargs: Any) -> None:
    for warning in untold(sender):
        logger.warning(*warning)


on_app_complete(_on_app_complete)
