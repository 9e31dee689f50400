"""Asks the lock server for a delivery, until the answer is a decision or a conflict."""

from __future__ import annotations

import time

from ..app.outcomes import Outcome
from ..errors import LockUnavailable
from ..protocol import notes
from ..protocol.claims import Busy, Free, Full, Parked
from ..protocol.clock import clock
from ..protocol.log import get_logger
from ..protocol.rooms import park
from ..verbs import Decision
from . import room
from .conflict import TaskConflict, admit
from .decisions import FIRST, NO_DUPLICATE, Answer, Await, Park, Question, Try, meaning
from .deeds import parking_of
from .record import Record

logger = get_logger()


class Asking(Record):
    """A record of a delivery that asks the lock server its questions."""

    def admit(self) -> Decision | Busy | Full:
        """Let the policy decide before the lock is asked for."""
        facts, delivery = self.facts, self.delivery
        is_later = delivery.parked or facts.claim.attempt or facts.claim.nesting
        decision = None
        # In the room, the copies of a fanout exchange would be one entry.
        if not (facts.is_eager or delivery.fanout or is_later):
            conflict = TaskConflict(self, Busy(None, 0.0, "other"), self.understand)
            with self.as_current():
                decision = admit(facts.policy, conflict)
        return decision or self.understand(FIRST)

    def understand(self, question: Question) -> Decision | Busy | Full:
        """Ask until the result is a decision, or a conflict that the policy decides on."""
        while True:
            result = meaning(self, question, self.ask(question))
            if not isinstance(result, Question):
                return result
            question = result

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
            self.first_busy = self.first_busy or answer
        if isinstance(answer, Busy | Parked | Free):
            self._follow_up(answer)
        return answer

    def _try(self, question: Try) -> Answer:
        if question.again:
            if question.reruns:
                logger.warning("redislock: %s ended without a result; it runs again", self)
                self.reruns = True
                self.learn(redelivered=True)
            return self.lease.acquire(again=True)
        # If a conflict can end in one way only, the server notes that end as it answers.
        facts, policy = self.facts, self.facts.policy
        is_noted = (
            policy.turns_away
            and self.may_have_copies
            and not self.reruns
            and (not policy.fails or facts.acks_failures)
        )
        self.asked_at = clock()
        answer = self.lease.acquire(note=self.note_of(notes.EXPECTS_RESULT) if is_noted else "")
        is_conflict = isinstance(answer, Busy) and answer.relation not in NO_DUPLICATE
        self._is_noted = is_noted and is_conflict
        self._is_counted = facts.claim.turned_away and is_conflict
        return answer

    def _await(self, question: Await) -> Answer:
        if question.is_earlier:
            return self.lease.wait(question.timeout, self._follow_up)
        self._begin_to_wait()
        self.facts.tell(Outcome.WAITING, details={"waits": True})
        try:
            return self.lease.wait(question.timeout, self._follow_up, self.facts.is_eager)
        finally:
            self.facts.tell(Outcome.WAITING, details={"waits": False})

    def _park(self, question: Park) -> Answer:
        facts = self.facts
        self._begin_to_wait()
        self.note_arrival()
        parking = parking_of(self, question)
        # From here on the task may be published from the room, even if the answer is lost, or says
        # that it need not wait.
        self.parks_as, self.copied, self.may_have_copies = parking.member, True, True
        answer = facts.locks.server.run(park(facts.claim, parking))
        if not isinstance(answer, Parked):
            self.parks_as = ""
        return answer

    def _begin_to_wait(self) -> None:
        if self.delivery.since is None:
            self.learn(since=time.time())

    def _follow_up(self, answer: Busy | Parked | Free) -> None:
        claim = self.facts.claim
        room.follow_up(self.facts.task.app, claim.keys, claim.ttl, answer, claim.task_id)
