"""Ends a delivery: what it holds is released, given up, or passed on to the next message.

A delivery of a locked task holds at most a lock, and a place in a waiting room or a reservation
from when it was sent. The message's header names these by lock id and token, so that any process
that has the message can settle them, even if the task has changed since.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from ..app.delivery import Kept
from ..app.housekeeper import housekeeper
from ..app.settings import app_locks
from ..errors import LockUnavailable
from ..protocol.calls import Release, settle
from ..protocol.claims import Claim
from ..protocol.exchange import UNKNOWN_TTL
from ..protocol.keys import keys_of_lock_id
from ..protocol.log import logger
from ..protocol.tokens import new_token
from .ends import End
from .room import follow_up


def settle_kept(app: Any, kept: Kept | None, end: End) -> None:
    """Give up a message's reservation or place, unless its end passes that on. Safe to do twice.
    The worker's main process tries too, if this one ends before the server answers: see
    `worker.kept`.
    """
    if kept is None or end.passes_on:
        return
    try:
        _give_up(app, kept)
    except LockUnavailable as exc:
        logger.warning(
            "redislock: could not free the place or reservation of a task under %s, will try"
            " again: %s",
            kept.lock_id, exc.reason,
        )  # fmt: skip
        settle_beside(app, kept, end)


def settle_beside(app: Any, kept: Kept | None, end: End) -> None:
    """Do the same in the background, as long as the process lives."""
    if kept is not None and not end.passes_on:
        housekeeper.add(partial(_give_up, app, kept), most=math.inf)


def _give_up(app: Any, kept: Kept) -> None:
    locks = app_locks(app)
    if not locks.knows_server:
        return
    try:
        keys = keys_of_lock_id(locks.prefix, kept.lock_id)
    except ValueError:
        logger.warning("redislock: a message does not name a valid lock: %r", kept.lock_id)
        return
    # A new token if none is kept: an empty one would match a lock that cools down, without one.
    claim = Claim(keys, kept.token or new_token(), UNKNOWN_TTL, "")
    reply = locks.server.run(settle(claim, Release(leaves=kept.place)))
    follow_up(app, keys, UNKNOWN_TTL, reply)
