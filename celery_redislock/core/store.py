"""The only access to Redis: what a server can be asked, by subject."""

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
        self.looking = Looking(self.server)
        self.rights = Rights(self.server)
        self.history = History(self.server)

    def close(self) -> None:
        """Close every connection."""
        self.server.close()
