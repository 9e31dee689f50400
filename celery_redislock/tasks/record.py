"""One delivery of a locked task: its facts, its one state, and what the lock server is asked."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from celery.app.task import Context

from ..app.delivery import Delivery, Kept
from ..app.errands import errands
from ..app.internals import as_running
from ..app.outcomes import Outcome
from ..app.results import is_ready, proves_nothing
from ..errors import LockUnavailable
from ..lock.lease import Lease
from ..policies import Decision
from ..protocol import notes
from ..protocol.calls import mark_done, turn_away
from ..protocol.claims import Busy, Full, Parked, Turn
from ..protocol.clock import clock
from ..protocol.holders import Holder
from ..protocol.log import get_logger
from ..protocol.rooms import park
from . import turns
from .body import NOT_RUN
from .decisions import Answer, Await, Park, Question, Try, meaning
from .deeds import Course, parking_of
from .facts import Facts
from .locked import LockedTask
from .settle import End, settle_kept

logger = get_logger()


class Record:
    """The record of a delivery. Only it and `Run`, which is one, assign its state.

    Args:
        task: the task.
        raw: the request as Celery hands it to the tracer.

    Attributes:
        facts: what never changes.
        delivery: the message, with what was learned of it since it came.
        kept: what is kept for the message, until it is settled or moves to the next message.
        lease: the lease, of which the fence is 0 while the lock is not acquired.
        copied: the task may have been published again, or put into a waiting room.
        reruns: it has run before, and its result is missing.
        course: how the delivery goes on in Celery; None while that is not known.
        ran: how the body ended.
        asked_at: when the lock was asked for, on `clock`.
        is_parking: the task is being put into the waiting room.
        is_over: all that the delivery held is settled.
    """

    # Class attributes: an instance is made for each task that runs, and few need other values.
    facts: Facts = None  # type: ignore[assignment]
    delivery: Delivery = None  # type: ignore[assignment]
    lease: Lease = None  # type: ignore[assignment]
    copied = reruns = is_parking = is_over = False
    course: Course | None = None
    ran = NOT_RUN
    asked_at = 0.0
    _request: Any = None
    #: The server has noted, or counted, as it answered, that the task ends without a run.
    _is_noted = _is_counted = False

    def __init__(self, task: LockedTask, raw: dict[str, Any]) -> None:
        self._task = task
        self._raw = raw
        self.kept = Kept.of(raw)

    @property
    def name(self) -> tuple[str, str]:
        """Which run it is, and its lock, for a line in the log."""
        mark = self.kept.mark if self.kept is not None else ""
        return str(self), self.facts.key if self.facts is not None else mark

    def __str__(self) -> str:
        return str(self.facts or f"{self._task.name}[{self._raw.get('id')}]")

    def learn(self, **known: Any) -> None:
        """Something is known of the message that was not known when it came."""
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
    def may_have_copies(self) -> bool:
        """Whether another copy of its message may exist."""
        return self.facts.may_have_copies or self.copied

    @property
    def has_result(self) -> bool:
        """Whether a result of the task is stored."""
        return is_ready(self.facts.task, self.request.id)

    @property
    def proves_nothing(self) -> bool:
        """Whether there is no result to ask for, as a proof that the task has ended."""
        return proves_nothing(self.facts.task, self.request)

    @contextlib.contextmanager
    def as_current(self) -> Iterator[None]:
        """Make this the running task, for receivers, policies and log lines."""
        if self.facts.is_eager:
            yield
            return
        with as_running(self.facts.task, self.request):
            yield

    # -- the lock server ------------------------------------------------------------------

    def understand(self, question: Question) -> Decision | Busy | Full:
        """Ask until the answer is a decision, or one that the policy decides on."""
        while True:
            found = meaning(self, question, self.ask(question))
            if not isinstance(found, Question):
                return found
            question = found

    def ask(self, question: Question) -> Answer:
        """Ask the lock server."""
        try:
            if isinstance(question, Try):
                answer: Answer = self._try(question)
            elif isinstance(question, Await):
                answer = self._await(question)
            else:
                answer = self._park(question)
        except LockUnavailable as exc:
            return exc
        if isinstance(answer, Busy):
            self._heard(answer)
        return answer

    def _try(self, question: Try) -> Answer:
        if question.again:
            if question.reruns:
                logger.warning("redislock: %s ended without a result; it runs again", self)
                self.reruns = True
                self.learn(redelivered=True)
            return self.lease.acquire(again=True)
        # If a conflict can end in one way only, the server notes that at once.
        facts, policy = self.facts, self.facts.policy
        is_noted = (
            policy.turns_away
            and self.may_have_copies
            and not self.reruns
            and (not policy.fails or facts.acks_failures)
        )
        self.asked_at = clock()
        answer = self.lease.acquire(note=self.note_of(notes.EXPECTS_RESULT) if is_noted else "")
        is_conflict = isinstance(answer, Busy) and answer.relation not in ("own", "earlier")
        self._is_noted = is_noted and is_conflict
        self._is_counted = facts.claim.turned_away and is_conflict
        return answer

    def _await(self, question: Await) -> Answer:
        if question.is_earlier:
            return self.lease.wait(question.timeout, self._heard)
        self._begin_to_wait()
        self.facts.tell(Outcome.WAITING, details={"waits": True})
        try:
            return self.lease.wait(question.timeout, self._heard, self.facts.is_eager)
        finally:
            self.facts.tell(Outcome.WAITING, details={"waits": False})

    def _park(self, question: Park) -> Answer:
        facts = self.facts
        self._begin_to_wait()
        parking = parking_of(self, question)
        # From here on it may be published from the room, even if the answer is lost, or says that
        # it need not wait.
        self.is_parking = self.copied = True
        answer = facts.locks.store.run(park(facts.claim, parking))
        self.is_parking = isinstance(answer, Parked)
        if isinstance(answer, Parked | Turn):
            app, keys, ttl = facts.task.app, facts.claim.keys, facts.claim.ttl
            for entry_id, replaced in answer.replaced.items():
                turns.end_replaced(app, keys, ttl, entry_id, replaced, facts.claim.task_id)
        return answer

    def _begin_to_wait(self) -> None:
        if self.delivery.since is None:
            self.learn(since=time.time())

    def _heard(self, busy: Busy) -> None:
        """Note when this run arrived. Publish the message that got the turn as this one asked."""
        facts, delivery = self.facts, self.delivery
        if busy.offered is not None:
            turns.publish(facts.task.app, facts.claim.keys, facts.claim.ttl, busy.offered)
        if delivery.arrived is None and delivery.received is not None and not facts.began:
            # Measure from when we asked: measured from a late reply, this task would look older
            # than it is.
            self.learn(arrived=busy.at - (busy.sent_at - delivery.received))

    # -- what it holds, and what copies of its message are told ----------------------------------

    def leave_room(self) -> None:
        claim = self.facts.claim
        self.kept = Kept(claim.keys.mark, claim.kept, claim.entry_id)
        self.give_up_kept()

    def give_up_kept(self) -> None:
        """Give up what is kept for the message: the task will not take it."""
        kept, self.kept = self.kept, None
        settle_kept(self._task.app, kept, End.CANNOT_RUN)

    def next_header(self, *, outage: bool) -> dict[str, Any]:
        """The header of the message to which the delivery is deferred. From here on a time limit
        may end it with that message already on its way.
        """
        header = self.delivery.next_header(self.kept, copied=self.copied, outage=outage)
        self.copied = True
        return header

    def note_of(self, kind: str) -> str:
        """The kind of done note that this run leaves: a lasting one if another copy of the message
        may exist even after this one is acknowledged.
        """
        is_copied = self.delivery.redelivered or self.copied or self.delivery.fanout
        return notes.lasting(kind) if is_copied else kind

    def note_end(self) -> None:
        """Note that the task ends without a run, for other copies of its message: one that finds
        the lock free must not run instead.
        """
        if not self.may_have_copies or self._is_noted:
            return
        note = mark_done(self.facts.claim, self.note_of(notes.EXPECTS_RESULT))
        ask = partial(self.facts.locks.store.ask, note, once=True)
        try:
            ask()
        except LockUnavailable as exc:
            logger.warning(
                "redislock: a copy of %s may run until its end can be noted: %s", self, exc.reason
            )
            errands.add(ask, most=self.facts.claim.ttl)

    def count_turned_away(self, holder: Holder | None) -> None:
        """Count that it ends without a run, unless the server counted it as it answered."""
        claim = self.facts.claim
        if claim.history and not self._is_counted:
            with contextlib.suppress(LockUnavailable):  # the count is one too low then
                fence = None if holder is None else holder.fence
                self.facts.locks.store.run(turn_away(claim, fence), once=True)
