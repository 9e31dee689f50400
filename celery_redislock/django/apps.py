"""The Django app: `INSTALLED_APPS = [..., "celery_redislock.django"]`."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, register
from django.core.signals import setting_changed

from ..app.internals import apps_so_far
from ..app.settings import has_locks, read_again
from .project import is_celery_command


class LocksConfig(AppConfig):
    """Registers the checks."""

    name = "celery_redislock.django"
    label = "celery_redislock"
    verbose_name = "Locks of tasks"

    def ready(self) -> None:
        register(_check_locks, "redislock")
        register(_check_for_production, "redislock", deploy=True)
        setting_changed.connect(_on_setting_changed)


def _on_setting_changed(setting: str, **kwargs: Any) -> None:
    """A test has changed a setting, by `override_settings`, which Celery reads there each time."""
    if "REDISLOCK_" in setting:
        for app in filter(has_locks, apps_so_far()):
            read_again(app)


def _check_locks(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    if is_celery_command():
        return []  # the command says it itself
    from .checks import check_locks  # imports much, and a server never checks

    return check_locks()


def _check_for_production(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    from .checks import check_locks

    return check_locks(for_production=True)
