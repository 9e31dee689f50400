"""The one end of a delivery: what it holds is released, given up, or passed on.

A delivery of a locked task holds at most a lock, and what is kept for its message: a turn in a
waiting room, or a reservation from when it was sent. The message's header names both by key and
token, so that whoever has the message can settle, whatever the task is by then.
"""

from __future__ import annotations

import enum
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
from ..protocol.log import get_logger
from ..protocol.tokens import new_token
from .turns import follow

logger = get_logger()


class End(enum.Enum):
    """How a delivery ends. `passes_on`: what is kept for it is kept for the message that follows.

    docs/ends.md has the table, and a test walks all its rows.
    """

    RAN = ("ran", False)
    TURNED_AWAY = ("turned away", False)
    PUT_OFF = ("put off", True)
    CANNOT_RUN = ("cannot run", False)
    ENDED_BY_CELERY = ("ended by Celery", False)
    COMES_BACK = ("comes back", True)
    UNLOCKED = ("runs without its lock", False)

    def __init__(self, label: str, passes_on: bool) -> None:
        self.label = label
        self.passes_on = passes_on


def settle_kept(app: Any, kept: Kept | None, end: End) -> None:
    """Give up what is kept for a message, unless its end passes that on. Safe to do twice.

    If the server does not answer, another thread tries again later; and the worker's main process,
    since a pool process may end before that, see `worker.kept`.
    """
    if kept is None or end.passes_on:
        return
    try:
        _give_up(app, kept)
    except LockUnavailable as exc:
        logger.warning(
            "redislock: could not free the turn or reservation of a task under %s, will try"
            " again: %s",
            kept.lock_id, exc.reason,
        )  # fmt: skip
        settle_beside(app, kept, end)


def settle_beside(app: Any, kept: Kept | None, end: End) -> None:
    """The same, in another thread: it may wait for the lock server and the broker. It is tried for
    as long as the process lives: until then, or until it expires, what is kept swallows sends.
    """
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
    # Without a token it must not match a lock that has none, since that one cools down.
    claim = Claim(keys, kept.token or new_token(), UNKNOWN_TTL, "")
    reply = locks.server.run(settle(claim, Release(take_out=kept.entry_id)))
    follow(app, keys, UNKNOWN_TTL, reply)
