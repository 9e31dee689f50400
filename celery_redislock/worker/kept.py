"""Requests for whose messages something is kept: settles that, if their tasks do not run."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from celery.worker.request import Request

from ..app.delivery import Kept
from ..app.housekeeper import Chore, housekeeper
from ..app.internals import is_active, is_revoked, was_revoked
from ..protocol.holders import opening_of
from ..protocol.keys import LockKeys, keys_of_lock_id
from ..protocol.platform import at_fork
from ..tasks.settle import End, settle_beside
from .contained import contained

#: Seconds between looks at the reservations of tasks that are over.
LOOK_EVERY: Final = 2.0


class KeptRequest(Request):
    """A request that settles the reservation or the room place of its message."""

    #: What is kept, until it is known to be settled, and for which lock.
    _kept: Kept | None = None
    lock_keys: LockKeys
    _is_reserved = False
    #: Whether the broker got the message back.
    _is_requeued = False

    def _remember(self, kept: Kept) -> None:
        if self.eta is not None:
            sleeping.add(self)
        try:
            self.lock_keys = keys_of_lock_id(self.task.app_locks.prefix, kept.lock_id)
        except ValueError:
            return  # whoever settles it says so
        self._is_reserved = kept.place is None

    def on_accepted(self, pid: int, time_accepted: float) -> Any:
        """The pool took the task."""
        accepted = super().on_accepted(pid, time_accepted)
        if self._is_reserved:
            reservations.add(self)
        return accepted

    def unsettled(self) -> Kept | None:
        """The reservation or room place of the message; None if the message will come back."""
        return self._kept if self.acknowledged and not self._is_requeued else None

    @contained
    def settle(self, end: End) -> None:
        """Settle the reservation or room place of the message, in the background: that may wait for
        the lock server and the broker, and this thread serves all requests.
        """
        kept, self._kept = self._kept, None
        settle_beside(self.task.app, kept, end)
        clear = self.task._redislock_clear
        if clear is not None and not end.passes_on and not (kept is not None and kept.token):
            housekeeper.add(partial(clear, self.args, self.kwargs, self.id))

    def reject(self, requeue: bool = False) -> None:
        """Give the message back to the broker, or let the broker drop it."""
        self._is_requeued = requeue and not self.acknowledged
        super().reject(requeue)
        if not requeue:
            self.settle(End.CANNOT_RUN)

    def revoked(self) -> bool:
        """Whether the task is not to run: it was revoked, or has expired."""
        if was_revoked(self):
            return True
        is_over = bool(super().revoked())
        if is_over:
            self.settle(End.ENDED_BY_CELERY)
        return is_over


class Requests:
    """A weak set of requests. One thread may add to it while another one iterates over it."""

    def __init__(self) -> None:
        self._refs: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def add(self, request: Any) -> None:
        self._refs[id(request)] = request

    def discard(self, request: Any) -> None:
        self._refs.pop(id(request), None)

    def __iter__(self) -> Iterator[Any]:
        return (each for ref in self._refs.valuerefs() if (each := ref()) is not None)


class Reservations:
    """Requests that the pool has taken, and for whose messages a lock was reserved. It frees a
    reservation that the pool process could not free before it died.
    """

    def __init__(self) -> None:
        self._reset()
        at_fork(after_in_child=self._reset)
        self._chore = Chore(self._look, lambda: bool(self._requests), LOOK_EVERY)

    def _reset(self) -> None:
        self._requests: deque[KeptRequest] = deque()

    def add(self, request: KeptRequest) -> None:
        """Free the request's reservation when its task is over, if it is still there."""
        self._requests.append(request)
        self._chore.begin(after=LOOK_EVERY)

    def _look(self) -> None:
        over = [request for request in list(self._requests) if not is_active(request)]
        slots = [
            (request, kept.token, slot)
            for request in over
            if (kept := request.unsettled()) is not None
            for slot in (request.lock_keys.lock, *request.lock_keys.slots)
        ]
        if slots:
            server = over[0].task.app_locks.server
            values = server.replies([("GET", slot) for _, _, slot in slots], wrong_type=True)
            for (request, token, _), value in zip(slots, values, strict=True):
                if isinstance(value, bytes) and value.startswith(opening_of(token).encode()):
                    request.settle(End.CANNOT_RUN)
        for request in over:
            self._requests.remove(request)


#: Requests that sleep until their eta, and for which something is kept meanwhile.
sleeping: Final = Requests()
#: The reservations of this worker's messages.
reservations: Final = Reservations()


def settle_revoked() -> None:
    """Settle the reservations and room places of revoked tasks now: Celery ends such a task only at
    its eta.
    """
    for request in sleeping:
        if is_revoked(request):
            sleeping.discard(request)
            request.settle(End.ENDED_BY_CELERY)
