"""What `manage.py check` says of the locks: wrong settings and options, and what `doctor` finds
without asking a server.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from django.core import checks

from ..app.documents import page
from ..app.settings import app_locks
from ..errors import ConfigError
from ..ops.doctor.examine import examine_settings
from ..ops.doctor.finding import ERROR, OK, Finding
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
}
_OPTIONS: Final = f"The options and settings: {page('options')}."


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


def _messages(app: Any) -> Iterator[checks.CheckMessage]:
    try:
        app_locks(app, refresh=True)
        load_tasks(app)
    except ConfigError as exc:
        yield _wrong(exc)
        return
    except Exception as exc:
        yield checks.Error(
            f"The tasks cannot be loaded: {type(exc).__name__}: {exc}",
            hint="`celery worker` fails likewise: it imports the same modules.",
            id="redislock.E002",
        )
        return
    for check, finding in examine_settings(app):
        if finding.level != OK:
            yield _found(check, finding)


def _wrong(error: ConfigError) -> checks.CheckMessage:
    return checks.Error(str(error), hint=_OPTIONS, id="redislock.E001")


def _found(check: str, finding: Finding) -> checks.CheckMessage:
    number = f"{NUMBERS[check]:03}"
    if finding.level == ERROR:
        return checks.Error(finding.what, hint=finding.todo, id=f"redislock.E{number}")
    return checks.Warning(finding.what, hint=finding.todo, id=f"redislock.W{number}")
