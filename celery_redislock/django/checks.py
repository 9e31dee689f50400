"""What `manage.py check` says of the locks, without asking a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from celery.contrib.django.task import DjangoTask
from django.core import checks
from django.core.exceptions import ObjectDoesNotExist
from django.db import DatabaseError, InterfaceError

from ..app.documents import page
from ..app.settings import app_locks
from ..errors import ConfigError
from ..ops.doctor.checkup import ERROR, OK, Finding
from ..ops.doctor.examine import examine_settings
from ..tasks.task import locked_tasks
from .project import load_tasks, project_app

#: The number of each check of `doctor`, by which a project may silence it.
NUMBERS: Final = {
    "tasks": 1,
    "forgotten": 2,
    "redislock_tasks": 3,
    "beat": 4,
    "max hold": 5,
    "visibility": 6,
    "limits": 7,
    "cache": 10,
}


def check_locks() -> list[checks.CheckMessage]:
    """Load the tasks, and say what is wrong with their locks. Connects to nothing."""
    app = project_app()
    if app is None:
        return [
            checks.Warning(
                "There is no Celery app, so no task was looked at.",
                hint="Import the app in the project's __init__.py, as Celery's documentation says.",
                id="redislock.W008",
            )
        ]
    return [*_messages(app)]


def check_for_production() -> list[checks.CheckMessage]:
    """What `manage.py check --deploy` says beside that. Connects to nothing."""
    app = project_app()
    if app is None:
        return []
    try:
        app_locks(app, refresh=True)
        load_tasks(app)
    except Exception:
        return []  # `check_locks` says so
    return [_found(*each) for each in examine_settings(app, for_production=True)]


def _messages(app: Any) -> Iterator[checks.CheckMessage]:
    try:
        app_locks(app, refresh=True)
        load_tasks(app)
    except ConfigError as exc:
        hint = f"The options and settings: {page('options')}."
        yield checks.Error(str(exc), hint=hint, id="redislock.E001")
        return
    except Exception as exc:
        yield _not_loaded(exc)
        return
    for check, finding in examine_settings(app):
        if finding.level != OK:
            yield _found(check, finding)
    yield from _without_commit(app)


def _without_commit(app: Any) -> Iterator[checks.CheckMessage]:
    """Tasks that lack what Celery gives the other tasks of a Django project."""
    names = [task.name for task in locked_tasks(app) if not isinstance(task, DjangoTask)]
    if names:
        yield checks.Warning(
            f"Tasks without delay_on_commit, as their base is not LockedTask: {', '.join(names)}",
            hint="Write base=LockedTask, from celery_redislock.django, in place of SingletonTask. A"
            " base of your own has DjangoTask, from celery.contrib.django.task, as its last base.",
            id="redislock.W011",
        )


def _not_loaded(exc: BaseException) -> checks.CheckMessage:
    what = f"The tasks cannot be loaded: {type(exc).__name__}: {exc}"
    if _is_of_database(exc):
        return checks.Warning(
            f"{what}. So no task was looked at.",
            hint="A module of tasks asks the database when it is imported, as before the first"
            " `migrate`. Ask it in the body of the task.",
            id="redislock.W009",
        )
    return checks.Error(
        what,
        hint="`celery worker` fails likewise: it imports the same modules.",
        id="redislock.E002",
    )


def _is_of_database(exc: BaseException | None) -> bool:
    """Whether it, or an error behind it, comes from a database that is away or has no tables."""
    while exc is not None:
        if isinstance(exc, DatabaseError | InterfaceError | ObjectDoesNotExist):
            return True
        exc = exc.__cause__ or exc.__context__
    return False


def _found(check: str, finding: Finding) -> checks.CheckMessage:
    number = f"{NUMBERS[check]:03}"
    if finding.level == ERROR:
        return checks.Error(finding.what, hint=finding.todo, id=f"redislock.E{number}")
    return checks.Warning(finding.what, hint=finding.todo, id=f"redislock.W{number}")
