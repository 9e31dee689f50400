"""A server that replaces every lock server of this process in tests: `testing` sets it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .server import Server


class StandIn(NamedTuple):
    """What replaces the lock servers."""

    server: Server
    eager: bool  # eager calls take locks too, whatever the apps' settings say


#: The stand-in that is in use now, or None.
current: StandIn | None = None
