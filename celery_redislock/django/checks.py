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


def check_locks(for_production: bool = False) -> list[checks.CheckMessage]:
    """Load the tasks, and say what is wrong with their locks; with `for_production` what
    `manage.py check --deploy` says beside that. Connects to nothing.
    """
    app = project_app()
    if app is None:
        no_app = checks.Warning(
            "There is no Celery app, so no task was looked at.",
            hint="Import the app in the project's __init__.py, as Celery's documentation says.",
            id="redislock.W008",
        )
        return [] if for_production else [no_app]
    try:
        app_locks(app, refresh=True)
        load_tasks(app)
    except Exception as exc:
        return [] if for_production else [_not_loaded(exc)]
    findings = examine_settings(app, for_production)
    told = [_found(check, finding) for check, finding in findings if finding.level != OK]
    return told if for_production else [*told, *_without_commit(app)]


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
    if isinstance(exc, ConfigError):
        hint = f"The options and settings: {page('options')}."
        return checks.Error(str(exc), hint=hint, id="redislock.E001")
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
