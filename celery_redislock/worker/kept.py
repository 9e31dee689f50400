"""Requests for whose messages a lock or a room place is reserved, and whose tasks may not run."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any, Final

from ..app.housekeeper import Chore
from ..app.internals import is_active, is_revoked
from ..protocol.holders import opening_of
from ..protocol.platform import at_fork
from ..tasks.ends import End

#: Seconds between looks at the reservations of tasks that are over.
LOOK_EVERY: Final = 2.0


class Reservations:
    """Requests that the pool has taken, and for whose messages a lock was reserved. It frees a
    reservation that the pool process could not free before it died.
    """

    def __init__(self) -> None:
        self._reset()
        at_fork(after_in_child=self._reset)
        self._chore = Chore(self._look, lambda: bool(self._requests), LOOK_EVERY)

    def _reset(self) -> None:
        self._requests: deque[Any] = deque()

    def add(self, request: Any) -> None:
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
            values = server.replies([("GET", slot) for _, _, slot in slots], allows_wrong_type=True)
            for (request, token, _), value in zip(slots, values, strict=True):
                if isinstance(value, bytes) and value.startswith(opening_of(token).encode()):
                    request.settle(End.CANNOT_RUN)
        for request in over:
            self._requests.remove(request)


#: Requests that sleep until their eta, and for which something is kept meanwhile, by `id`.
sleeping: Final[weakref.WeakValueDictionary[int, Any]] = weakref.WeakValueDictionary()
reservations: Final = Reservations()


def settle_revoked() -> None:
    """Settle what is kept for revoked tasks now: Celery ends such a task only at its eta."""
    for ref in sleeping.valuerefs():  # a list: another thread may add to them meanwhile
        if (request := ref()) is not None and is_revoked(request):
            sleeping.pop(id(request), None)
            request.settle(End.ENDED_BY_CELERY)
