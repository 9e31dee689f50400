"""The only door to Redis: what to ask a server for, by whom it concerns."""

from __future__ import annotations

from .connections import PoolFactory
from .done import DoneNotes
from .history import History
from .locks import Locks
from .looking import Looking
from .rights import Rights
from .rooms import Rooms
from .server import Server


class Store:
    """The locks of one server.

    Args:
        pools: makes connection pools to the server.
        kind: how the server is asked, in tests.

    Attributes:
        server: how it is asked.
        locks: taking, keeping and giving back.
        rooms: who waits.
        done: what copies of messages are to do.
        looking: what there is, for people.
        rights: what this user may do there.
        history: what was: past runs, and who was turned away.
    """

    def __init__(self, pools: PoolFactory, kind: type[Server] = Server) -> None:
        self.server = kind(pools)
        self.locks = Locks(self.server)
        self.rooms = Rooms(self.server)
        self.done = DoneNotes(self.server)
        self.looking = Looking(self.server)
        self.rights = Rights(self.server)
        self.history = History(self.server)

    def close(self) -> None:
        """Close every connection."""
        self.server.close()
