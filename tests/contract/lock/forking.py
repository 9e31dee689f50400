"""The tests' app, whose workers tell whether forks of their main process wait for its threads."""

from __future__ import annotations

from typing import Any

from celery.worker.control import inspect_command

from celery_redislock.lock.forks import between_forks
from tests.support.tasks import app

__all__ = ["app"]


@inspect_command()
def forks_wait(state: Any) -> bool:
    """Whether they do."""
    return between_forks._in_use
