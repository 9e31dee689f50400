"""Asks for the lock, and handles what is neither success nor an ordinary conflict: a copy of a
message, a retry that came early, a server that does not answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NoReturn

from ..app.outcomes import Outcome
from ..app.results import is_ready, proves_nothing, store_skipped
from ..errors import LockUnavailable, TaskReplaced, TaskSkipped
from ..lock.lease import Lease
from ..policies import Policy
from ..protocol import notes
from ..protocol.claims import Acquired, Busy, Done
from ..protocol.holders import Holder
from ..protocol.log import get_logger
from .attempt import Attempt
from .ends import AlreadyDone, Skipped
from .sending import backoff, put_off
from .settle import End, settle_kept

logger = get_logger()

#: Seconds that a retry waits in place for its earlier attempt to end.
EARLIER: Final = 1.0
#: Seconds for which a finished attempt's result may still be on its way to the backend.
RESULT_DUE: Final = 5.0


def policy_of(attempt: Attempt) -> Policy:
    """The policy for a duplicate."""
    policy = attempt.options.on_conflict
    return policy.eager() if attempt.is_eager else policy


def ask(attempt: Attempt) -> Acquired | Busy | Done:
    """Ask for the lock. If a conflict can end in one way only, the server notes that at once."""
    policy = policy_of(attempt)
    is_noted = (
        policy.turns_away
        and attempt.may_have_copies
        and not attempt.reruns
        and (attempt.acks_failures or not policy.fails)
    )
    note = attempt.note(notes.EXPECTS_RESULT) if is_noted else ""
    lease = attempt.lease
    assert lease is not None
    reply = lease.acquire(note=note)
    is_conflict = isinstance(reply, Busy) and reply.relation not in ("own", "earlier")
    attempt.is_noted = is_noted and is_conflict
    attempt.is_counted = attempt.claim.turned_away and is_conflict
    return reply


def lease_of(attempt: Attempt) -> Lease:
    """The attempt's lease."""
    assert attempt.lease is not None
    return attempt.lease


def resolve(
    attempt: Attempt, question: Callable[[], Acquired | Busy | Done]
) -> Acquired | Busy | None:
    """Ask for the lock, and handle every answer but an ordinary conflict.

    Args:
        attempt: the attempt that asks.
        question: asks once, or waits.

    Returns:
        `Acquired`; `Busy` if somebody else has it; None if the task is to run without its lock.

    Raises:
        Deferred: another copy of this message, or its earlier attempt, has the lock.
        AlreadyDone: another copy has run, or came through a fanout exchange and runs.
        Skipped: a newer run has replaced it.
        LockUnavailable: the server could not be asked, and the task is to fail for that.
    """
    try:
        reply = question()
        while not isinstance(reply, Acquired):
            attempt.heard(reply)
            if _is_another_queues(attempt, reply):
                _ends_as_copy(attempt, reply)
            if isinstance(reply, Done):
                reply = _unless_done(attempt, reply)
            elif reply.relation == "own" and not attempt.is_eager:
                _redelivered(attempt, reply)
            elif reply.relation == "earlier" and not attempt.is_eager:
                reply = _await_earlier(attempt)
            elif reply.relation in ("own", "earlier"):
                # An eager retry runs inside its earlier attempt, under that one's lock.
                return None
            elif attempt.reruns:
                # It has run to its end, so it is not a duplicate.
                _redelivered(attempt, reply)
            else:
                return reply
    except LockUnavailable as exc:
        unless_unlocked(attempt, exc)
        return None
    return reply


def _redelivered(attempt: Attempt, busy: Busy) -> NoReturn:
    """Put off a copy of a message whose run has the lock. It is not a duplicate: if the holder
    dies, this copy is all that is left of the task.
    """
    attempt.delivery.redelivered = True
    attempt.delivery.sent = ""  # whatever it is, it is a copy of what runs under its id
    _put_off_behind(attempt, Outcome.REDELIVERED, busy)


def _await_earlier(attempt: Attempt) -> Acquired | Busy | Done:
    """Wait a moment for the earlier attempt, which published this retry and has not ended yet."""
    lease = lease_of(attempt)
    reply = lease.wait(min(EARLIER, lease.ttl / 3), attempt.heard)
    if isinstance(reply, Busy) and reply.relation == "earlier":
        _put_off_behind(attempt, Outcome.RETRIED_EARLY, reply)
    return reply


def _put_off_behind(attempt: Attempt, outcome: Outcome, busy: Busy) -> NoReturn:
    """Put the task off until its other run, which has the lock, may have ended."""
    countdown = backoff(attempt, attempt.delivery.deferrals, lease_of(attempt).ttl / 3)
    say = partial(attempt.conflict_ended, outcome, busy.holder, countdown)
    put_off(attempt, countdown, is_alone=False, say=say)


