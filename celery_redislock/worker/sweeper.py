"""Looks after the waiting rooms whose holder died, in the worker's main process."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ..app import delivery, entries
from ..app.brokers import broker_of
from ..app.housekeeper import Chore, housekeeper
from ..app.settings import app_locks
from ..errors import LockUnavailable
from ..protocol.clock import clock
from ..protocol.exchange import UNKNOWN_TTL
from ..protocol.keys import in_all_buckets, keys_of_lock_id, sweep_key
from ..protocol.log import logger
from ..protocol.rooms import due_rooms, reserve_turn, server_time
from ..tasks.room import look_after
from .kept import settle_revoked

#: Seconds between looks for rooms that are due. Among workers with the same tasks, one looks.
SWEEP_EVERY: Final = 2.0
#: Seconds for which a sweep publishes the tasks of one room that are due: enough for hundreds of
#: tasks that give up, but for only one if the broker does not answer.
PUBLISHES_FOR: Final = 0.5
#: Seconds by which a worker looks later at a room in which it once had to pass over a task, of the
#: last so many such rooms: those who can publish that task are to look first.
GIVES_WAY: Final = 0.5
GIVES_WAY_IN: Final = 1000
#: Seconds without a sweep after which a worker looks at all rooms, due or not: others, who could
#: not publish a task, may have put off the next look, by ten minutes at most.
COMES_BACK: Final = 6.0
ALL_ROOMS: Final = 3600.0


class Sweeper:
    """Looks every few seconds which waiting rooms are due, and looks after each of them on time."""

    def __init__(self, app: Any) -> None:
        self._app = app
        known = sorted(name for name in app.tasks if not name.startswith("celery."))
        # Workers with different tasks, brokers or releases cannot do each other's work.
        reads = f"{entries.VERSION}.{delivery.VERSION}"
        fleet = hashlib.sha256("\n".join([reads, app.main or "", *known]).encode())
        self._fleet = broker_of(app), fleet.hexdigest()[:16]
        self._read(app_locks(app).prefix)
        self._swept = -COMES_BACK
        #: The ids of locks in whose rooms this worker had to pass over a task.
        self._gives_way: deque[str] = deque(maxlen=GIVES_WAY_IN)
        #: When this worker looks next at a room, by its lock's id.
        self._looks_at: dict[str, float] = {}

    def _read(self, prefix: str) -> None:
        self._prefix, self._buckets = prefix, in_all_buckets(prefix, "rooms")
        self._turn = sweep_key(prefix, *self._fleet)

    def start(self, until: Callable[[], bool]) -> None:
        """Sweep again and again, in the background, `until` that is true."""

        def sweep() -> None:
            # Where tests replace the lock server, there is none before and after.
            if not until() and app_locks(self._app).knows_server:
                self.sweep()

        for look in (settle_revoked, sweep):
            Chore(look, lambda: not until(), SWEEP_EVERY).begin()

    def sweep(self) -> None:
        """Find the rooms that are due soon, and look after each of them when it is due."""
        locks, began = app_locks(self._app), clock()
        server, has_turn = locks.server, True
        if locks.prefix != self._prefix:
            self._read(locks.prefix)
        with contextlib.suppress(LockUnavailable):  # a full server keeps no turns: then all look
            has_turn = server.ask(reserve_turn(self._turn, SWEEP_EVERY * 0.9))
        # If it has not, another worker of its fleet has looked meanwhile.
        comes_back, self._swept = began - self._swept >= COMES_BACK, began
        if not has_turn:
            return
        soon = SWEEP_EVERY * 1.1
        failure = None
        for buckets in server.together(self._buckets, UNKNOWN_TTL):
            try:
                now = server.ask(server_time(buckets[0]))
                # Not before the reply: a look that is too early finds nothing due, and the next
                # sweep is two seconds later.
                asked = clock()
                due = server.ask(due_rooms(buckets, ALL_ROOMS if comes_back else soon, now))
            except LockUnavailable as exc:
                failure = exc  # the other servers' rooms must not wait for this one
                continue
            for seconds, lock_id in due:
                after = max(asked + seconds - clock(), 0.0) if seconds < soon else 0.0
                self._look_in(after, lock_id)
        if failure is not None:
            raise failure

    def _look_in(self, after: float, lock_id: str) -> None:
        """Look after one room then, unless that is to come before."""
        after += GIVES_WAY if lock_id in self._gives_way else 0.0
        now = clock()
        if not now <= self._looks_at.get(lock_id, -math.inf) <= now + after:
            at = self._looks_at[lock_id] = now + after
            look = partial(self._look_at_room, lock_id, at, at + PUBLISHES_FOR)
            housekeeper.add(look, most=0.0, after=after, talks=True)

    def _look_at_room(self, lock_id: str, at: float, until: float) -> None:
        """Look after one room, and again while more of its tasks are due, or soon will be."""
        if self._looks_at.get(lock_id) == at:
            self._looks_at.pop(lock_id, None)
        try:
            keys = keys_of_lock_id(app_locks(self._app).prefix, lock_id)
            looked = look_after(self._app, keys, UNKNOWN_TTL)
        except LockUnavailable:
            raise
        except Exception:
            logger.exception("redislock: could not check the waiting room of %r", lock_id)
            return
        if looked.passed_over and lock_id not in self._gives_way:
            self._gives_way.append(lock_id)
        if looked.due_in == 0:
            if clock() < until:
                again = partial(self._look_at_room, lock_id, at, until)
                housekeeper.add(again, most=0.0, talks=True)
        elif looked.due_in is not None and looked.due_in < SWEEP_EVERY and not looked.passed_over:
            self._look_in(looked.due_in, lock_id)  # the next sweep may come too late
