"""Forgets the done notes of tasks that have ended and whose messages are acknowledged.

A done note is for copies of its message. No copy comes if the broker received the acknowledgement
in time, and it did if the connection that carried it lives on. So the note is forgotten once that
connection has lived on for a minute. In any other case the note stays: if the worker is killed,
loses its connection, or held the message for long; if the lock server does not answer; if the note
says that another copy was seen.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, NamedTuple, Protocol

from ..app.housekeeper import Chore
from ..app.internals import is_active, is_connected_still
from ..app.settings import AppLocks
from ..errors import LockUnavailable
from ..protocol.calls import forget
from ..protocol.clock import clock
from ..protocol.exchange import UNKNOWN_TTL
from ..protocol.log import logger
from ..protocol.platform import at_fork

#: Seconds for which the connection must live on. A broken one with something to send is noticed
#: within seconds, and a worker has most likely received earlier copies by then.
REMEMBERED: Final = 60.0
#: Seconds between looks at what has ended since.
LOOK_EVERY: Final = 0.5
#: Seconds within which Celery acknowledges a message when it is asked to: Celery's loop does it.
ACKNOWLEDGED_WITHIN: Final = 30.0
#: Seconds by which the server's clock and ours may drift apart while a note is remembered.
CLOCKS_DIFFER: Final = 0.1
#: The most notes deleted in one round trip. The server does nothing else meanwhile.
AT_ONCE: Final = 500
#: How many notes are remembered here at most. A key takes some 200 bytes.
MOST: Final = 100_000


class FinishedNote(NamedTuple):
    """A done note that may be deleted soon."""

    locks: AppLocks  # whose server has the note
    consumer: Any
    connection: int  # the number of the broker connection that delivered the message
    key: str  # the note's


class Finished(Protocol):
    """A request whose message is acknowledged, or about to be: before or after its task has run."""

    @property
    def message(self) -> Any: ...

    def finished_note(self) -> FinishedNote | None:
        """The done note of its run; None if the note must stay."""


class Batch(NamedTuple):
    """The keys of notes whose messages were acknowledged at one time on one connection."""

    at: float
    locks: AppLocks
    consumer: Any
    connection: int
    keys: list[str]


class FinishedNotes:
    """The done notes of this worker's tasks."""

    def __init__(self) -> None:
        self._reset()
        at_fork(after_in_child=self._reset)
        self._chore = Chore(self._look, lambda: bool(self._requests or self._batches), LOOK_EVERY)

    def _reset(self) -> None:
        self._requests: deque[tuple[float, Finished]] = deque(maxlen=MOST)
        self._batches: deque[Batch] = deque()

    def add(self, request: Finished) -> None:
        """Delete the done note of the request's run once no copy of the message can come."""
        self._requests.append((clock(), request))
        self._chore.begin(after=LOOK_EVERY)

    def _look(self) -> None:
        self._take_acknowledged(clock())
        self._forget_those_due(clock())

    def _take_acknowledged(self, now: float) -> None:
        room = MOST - sum(len(batch.keys) for batch in self._batches)
        acknowledged: dict[tuple[AppLocks, Any, int], list[str]] = {}
        for _ in range(len(self._requests)):
            since, request = self._requests.popleft()
            is_acknowledged = request.message.acknowledged
            if is_active(request) or not (is_acknowledged or now > since + ACKNOWLEDGED_WITHIN):
                self._requests.append((since, request))
            elif is_acknowledged and room > 0 and (note := _note_of(request)) is not None:
                acknowledged.setdefault(note[:3], []).append(note.key)
                room -= 1
        at = clock()  # by now all of these notes are written
        self._batches.extend(Batch(at, *where, keys) for where, keys in acknowledged.items())

    def _forget_those_due(self, now: float) -> None:
        while self._batches and self._batches[0].at + REMEMBERED <= now:
            _forget(self._batches.popleft(), now)


def _note_of(request: Finished) -> FinishedNote | None:
    try:
        return request.finished_note()
    except Exception as exc:  # the user's `lock_key` raised it, for the run too
        logger.debug("redislock: the arguments of a task give no lock name: %s", exc)
        return None


def _forget(batch: Batch, now: float) -> None:
    if not is_connected_still(batch.consumer, batch.connection):
        return
    # A note with more ttl left is newer: another message with the same id left it. Two clocks
    # measure the ttl, the server's and ours.
    most = batch.locks.done_ttl - (now - batch.at) + CLOCKS_DIFFER
    try:
        for begin in range(0, len(batch.keys), AT_ONCE):
            calls = forget(batch.keys[begin : begin + AT_ONCE], most)
            for answer in batch.locks.server.run_all(calls, ttl=UNKNOWN_TTL):
                if answer is not None:
                    raise answer
    except LockUnavailable as exc:
        logger.debug("redislock: %d done notes stay: %s", len(batch.keys), exc.reason)


finished_notes: Final = FinishedNotes()
