"""Where an app's locks are, as plain data that two processes can compare."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ..errors import LockUnavailable
from ..servers.address import databases_of
from ..servers.connections import unused
from ..servers.looking import server_info
from ..servers.node import Node
from ..servers.server import Server
from ..servers.urls import source_from_url
from .settings import AppLocks

#: The ttl for a question to a server, which decides how long it may take: a worker's main process
#: asks, and does nothing else meanwhile.
ASKING_TTL: Final = 3.0


def whereabouts(locks: AppLocks) -> dict[str, Any]:
    """Where these locks are. Nothing here shows a user or a password.

    The answer has `server`, for people; `prefix`; `is_quorum`; `databases`, by address; and `ids`,
    by what the servers call themselves, which is the same whatever they are called in a URL. A
    server that is away, or that denies INFO, tells no id.
    """
    address = locks.require_address()
    databases = databases_of(source_from_url(*address)) if address.url else ()
    ids: list[str] = []
    with contextlib.suppress(LockUnavailable):
        ids = sorted(_ids(locks.server))
    return {
        "server": locks.describe_server(),
        "prefix": locks.prefix,
        "is_quorum": locks.is_quorum,
        "databases": sorted(databases),
        "ids": ids,
    }


def _ids(server: Server) -> Iterator[str]:
    for each in server.primaries().values():
        assert isinstance(each, Node)
        try:
            run_id = server_info(each, "server", ttl=ASKING_TTL).get("run_id")
        except LockUnavailable:
            continue
        if run_id:
            pool: Any = each.pools(1.0, unused)
            yield f"{run_id}/{pool.connection_kwargs.get('db') or 0}"


def are_together(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool | None:
    """Whether two `whereabouts` are the same place, so that a lock of one is a lock of the other;
    None if that cannot be told. Either may come from another process, of any release.
    """
    for each in ("prefix", "is_quorum"):
        if one.get(each) != other.get(each):
            return False
    ids, databases = (
        [_texts(each.get(name)) for each in (one, other)] for name in ("ids", "databases")
    )
    if one.get("is_quorum"):
        # Two groups of servers must be the same: else each may have a majority without the other.
        if len(ids[0]) == len(databases[0]) == len(ids[1]) == len(databases[1]):
            return ids[0] == ids[1]
        return databases[0] == databases[1] or None
    if all(ids):
        return not ids[0].isdisjoint(ids[1])
    return not databases[0].isdisjoint(databases[1]) or None


def _texts(value: Any) -> set[str]:
    return {each for each in value if isinstance(each, str)} if isinstance(value, list) else set()
