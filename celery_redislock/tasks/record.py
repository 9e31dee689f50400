"""The record of one delivery of a locked task: its facts and its state."""

from __future__ import annotations

import contextlib
import dataclasses
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from celery.app.task import Context
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded

from ..app.delivery import KEY, Delivery, Kept
from ..app.housekeeper import housekeeper
from ..app.internals import as_running
from ..app.results import is_ready, proves_nothing
from ..errors import LockUnavailable
from ..lock.lease import Lease
from ..protocol import notes, past
from ..protocol.calls import mark_done, turn_away
from ..protocol.claims import Busy, Place
from ..protocol.holders import Holder
from ..protocol.log import get_logger
from .facts import Facts
from .limits import only_logged
from .locked import LockedTask
from .settle import End, settle_kept

logger = get_logger()


class Ends(NamedTuple):
    """The delivery ends without Celery's tracer, by an exception that Celery takes for its own."""

    error: BaseException
    end: End = End.TURNED_AWAY


class Fails(NamedTuple):
    """The task fails with this error where its body would run, as all of Celery's tasks do."""

    error: Exception
    end: End = End.CANNOT_RUN


class Returns(NamedTuple):
    """The task returns this instead of its body's result."""

    value: Any
    end: End = End.TURNED_AWAY


class Runs(NamedTuple):
    """The body runs."""

    end: End = End.RAN


Course: TypeAlias = Ends | Fails | Returns | Runs
RUNS: Final = Runs()


class Ran(NamedTuple):
    """How the body ended.

    Attributes:
        how: for the history, see `past`.
        note: the done note for copies of the message, see `notes`.
        retry: the error by which the body sent the task's next attempt, or None.
    """

    how: str = past.NOT_RUN
    note: str = ""
    retry: Retry | None = None


NOT_RUN: Final = Ran()
#: While the body runs.
BEGUN: Final = Ran(past.FAILED)


