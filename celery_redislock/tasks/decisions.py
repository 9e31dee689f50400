"""Decides what becomes of a delivery, from the lock server's answer, the facts and the policy.

This module only decides: `deeds` carries a decision out, and `Run.ask` asks the lock server.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from ..app.outcomes import Outcome
from ..errors import LockUnavailable
from ..protocol import notes
from ..protocol.claims import Acquired, Busy, Done, Free, Full, Older, Parked
from ..protocol.holders import Holder
from ..verbs import NO_RESULT, Decision
from .record import Record

#: Seconds that a retry waits in its pool slot for its earlier attempt to end.
EARLIER: Final = 1.0
#: Seconds for which a finished attempt's result may still be on its way to the backend.
RESULT_DUE: Final = 5.0
#: The longest pause in seconds between two tries while the lock server is not available.
MOST_OUTAGE: Final = 60.0
#: Seconds for which a task is put off at least, however soon the broker redelivers.
SHORTEST: Final = 0.5
#: The relations, see `acquire.lua`, of a holder whose duplicate the task need not be: it may be a
#: run of this very task.
NO_DUPLICATE: Final = ("own", "earlier", "newer")


# -- decisions --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Go(Decision):
    """The body runs under the lock.

    Attributes:
        waited_for: the lock server's last answer before the task acquired the lock by waiting in
            its pool slot; None if it did not wait.
    """

    waited_for: Busy | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class GoUnlocked(Decision):
    """The body runs without a lock of its own.

    Attributes:
        because: the lock server's error; None if the eager run around this one has the lock.
    """

    because: LockUnavailable | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class TurnedAway(Decision):
    """The task ends without a run.

    Attributes:
        outcome: the outcome that is reported.
        holder: the holder that turned it away.
        result: what the task returns, if it is skipped with a result.
        why: the reason for a WARNING, if the policy wanted something else.
    """

    outcome: Outcome
    holder: Holder | None = None
    result: Any = NO_RESULT
    why: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class PutOff(Decision):
    """The message is published again, to be received after a countdown.

    Attributes:
        countdown: seconds, without the random part.
        outcome: the outcome that is reported, if any.
        holder: the lock's holder, if that is the reason.
        cause: the lock server's error, if that is the reason.
        is_alone: no other run of the task is known that may still give it a result.
        learned: what is now known of the message, for the header of the next one; or None.
        comes_anew: the task will ask anew, so what is kept for its message is given up.
    """

    countdown: float
    outcome: Outcome | None = None
    holder: Holder | None = None
    cause: LockUnavailable | None = None
    is_alone: bool = True
    learned: Mapping[str, Any] | None = None
    comes_anew: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Waits(Decision):
    """The task waits in the lock's waiting room.

    Attributes:
        outcome: the outcome that is reported.
        holder: the lock's holder.
    """

    outcome: Outcome
    holder: Holder | None


@dataclasses.dataclass(frozen=True, slots=True)
class CannotRun(Decision):
    """The task fails without a run.

    Attributes:
        error: the error with which it fails.
    """

    error: Exception


# -- questions to the lock server -------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Try:
    """Ask for the lock once.

    Attributes:
        again: acquire the lock even if this attempt is known to have run before.
        reruns: this attempt has run before, and its result is missing.
    """

    again: bool = False
    reruns: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Await:
    """Wait for the lock in the pool slot.

    Attributes:
        timeout: seconds; None waits for ever.
        is_earlier: the holder is the task's earlier attempt, which published this one.
    """

    timeout: float | None
    is_earlier: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Park:
    """Wait in the waiting room, unless the lock is free by now. See `Conflict.park`, `.replace`.

    Attributes:
        busy: the answer that the task acts on.
        limit: how many may wait.
        give_up: seconds for which the task waits; None for ever.
        newest: the task takes the place of waiting tasks with the same name.
        grace: the holder must end within so many seconds; None leaves the holder alone.
        quiet: seconds without a newer call after which the task gets its chance, and seconds since
            the first of these calls after which it does in any case; None: as soon as the lock is
            free.
    """

    busy: Busy
    limit: int | None = None
    give_up: float | None = None
    newest: bool = False
    grace: float | None = None
    quiet: tuple[float, float] | None = None

    @property
    def outcome(self) -> Outcome:
        if self.grace is not None:
            return Outcome.REPLACING
        if self.quiet is not None:
            return Outcome.DEBOUNCED
        return Outcome.COALESCED if self.newest else Outcome.QUEUED


Question: TypeAlias = Try | Await | Park
#: The answers to a question. `LockUnavailable` is one too: the server did not reply in time.
Answer: TypeAlias = Acquired | Busy | Done | Parked | Free | Full | Older | LockUnavailable
FIRST: Final = Try()
GO: Final = Go()


def replaced_before(run: Record) -> Decision | None:
    """The end of a message that was published again only to end its task, which was replaced."""
    by = run.facts.delivery.replaced_by
    if by is None:
        return None
    if not run.proves_nothing and run.has_result:
        return TurnedAway(Outcome.ALREADY_DONE)
    return TurnedAway(Outcome.REPLACED, by)


# -- what an answer means ---------------------------------------------------------------------


def meaning(run: Record, asked: Question, answer: Answer) -> Decision | Question | Busy | Full:
    """What the server's answer means to this run: a decision; a question to ask next; or a conflict
    or a full room, for the policy to decide.
    """
    if isinstance(answer, Acquired):
        return GO
    if isinstance(answer, LockUnavailable):
        return _unavailable(run, answer)
    if run.facts.delivery.fanout and _is_another_queues(run, answer):
        return _as_copy(answer)
    if isinstance(answer, Busy):
        return _busy(run, asked, answer)
    if isinstance(answer, Done):
        return _done(run, answer)
    if isinstance(answer, Free):
        return FIRST
    if isinstance(answer, Older):
        by = answer.holder or Holder(task=run.facts.task.name, task_id=answer.task_id)
        return TurnedAway(Outcome.REPLACED, by)
    if isinstance(answer, Parked):
        assert isinstance(asked, Park)
        return Waits(asked.outcome, asked.busy.holder)
    return answer


def _busy(run: Record, asked: Question, busy: Busy) -> Decision | Question | Busy:
    is_own, is_earlier = busy.relation == "own", busy.relation == "earlier"
    if run.facts.is_eager and (is_own or is_earlier):
        return GoUnlocked()  # a retry runs inside its earlier attempt, under that one's lock
    if is_own or (run.reruns and not is_earlier):
        # Not a duplicate, but a copy: its task's run has the lock, or has run to its end. If the
        # holder dies, this copy is all that is left of the task. We clear `sent`: whatever the
        # message's identity, it counts as a copy of what runs under its id.
        return _behind(run, Outcome.REDELIVERED, busy, {"redelivered": True, "sent": ""})
    if busy.relation == "newer" and not (run.facts.is_eager or run.facts.cannot_come_back):
        return _behind(run, Outcome.DEFERRED, busy)
    if not is_earlier:
        return busy
    if isinstance(asked, Await) and asked.is_earlier:
        return _behind(run, Outcome.RETRIED_EARLY, busy)
    return Await(min(EARLIER, run.facts.claim.ttl / 3), is_earlier=True)


def _behind(
    run: Record, outcome: Outcome, busy: Busy, learned: Mapping[str, Any] | None = None
) -> PutOff:
    """Put the task off until its other run, which has the lock, may have ended."""
    facts = run.facts
    countdown = backoff(facts.delivery.deferrals, facts.claim.ttl / 3, run)
    return PutOff(countdown, outcome, busy.holder, is_alone=False, learned=learned)


def _done(run: Record, done: Done) -> Decision | Question:
    """End a copy of a message whose task has run; run what is no copy, or whose run died."""
    delivery, by = run.facts.delivery, done.note.replaced_by
    if by is not None:
        # The replaced run may have ended within its grace, with a result of its own.
        ended_itself = run.facts.began and run.has_result
        return _as_copy(done) if ended_itself else TurnedAway(Outcome.REPLACED, by)
    if done.note.is_of_another_message(delivery.sent):
        return Try(again=True)
    # A task may be sent again under the same id, after its run ended. That can be told from a copy
    # only if this broker says which messages are copies.
    says_copies = delivery.sent or not run.facts.locks.redelivery.copies_any_time
    is_copy = delivery.redelivered or done.note.is_of(delivery.sent) or not says_copies
    if not is_copy and max(delivery.age, delivery.waited) < done.age:
        return Try(again=True)
    if _has_ended(run, done):
        return _as_copy(done)
    if done.age < RESULT_DUE:
        # The next message must count as a copy too, though it is received later.
        return PutOff(1.0, learned={"redelivered": True})
    # Its process died after the body, before Celery stored the result or published what follows.
    return Try(again=True, reruns=True)


def _is_another_queues(run: Record, answer: Answer) -> bool:
    """Whether another queue's copy of the message runs or has run: a task sent once runs once. A
    redelivered copy does not count, since it may be all that is left of the task.
    """
    is_own = isinstance(answer, Done) or (isinstance(answer, Busy) and answer.relation == "own")
    return is_own and not run.facts.delivery.redelivered


def _as_copy(answer: Answer) -> TurnedAway:
    if isinstance(answer, Busy):
        return TurnedAway(Outcome.RUNS_ELSEWHERE, answer.holder)
    return TurnedAway(Outcome.ALREADY_DONE)


def _has_ended(run: Record, done: Done) -> bool:
    """Whether the run is complete: its result is stored, and what follows it is published."""
    if done.note.kind in (notes.ENDED, notes.PUBLISHING):
        return done.note.kind == notes.ENDED
    return run.proves_nothing or run.has_result


def _unavailable(run: Record, error: LockUnavailable) -> Decision:
    choice, outages = run.facts.options.on_redis_error, run.facts.delivery.outages
    if choice == "run":
        return GoUnlocked(error)
    if choice == "raise" or run.facts.is_eager:
        return CannotRun(error)
    countdown = backoff(outages, MOST_OUTAGE, run)
    return PutOff(countdown, Outcome.UNAVAILABLE, cause=error)


def backoff(tries: int, most: float, run: Record) -> float:
    """Seconds until the next try: 1, 2, 4 and so on, up to `most`."""
    longest = longest_countdown(run.facts.locks.redelivery.after)
    return min(2.0 ** min(tries, 10), most, longest)


def longest_countdown(visible: float | None) -> float:
    """The longest countdown in seconds.

    Args:
        visible: seconds after which the broker redelivers; None if it never does by time.
    """
    return float("inf") if visible is None else max(visible / 2, SHORTEST)