def _unless_done(attempt: Attempt, done: Done) -> Acquired | Busy | Done:
    """End a copy of a message whose task has run; ask again if it is none, or the run died."""
    delivery, lease = attempt.delivery, lease_of(attempt)
    if done.note.replaced_by is not None:
        if attempt.began and is_ready(attempt.task, attempt.request.id):
            _ends_as_copy(attempt, done)  # it ended within its grace, with a result of its own
        end_as_replaced(attempt, done.note.replaced_by)
    if done.note.is_of_another_message(delivery.sent):
        return lease.acquire(again=True)
    # A task may be sent again under the same id. Its message was then sent after the run ended, if
    # this broker says which message is a copy.
    says_copies = delivery.sent or not attempt.locks.redelivery.copies_any_time
    is_copy = delivery.redelivered or done.note.is_of(delivery.sent) or not says_copies
    if not is_copy and max(delivery.age, delivery.waited) < done.age:
        return lease.acquire(again=True)
    # The message it is deferred to must be known as a copy too, though it is received later.
    delivery.redelivered = True
    if _has_ended(attempt, done):
        _ends_as_copy(attempt, done)
    if done.age < RESULT_DUE:
        put_off(attempt, 1.0)
    # Its process died after the body, before Celery stored the result or published what follows.
    logger.warning("redislock: %s ended without a result; it runs again", attempt)
    attempt.reruns = True
    return lease.acquire(again=True)


def _is_another_queues(attempt: Attempt, reply: Busy | Done) -> bool:
    """Whether the message came through a fanout exchange, and another queue's copy of it runs or
    has run: what was sent once is answered once. A redelivered copy may be all that is left.
    """
    delivery = attempt.delivery
    is_own = isinstance(reply, Done) or reply.relation == "own"
    return is_own and delivery.fanout and not delivery.redelivered


def _ends_as_copy(attempt: Attempt, reply: Busy | Done) -> NoReturn:
    attempt.end = End.TURNED_AWAY
    if isinstance(reply, Busy):
        attempt.conflict_ended(Outcome.RUNS_ELSEWHERE, reply.holder)
    else:
        attempt.conflict_ended(Outcome.ALREADY_DONE, None)
    raise AlreadyDone


def _has_ended(attempt: Attempt, done: Done) -> bool:
    """Whether the run is complete: its result is stored, and what follows it is published."""
    if done.note.kind == notes.ENDED:
        return True
    if done.note.kind == notes.PUBLISHING:
        return False
    if proves_nothing(attempt.task, attempt.request):
        return True  # no result could prove it
    return is_ready(attempt.task, attempt.request.id)


def unless_unlocked(attempt: Attempt, error: LockUnavailable) -> None:
    """The lock server cannot be asked: return if the task is to run without its lock."""
    choice = attempt.options.on_redis_error
    if choice == "run":
        attempt.end = End.UNLOCKED
        attempt.tell(
            Outcome.RUN_UNLOCKED, "redislock: %s runs WITHOUT its lock: %s", attempt, error,
            reason=error.reason,
        )  # fmt: skip
        return
    if choice == "raise" or attempt.is_eager:
        attempt.end = End.UNLOCKED
        raise error
    countdown = backoff(attempt, attempt.delivery.outages, 60.0)
    say = partial(
        attempt.tell,
        Outcome.UNAVAILABLE, "redislock: %s is deferred for %.1f s: %s", attempt, countdown, error,
        logged={"reason": error.reason}, countdown=countdown,
    )  # fmt: skip
    put_off(attempt, countdown, cause=error, say=say)


def end_as_replaced(attempt: Attempt, by: Holder) -> NoReturn:
    """End in favour of a newer run."""
    attempt.conflict_ended(Outcome.REPLACED, by)
    store_end(attempt, error := TaskReplaced(attempt.key, by))
    if attempt.end is not End.RAN:
        attempt.end = End.TURNED_AWAY
        attempt.mark_done()
    raise Skipped(error)


def store_end(attempt: Attempt, error: TaskSkipped) -> None:
    """Store that the task was skipped."""
    if not attempt.is_eager:
        store_skipped(attempt.task, attempt.request, error)


def give_up_kept(attempt: Attempt, end: End) -> None:
    """Give up the lock that is kept for the task's message: the task will not take it."""
    kept, attempt.delivery.kept = attempt.delivery.kept, None
    settle_kept(attempt.task.app, kept, end)
