"""Carries out what was decided about a delivery, says how it goes on in Celery, and raises what
fails, such as the broker's error: the task then fails with that.
"""

from __future__ import annotations

import contextlib
import random
import time
from functools import partial
from typing import Any, Final

from celery.app.task import Context
from celery.exceptions import Reject, SoftTimeLimitExceeded

from ..app.again import message_options, publish_again
from ..app.brokers import broker_of
from ..app.delivery import KEY, Delivery
from ..app.entries import Entry, Waiter
from ..app.housekeeper import housekeeper
from ..app.internals import least_countdown
from ..app.outcomes import TURNED_AWAY, Outcome
from ..app.results import store_skipped
from ..app.times import seconds_until
from ..errors import LockConflict, LockUnavailable, TaskReplaced, TaskSkipped
from ..policies import Policy
from ..protocol import notes
from ..protocol.calls import mark_done
from ..protocol.calls import turn_away as count_turned_away
from ..protocol.claims import Done, Parking
from ..protocol.holders import Holder, successor_text
from ..protocol.log import logger
from ..verbs import NO_RESULT
from . import decide, room
from .ends import AlreadyDone, Deferred, End, Expired, Skipped, Waiting
from .facts import Facts
from .locked import LockedTask
from .refused import refused
from .state import Course, Ends, Fails, Returns, Runs, State

#: A countdown is multiplied by a random factor up to this, so that not all come back at once.
SPREAD: Final = 1.25
#: Seconds until a message that could not be published again is given back to the broker, which
#: delivers it again at once: publishing may then fail again.
BEFORE_REJECTING: Final = 1.0
#: While the lock server is away, a task comes back at least so many seconds before it expires.
IN_TIME: Final = 1.0
#: Seconds until a message that only a newer release can read is delivered again.
BACK_AFTER: Final = 3.0


# -- the body runs, or it cannot --------------------------------------------------------------


def run_unlocked(facts: Facts, decision: decide.GoUnlocked) -> Course:
    error = decision.because
    if error is not None:
        facts.report(
            Outcome.RUN_UNLOCKED, "redislock: %s runs WITHOUT its lock: %s", facts, error,
            reason=error.reason, details={"because": "unavailable"},
        )  # fmt: skip
    return Runs(End.UNLOCKED)


# -- it ends without a run --------------------------------------------------------------------


def turn_away(facts: Facts, state: State, request: Any, decision: decide.TurnedAway) -> Course:
    """End the task without a run."""
    outcome, holder, suspension = decision.outcome, decision.holder, decision.suspension
    if outcome in (Outcome.ALREADY_DONE, Outcome.RUNS_ELSEWHERE):
        facts.report_conflict(outcome, holder)
        return Ends(AlreadyDone())
    if outcome is Outcome.REPLACED:
        assert holder is not None
        return end_replaced(facts, request, holder)
    if decision.why:
        logger.warning("redislock: %s is skipped: %s", facts, decision.why)
    _count_turned_away(facts, state, decision)
    facts.report_conflict(outcome, holder, suspension=suspension)
    if outcome is Outcome.SKIPPED_WITH_RESULT:
        return Returns(decision.result)
    if outcome is Outcome.RAISED:
        error = LockConflict(facts.key, holder, suspension)
        return Fails(refused(error), End.TURNED_AWAY)
    return Ends(_store_end(facts, request, TaskSkipped(facts.key, holder, suspension)))


def is_noted(facts: Facts, outcome: Outcome) -> bool:
    """Whether copies of the message are told that the task ended so, without a run."""
    return outcome in TURNED_AWAY and (outcome is not Outcome.RAISED or facts.acks_failures)


def note_end(facts: Facts, state: State, kind: str) -> Done | None:
    """Note for other copies of the message that the task has ended: none must run instead. Returns
    the note of a copy that has ended it already.
    """

    def leave(kind: str) -> Done | None:
        note = mark_done(facts.claim, state.note_of(kind))
        return facts.locks.server.run(note, once=True)  # else it may meet its own note

    try:
        return leave(kind)
    except LockUnavailable as exc:
        logger.warning(
            "redislock: a copy of %s may run until its end can be noted: %s", facts, exc.reason
        )
        # By then, what follows is published.
        late = notes.EXPECTS_RESULT if kind == notes.PUBLISHING else kind
        housekeeper.add(partial(leave, late), most=facts.claim.ttl)
        return None


