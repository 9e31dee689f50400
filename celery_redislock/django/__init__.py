"""Locked tasks in a Django project: their base, checks, who holds a row's lock, the page of locks.

    INSTALLED_APPS = [..., "celery_redislock.django"]      # for the checks and the admin

    from celery_redislock.django import LockedTask, LockAdminMixin, locks_page

Django is imported only here. The page needs the extra `web`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .task import LockedTask

if TYPE_CHECKING:
    from .admin import LockAdminMixin
    from .page import locks_page

__all__ = ["LockAdminMixin", "LockedTask", "locks_page"]


if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        # A worker needs neither, and Django wants its apps to be loaded before its admin.
        module = {"LockAdminMixin": "admin", "locks_page": "page"}.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f".{module}", __name__), name)
        return found
