"""The holds, by which operators keep new runs from locks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..app.settings import app_locks
from ..protocol.canonical import task_in
from ..protocol.holds import Hold, all_holds
from ..protocol.keys import holds_key
from ..servers.server import Server


def holds(app: Any, server: Server | None = None) -> list[Hold]:
    """All holds that have not ended; the first that ends comes first.

    Args:
        app: the Celery app.
        server: look here, instead of at the app's server.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    locks = app_locks(app)
    return (server or locks.server).ask(all_holds(holds_key(locks.prefix)), once=True)


def hold_of(app: Any, name: str) -> Hold | None:
    """The hold that keeps runs from the lock with this name for longest, as far as the name tells
    its task; None if none does.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    return hold_on(holds(app), task_in(name) or "", name)


def hold_on(found: Sequence[Hold], task: str, name: str) -> Hold | None:
    """The hold that keeps this task from the lock with this name for longest; None if none does."""
    keeping = [each for each in found if each.keeps(task, name)]
    return keeping[-1] if keeping else None
