"""The only access to Redis: what a server can be asked, by subject."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from .connections import PoolFactory
from .done import DoneNotes
from .history import History
from .locks import Locks
from .rooms import Rooms
from .server import Server

if TYPE_CHECKING:
    from .looking import Looking
    from .rights import Rights


class Store:
    """The locks of one server.

    Args:
        pools: makes connection pools to the server.
        kind: the class of `server`; tests set another one.

    Attributes:
        server: the server itself.
        locks: taking, keeping and giving back locks.
        rooms: the waiting rooms.
        done: the done notes, for copies of messages.
        looking: what is there, for people.
        rights: what this user may do there.
        history: past runs, and duplicates that were turned away.
    """

    def __init__(self, pools: PoolFactory, kind: type[Server] = Server) -> None:
        self.server = kind(pools)
        self.locks = Locks(self.server)
        self.rooms = Rooms(self.server)
        self.done = DoneNotes(self.server)
        self.history = History(self.server)

    @cached_property
    def looking(self) -> Looking:
        from .looking import Looking  # only operators look, and a worker that starts

        return Looking(self.server)

    @cached_property
    def rights(self) -> Rights:
        from .rights import Rights  # only `doctor` asks

        return Rights(self.server)

    def close(self) -> None:
        """Close every connection."""
        self.server.close()
