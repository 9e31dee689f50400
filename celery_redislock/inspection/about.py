"""What an app's settings and tasks say of its locks."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..app.internals import real_app
from ..app.settings import app_locks
from ..protocol.canonical import digest
from ..protocol.holders import one_line
from ..protocol.keys import name_of
from ..servers.looking import read
from ..tasks.task import locked_tasks


@dataclasses.dataclass(frozen=True, slots=True)
class About:
    """What is known without asking the server."""

    app: Any
    name: str
    server: str  # for people
    prefix: str  # of all keys
    history: int  # how many runs of each lock are kept; 0 for none
    warn_after: dict[str, float]  # of each task, in seconds
    limits: dict[str, int]  # the tasks' `lock_limit`, where it is a number above one
    #: The digest in the name of a lock whose call has no arguments.
    no_arguments: str = dataclasses.field(default_factory=lambda: digest({}))

    def name_of(self, key: str) -> str | None:
        """The name of the lock with this key; None if this is no key of a lock."""
        return name_of(self.prefix, key)


def server_time(app: Any) -> float:
    """The lock server's time in Unix seconds."""
    return read(app_locks(app).server, [])[0]


def about(app: Any) -> About:
    """What is known of this app's locks. Its tasks are bound first."""
    app = real_app(app)
    app.finalize()
    locks = app_locks(app)
    locks.require_address()
    options = {task.name: task.lock_options for task in locked_tasks(app)}
    return About(
        app=app,
        name=one_line(str(app.main or "")),
        server=locks.describe_server(),
        prefix=locks.prefix,
        history=locks.history,
        warn_after={name: each.warn_after for name, each in options.items()},
        limits={
            k: each.lock_limit
            for k, each in options.items()
            if isinstance(each.lock_limit, int) and each.lock_limit > 1
        },
    )
