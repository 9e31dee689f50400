"""The Django app: `INSTALLED_APPS = [..., "celery_redislock.django"]`."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import register


class LocksConfig(AppConfig):
    """Registers the checks."""

    name = "celery_redislock.django"
    label = "celery_redislock"
    verbose_name = "Locks of tasks"

    def ready(self) -> None:
        from .checks import check_locks

        register(check_locks, "redislock")