def _count_turned_away(facts: Facts, state: State, decision: decide.TurnedAway) -> None:
    """Count that the task ends without a run, unless the server has counted that already."""
    claim = facts.claim
    if claim.history and not state.is_counted:
        with contextlib.suppress(LockUnavailable):  # the count is one too low then
            fence = None if decision.holder is None else decision.holder.fence
            counts = count_turned_away(claim, fence, decision.suspension is not None)
            facts.locks.server.run(counts, once=True)


def end_replaced(facts: Facts, request: Any, by: Holder) -> Returns | Ends:
    """End a task in favour of a newer run, with its policy's result if it has one."""
    facts.report_conflict(Outcome.REPLACED, by)
    result = facts.policy.result_if_replaced
    if result is not NO_RESULT:
        return Returns(result)
    return Ends(_store_end(facts, request, TaskReplaced(facts.key, by)))


def publish_replaced(
    task: LockedTask, raw: dict[str, Any], request: Any, args: Any, kwargs: Any, by: Holder
) -> bool:
    """Publish a replaced task again, so that a worker ends it with its policy's result, as Celery
    ends tasks. False if it has no such result, or cannot be published.
    """
    delivery = Delivery.take_from({**raw})
    if delivery.fanout or not _has_result(task.lock_options.on_conflict):
        return False
    try:
        options = message_options(raw, request, delivery.replaced_header(by), delivery)
        publish_again(task.app, task.name, args, kwargs, {**options, "expires": None})
    except Exception:
        logger.exception("redislock: %s[%s] ends without its result", task.name, request.id)
        return False
    return True


def _has_result(policy: Policy) -> bool:
    return policy.result_if_replaced is not NO_RESULT


def _store_end(facts: Facts, request: Any, error: TaskSkipped) -> Skipped:
    if not facts.is_eager:
        store_skipped(facts.task, request, error)
    return Skipped(error)


# -- it is published again --------------------------------------------------------------------


def countdown_of(facts: Facts, decision: decide.PutOff) -> float:
    """Seconds until the next message is to be received: at most half of the time after which the
    broker redelivers, as each copy of one that sleeps for longer would be put off in turn.
    """
    longest = decide.longest_countdown(facts.locks.redelivery.after)
    countdown = min(decision.countdown * random.uniform(1.0, SPREAD), longest)
    left = seconds_until(facts.raw.get("expires"))
    if decision.cause is not None and left is not None and left > 2 * IN_TIME:
        countdown = min(countdown, left - IN_TIME)  # the server may answer any moment
    return countdown


def expires_before(facts: Facts, state: State, decision: decide.PutOff, countdown: float) -> bool:
    """Whether the next message would expire before it is received: RabbitMQ would drop it."""
    left = seconds_until(facts.raw.get("expires"))
    ahead = countdown if decision.is_alone and not state.message.began else 0.0
    return left is not None and left < ahead


def end_expired(facts: Facts, request: Any, decision: decide.PutOff) -> Course:
    """End a task that would expire before its next message is received."""
    because: tuple[str, ...] = ()
    if decision.cause is not None:
        because = str(decision.cause), decision.cause.reason
    elif decision.suspension is not None:
        because = (room.while_suspended(str(decision.suspension)),)
    room.end_expired(facts.task, facts.claim.keys, request, facts.label, *because)
    return Ends(Expired())


def put_off(
    facts: Facts,
    request: Any,
    message: Delivery,
    header: dict[str, Any],
    countdown: float,
    decision: decide.PutOff,
) -> Course:
    """Publish the task again, with this header, to be run after this countdown."""
    outcome, cause = decision.outcome, decision.cause
    if cause is not None:
        facts.report(
            Outcome.UNAVAILABLE,
            "redislock: %s is deferred for %.1f s: %s", facts, countdown, cause,
            logged={"reason": cause.reason}, countdown=countdown,
        )  # fmt: skip
    elif outcome is not None:
        facts.report_conflict(outcome, decision.holder, countdown, decision.suspension)
    return _publish(facts.task, facts.raw, request, message, header, countdown, cause)


