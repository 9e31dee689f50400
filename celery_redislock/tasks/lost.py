"""Tells operators of the runs of this process that go on without the lock that they have lost.

A lost run writes a mark on the lock server, again and again, until its body has ended; so a mark
vanishes soon after its process has died. Other runs write nothing.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Final

from ..app.housekeeper import Chore, housekeeper
from ..errors import LockUnavailable
from ..lock.lease import Lease
from ..protocol.calls import mark_lost, unmark_lost
from ..protocol.lost import MARK_LIVES
from ..protocol.rooms import server_time

#: The leases of lost runs. Adding and removing one is one operation.
_lost: Final[dict[int, Lease]] = {}


def goes_on(lease: Lease) -> None:
    """A run lost its lock, or is to end for another one, and its body may go on."""
    _lost[id(lease)] = lease
    _marks.begin()


def has_ended(lease: Lease) -> None:
    """The run that lost this lock has ended."""
    if _lost.pop(id(lease), None) is not None and lease.is_lost and not lease.inherited:
        query = unmark_lost(lease.claim.keys, lease.fence)
        housekeeper.add(partial(lease.server.ask, query), most=MARK_LIVES)


def _mark_all() -> None:
    for lease in list(_lost.values()):
        if lease.is_over or lease.inherited:
            has_ended(lease)
        elif lease.is_lost:
            with contextlib.suppress(LockUnavailable):  # the next round tries again
                _mark(lease)


def _mark(lease: Lease) -> None:
    keys = lease.claim.keys
    now = lease.server.ask(server_time(keys.lock), once=True)
    query = mark_lost(keys, lease.fence, lease.stored, lease.lost_because, now)
    lease.server.ask(query, once=True)


_marks: Final = Chore(_mark_all, lambda: bool(_lost), MARK_LIVES / 5)
