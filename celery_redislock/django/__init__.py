"""Locked tasks in a Django project: their base, checks, who holds a row's lock, the page of locks;
and a lock for a transaction.

    INSTALLED_APPS = [..., "celery_redislock.django"]      # for the checks and the admin

    from celery_redislock.django import (
        LockAdminMixin, LockedTask, locks_page, transaction_lock,
    )

Django is imported only here. The page needs the extra `web`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from .task import LockedTask

if TYPE_CHECKING:
    from .admin import LockAdminMixin
    from .page import locks_page
    from .transactions import transaction_lock

__all__ = ["LockAdminMixin", "LockedTask", "locks_page", "transaction_lock"]

_MODULES: Final = {
    "LockAdminMixin": "admin",
    "locks_page": "page",
    "transaction_lock": "transactions",
}


if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        # A worker needs none of them, and Django wants its apps to be loaded before its admin.
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f".{module}", __name__), name)
        return found