def give_back(task: LockedTask, raw: dict[str, Any], args: Any, kwargs: Any) -> Course:
    """Give a message that a newer release wrote back to its queue as it came, for newer workers."""
    request = Context(raw, args=args, kwargs=kwargs, called_directly=False)
    delivery = Delivery.take_from({**raw, KEY: None})
    if delivery.fanout and delivery.queue is None:
        logger.warning("redislock: %s[%s] is left to newer workers", task.name, request.id)
        return Ends(AlreadyDone())  # each worker of its exchange has a copy
    longest = decide.longest_countdown(task.app_locks.redelivery.after)
    countdown = min(BACK_AFTER * random.uniform(1.0, SPREAD), longest)
    left = seconds_until(raw.get("expires"))
    if left is not None:  # RabbitMQ would drop it; Celery ends it with a result
        countdown = max(min(countdown, left - IN_TIME), 0.0)
    logger.info(
        "redislock: %s[%s] goes back to its queue for %.1f s: a newer release sent it",
        task.name, request.id, countdown,
    )  # fmt: skip
    return _publish(task, raw, request, delivery, {KEY: raw[KEY]}, countdown)


def _publish(
    task: LockedTask,
    raw: dict[str, Any],
    request: Any,
    delivery: Delivery,
    header: dict[str, Any],
    countdown: float,
    cause: LockUnavailable | None = None,
) -> Course:
    try:
        options = message_options(raw, request, header, delivery)
        options["countdown"] = max(countdown, least_countdown(task.app))
        publish_again(task.app, task.name, request.args, request.kwargs, options)
    except SoftTimeLimitExceeded:
        raise
    except Exception as exc:
        logger.exception("redislock: %s[%s] could not be published again", task.name, request.id)
        # A fanout exchange would give the message to all its queues.
        if task.acks_late and not delivery.fanout:
            time.sleep(BEFORE_REJECTING)
            return Ends(Reject(exc, requeue=True), End.COMES_BACK)
        raise (cause or exc) from exc
    return Ends(Deferred(), End.PUT_OFF)


# -- it waits in the room ---------------------------------------------------------------------


def parking_of(
    facts: Facts, state: State, request: Any, question: decide.Park, in_doubt: bool
) -> Parking:
    """The data that put the task into the waiting room."""
    message, task = state.message, facts.task
    suspension = question.busy.suspension
    header = message.parked_header(
        broker_of(task.app),
        facts.label,
        _has_result(facts.policy),
        None if suspension is None else str(suspension),
    )
    options = message_options(facts.raw, request, header, message)
    entry = Entry.of(task, request.args, request.kwargs, options, message.content_type)
    entry = entry.sealed(task.app, facts.key)
    text = entry.dump()
    waiter = Waiter(task, request.args, request.kwargs, options, header[KEY])
    room.note_parked(text, entry, waiter)
    grace, began = question.grace, decide.has_begun(facts, state)
    return Parking(
        text,
        member=state.parks_as,
        arrived=message.arrived,
        received=message.received,
        receipt=f"{message.receipt}/{message.token[:16]}",
        limit=question.limit,
        give_up=question.give_up,
        in_front=message.parked or grace is not None or (question.newest and began),
        replace=(successor_text(task.name, facts.claim.task_id), grace),
        quiet=question.quiet,
        in_doubt=in_doubt,
    )


def wait_in_room(facts: Facts, decision: decide.Waits) -> Course:
    """The task is in the room: report that."""
    if decision.outcome is Outcome.DEBOUNCED:
        facts.report(
            Outcome.DEBOUNCED, "redislock: %s is debounced: it waits under %s until no newer call"
            " has come for a while", facts, facts.key, details={}, holder=None,
        )  # fmt: skip
    else:
        facts.report_conflict(decision.outcome, decision.holder, suspension=decision.suspension)
    return Ends(Waiting(facts.claim.keys.lock_id), End.PUT_OFF)
