"""The project's Celery app, and its tasks as a worker loads them."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, Final

from celery import current_app

from ..app.internals import is_nobodys_app, real_app
from ..errors import ConfigError
from ..tasks.collecting import errors_kept
from ..tasks.locked import LockedTask

#: Celery's own variable: with it, loading the tasks does not run Django's checks.
_SKIP: Final = "CELERY_SKIP_CHECKS"


def project_app() -> Any:
    """The Celery app that the project made; None if it made none."""
    app = real_app(current_app)
    return None if is_nobodys_app(app) else app


def is_celery_command() -> bool:
    """Whether this process is one of `celery`'s, which loads the tasks itself."""
    return "celery.bin.celery" in sys.modules


def load_tasks(app: Any) -> None:
    """Import the tasks' modules as a worker does; tasks with wrong options keep their errors."""
    with errors_kept(), _without_checks():
        app.loader.import_default_modules()
        app.finalize()


@contextlib.contextmanager
def _without_checks() -> Iterator[None]:
    before = os.environ.get(_SKIP)
    os.environ[_SKIP] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_SKIP, None)
        else:
            os.environ[_SKIP] = before


class NoLock(ConfigError):
    """What is named is no task with a lock."""


def locked_task(given: Any) -> LockedTask:
    """The locked task that this names or is."""
    task = given
    if isinstance(given, str):
        app = project_app()
        if app is not None and not (app.finalized and given in app.tasks):
            load_tasks(app)
        task = app and app.tasks.get(given)
        if app is not None and task is None:
            locked = [name for name, each in app.tasks.items() if isinstance(each, LockedTask)]
            near = get_close_matches(given, locked, n=1)
            raise NoLock(f"unknown task {given!r}" + "".join(f"; did you mean {n}?" for n in near))
    if not isinstance(task, LockedTask):
        raise NoLock(f"{given!r} is no task with a lock")
    if task._redislock_error is not None:
        raise task._redislock_error
    return task
