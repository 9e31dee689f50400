"""What the checks of `doctor` look at, and what they find."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Final

from ...app.settings import AppLocks, app_locks
from ...errors import LockUnavailable
from ...inspection.locks import Found, snapshot
from ...servers.looking import round_trips, server_info
from ...servers.server import Server
from ...tasks.task import SingletonTask, locked_tasks

#: How many round trips are timed.
TRIPS: Final = 20

OK: Final = "ok"
WARNING: Final = "warning"
ERROR: Final = "error"
UNKNOWN: Final = "unknown"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    level: str  # one of those above
    what: str
    todo: str = ""


#: The finding of a check that needs INFO, which this user may not read.
UNTOLD: Final = Finding(UNKNOWN, "cannot tell: INFO is denied", "allow +info")


class Checkup:
    """What the checks look at, each part read once; of one of the Redis servers, if given."""

    def __init__(self, app: Any, server: Server | None = None) -> None:
        self.app = app
        self.locks: AppLocks = app_locks(app, refresh=True)
        if server is not None:
            self.server = server

    @cached_property
    def server(self) -> Server:
        return self.locks.server

    @cached_property
    def tasks(self) -> list[SingletonTask]:
        """The tasks that take locks."""
        return locked_tasks(self.app)

    @cached_property
    def info(self) -> dict[str, str]:
        """The server's INFO; empty if this user may not read it."""
        try:
            return server_info(self.server)
        except LockUnavailable:
            return {}

    @cached_property
    def shortest_ttl(self) -> float:
        return min((task.lock_options.lock_ttl for task in self.tasks), default=30.0)

    @cached_property
    def trips(self) -> tuple[list[float], float]:
        return round_trips(self.server, TRIPS)

    @cached_property
    def survey(self) -> list[Found]:
        return snapshot(self.app)


Check = Callable[[Checkup], Iterator[Finding]]