class Record:
    """The record of a delivery. Only this class and its subclasses assign its state.

    Args:
        task: the task.
        raw: the request as Celery hands it to the tracer.

    Attributes:
        facts: what never changes.
        delivery: the message, with what was learned of it since it came.
        kept: what is kept for the message, until it is settled or moves to the next message.
        lease: the lease; its fence is 0 while the lock is not acquired.
        may_have_copies: another copy of the message may exist.
        copied: the task may have been published again, or put into a waiting room.
        reruns: the task has run before, and its result is missing.
        course: how the delivery goes on in Celery; None while that is not known.
        ran: how the body ended.
        asked_at: when the lock was asked for, on `clock`.
        first_busy: the first answer that somebody else has the lock, or None.
        parks_as: the member as which the task is being put into the waiting room; "" if it is not.
        is_over: all that the delivery held is settled.
    """

    # Class attributes: an instance is made for each task that runs, and few need other values.
    facts: Facts = None  # type: ignore[assignment]
    delivery: Delivery = None  # type: ignore[assignment]
    lease: Lease = None  # type: ignore[assignment]
    may_have_copies = copied = reruns = is_over = False
    parks_as = ""
    course: Course | None = None
    ran = NOT_RUN
    asked_at = 0.0
    first_busy: Busy | None = None
    _request: Any = None
    #: Knows what ran before, once that may have been changed.
    _running: as_running | None = None
    #: With its answer, the server has noted, or counted, that the task ends without a run.
    _is_noted = _is_counted = False

    def __init__(self, task: LockedTask, raw: dict[str, Any]) -> None:
        self._task = task
        self._raw = raw
        self.kept = Kept.of(raw) if KEY in raw else None

    @property
    def name(self) -> tuple[str, str]:
        """The run and its lock, for a line in the log."""
        lock_id = self.kept.lock_id if self.kept is not None else ""
        return str(self), self.facts.key if self.facts is not None else lock_id

    def __str__(self) -> str:
        return str(self.facts or f"{self._task.name}[{self._raw.get('id')}]")

    def learn(self, **known: Any) -> None:
        """Keep what became known of the message after it came."""
        self.delivery = dataclasses.replace(self.delivery, **known)

    @property
    def request(self) -> Any:
        """The task's request: Celery's own, once it has made the one under which the body runs."""
        if self._request is None:
            facts = self.facts
            self._request = Context(
                facts.raw, args=facts.args, kwargs=facts.kwargs, called_directly=False
            )
        return self._request

    @property
    def has_lock(self) -> bool:
        """Whether the lock was acquired."""
        return self.lease.fence > 0

    @property
    def has_result(self) -> bool:
        """Whether a result of the task is stored."""
        return is_ready(self.facts.task, self.request.id)

    @property
    def proves_nothing(self) -> bool:
        """Whether no stored result can prove that the task has ended."""
        return proves_nothing(self.facts.task, self.request)

    def as_current(self) -> contextlib.AbstractContextManager[None]:
        """Make this the running task, for receivers, policies and log lines."""
        if self.facts.is_eager:
            return contextlib.nullcontext()
        running = as_running(self._task, self.request)
        self._running = self._running or running
        return running

    # -- what the delivery holds, and the notes for copies of its message -------------------------

    def leave_room(self) -> None:
        """Take the task out of the waiting room: it gave up, or failed while it was put there."""
        claim = self.facts.claim
        member = self.parks_as or claim.member or claim.entry_id
        self.kept = Kept(claim.keys.lock_id, claim.kept, Place(member, claim.entry_id))
        self.give_up_kept()
        self.parks_as = ""

    def call_off_copies(self, ends: bool) -> None:
        """Let no copy run of a task that failed while it was put off; or before it asked for the
        lock, as a room may have published it twice. The same for one that goes on, or ends, though
        the server may have put it into the room: its answer was lost.

        Args:
            ends: the delivery ends the task's message.
        """
        if (self.copied or self.delivery.parked) and ends:
            self.note_end()
        if self.parks_as or self.delivery.gave_up:
            self.leave_room()

    def end_by(self, error: Exception) -> None:
        """End the task before its body, by an error: also by one that a policy raised."""
        if isinstance(error, Ignore | Reject):
            # What was acknowledged already cannot come back.
            comes_back = isinstance(error, Reject) and error.requeue and self._task.acks_late
            self.course = Ends(error, End.COMES_BACK if comes_back else End.CANNOT_RUN)
        else:
            self.course = Fails(error)
        if self.facts is None or self.course.end.passes_on:
            return
        # A limit ended the task while that was put off: its next message may be on its way.
        if isinstance(error, SoftTimeLimitExceeded) or self.parks_as:
            ends = isinstance(self.course, Ends) or self.facts.acks_failures
            with only_logged("redislock: could not tell the copies of %s under %r", *self.name):
                self.call_off_copies(ends)

    def give_up_kept(self) -> None:
        """Give up what is kept for the message: the task will not take it."""
        settle_kept(self._task.app, self.kept, End.CANNOT_RUN)
        self.kept = None  # not before: a time limit would leave it to nobody

    def note_arrival(self) -> None:
        """Note when the task arrived, by the lock server's clock, for its next message."""
        busy, received = self.first_busy, self.delivery.received
        if busy is None or received is None or self.facts.began:
            return
        if self.delivery.arrived is None:
            # Measure from when we asked: measured from a late reply, this task would look older
            # than it is.
            self.learn(arrived=busy.at - (busy.sent_at - received))

    def next_header(self, *, outage: bool) -> dict[str, Any]:
        """The header of the message to which the delivery is deferred. From here on a time limit
        may end the delivery with that message already on its way.
        """
        self.note_arrival()
        header = self.delivery.next_header(self.kept, copied=self.copied, outage=outage)
        self.copied = self.may_have_copies = True
        return header

    def note_of(self, kind: str) -> str:
        """The kind of done note that this run leaves: a lasting one if another copy of the message
        may exist even after this one is acknowledged.
        """
        is_copied = self.delivery.redelivered or self.copied or self.delivery.fanout
        return notes.lasting(kind) if is_copied else kind

    def note_end(self) -> None:
        """Note that the task ends without a run, for other copies of its message: a copy that finds
        the lock free must not run instead.
        """
        if not self.may_have_copies or self._is_noted:
            return
        note = mark_done(self.facts.claim, self.note_of(notes.EXPECTS_RESULT))
        leave = partial(self.facts.locks.server.run, note, once=True)
        try:
            leave()
        except LockUnavailable as exc:
            logger.warning(
                "redislock: a copy of %s may run until its end can be noted: %s", self, exc.reason
            )
            housekeeper.add(leave, most=self.facts.claim.ttl)

    def count_turned_away(self, holder: Holder | None) -> None:
        """Count that the task ends without a run, unless the server has counted that already."""
        claim = self.facts.claim
        if claim.history and not self._is_counted:
            with contextlib.suppress(LockUnavailable):  # the count is one too low then
                fence = None if holder is None else holder.fence
                self.facts.locks.server.run(turn_away(claim, fence), once=True)
