"""What a `RedisLock` takes as its source beside a client or a URL: a Celery app.

This layer knows no Celery: `app.settings` says how to read an app.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ..servers.store import Store


class CeleryApp(Protocol):
    """A Celery app, or a proxy for one."""

    @property
    def conf(self) -> Any: ...


class Source(Protocol):
    """Where locks are, and what the locks there have in common.

    Attributes:
        store: the server.
        prefix: what every key begins with.
        history: how many runs each bucket keeps in its history; 0 for none.
    """

    @property
    def store(self) -> Store: ...
    @property
    def prefix(self) -> str: ...
    @property
    def history(self) -> int: ...


def _without_celery(source: Any) -> None:
    return None


#: Makes a function that reads an app's settings as they are when the lock is used; None if the
#: argument is no Celery app.
reader_of_app: Callable[[Any], Callable[[], Source] | None] = _without_celery
