"""The requests for which something is kept until their tasks begin."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Final

from ..app.internals import is_revoked
from ..tasks.settle import End


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


#: Requests that sleep until their eta, and for which something is kept meanwhile.
sleeping: Final = Requests()
#: Requests whose messages came from a waiting room, where it is noted that they are here.
from_rooms: Final = Requests()


def settle_revoked() -> None:
    """Settle what is kept for messages that are revoked, and that Celery ends at their eta."""
    for request in sleeping:
        if is_revoked(request):
            sleeping.discard(request)
            request.settle(End.ENDED_BY_CELERY)


def note_received() -> None:
    """Note again which messages from waiting rooms are still here, unless their tasks run.

    Raises:
        LockUnavailable: the server did not answer in time.
    """
    for request in from_rooms:
        request.still_here()
