"""What operators have suspended."""

from __future__ import annotations

from typing import Any

from ..app.settings import app_locks
from ..protocol.keys import in_all_buckets
from ..protocol.suspensions import Suspension, in_force
from ..servers.looking import read
from ..servers.server import Server


def suspensions(app: Any) -> list[Suspension]:
    """All suspensions that have not ended; what ends first comes first."""
    locks = app_locks(app)
    return suspensions_on(locks.server, locks.prefix)


def suspensions_on(server: Server, prefix: str) -> list[Suspension]:
    """The same, for callers that have no app."""
    if not server.shards():  # which says so if hash slots have no node
        return []
    lists = server.joint(in_all_buckets(prefix, "suspended"))
    now, replies = read(server, [("MGET", *keys) for keys in lists])
    return in_force((text for reply in replies for text in reply or ()), now)
