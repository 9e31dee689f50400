"""Pytest fixtures from `celery_redislock.testing`. Pytest finds them by their entry point.

This module is outside the package because pytest imports it at every start, and it must not import
Celery then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from celery_redislock.testing import HeldLock, MemoryLocks


@pytest.fixture
def redislock_memory() -> Iterator[MemoryLocks]:
    """Every lock of this process is in memory, not in Redis, and eager calls take locks too."""
    from celery_redislock.testing import memory_locks

    with memory_locks() as locks:
        yield locks


@pytest.fixture
def held_lock() -> Iterator[Callable[..., HeldLock]]:
    """`held_lock(task, *args, **kwargs)` holds the lock for that call, until the test ends."""
    from celery_redislock.testing import hold_lock

    with ExitStack() as held:

        def hold(what: Any, *args: Any, **kwargs: Any) -> HeldLock:
            return held.enter_context(hold_lock(what, *args, **kwargs))

        yield hold


@pytest.fixture
def lose_lock() -> Callable[..., None]:
    """`lose_lock(task, *args, **kwargs)` takes the lock for that call away from its holder."""
    from celery_redislock.testing import lose_lock

    return lose_lock
