"""Carries out what was decided about a delivery: publishes, stores and reports."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, Final

from celery.app.task import Context
from celery.exceptions import Reject, SoftTimeLimitExceeded

from ..app.again import message_options, publish_again
from ..app.brokers import broker_of
from ..app.delivery import KEY, Delivery
from ..app.entries import Entry
from ..app.internals import least_countdown
from ..app.outcomes import Outcome
from ..app.results import store_skipped
from ..app.times import seconds_until
from ..errors import LockConflict, LockUnavailable, TaskReplaced, TaskSkipped
from ..policies import Policy
from ..protocol.claims import Parking
from ..protocol.entries import slot_of
from ..protocol.holders import Holder, successor_text
from ..protocol.log import get_logger
from ..verbs import NO_RESULT, Decision
from . import room
from .decisions import (
    CannotRun,
    Go,
    GoUnlocked,
    Park,
    PutOff,
    TurnedAway,
    Waits,
    longest_countdown,
)
from .ends import AlreadyDone, Deferred, Expired, Skipped, Waiting
from .locked import LockedTask
from .record import RUNS, Course, Ends, Fails, Record, Returns, Runs
from .refused import refused
from .settle import End

logger = get_logger()

#: A countdown is multiplied by a random factor up to this, so that not all come back at once.
SPREAD: Final = 1.25
#: Seconds until a message that could not be published again is given back to the broker, which
#: delivers it again at once: publishing may then fail again.
BEFORE_REJECTING: Final = 1.0
#: While the lock server is away, a task comes back at least so many seconds before it expires.
IN_TIME: Final = 1.0
#: Seconds until a message that only a newer release can read is delivered again.
BACK_AFTER: Final = 3.0


def carry_out(run: Record, decision: Decision) -> Course:
    """Do what was decided. Returns how the delivery goes on in Celery.

    Raises:
        Exception: whatever fails, such as the broker. The task then fails with that error.
    """
    if run.parks_as and not isinstance(decision, Waits | PutOff):
        # Perhaps only the answer got lost, and the task is in the room: it must not run from there.
        ends = not isinstance(decision, CannotRun) or run.facts.acks_failures
        run.call_off_copies(ends)
    return _DEEDS[type(decision)](run, decision)


def _go(run: Record, decision: Go) -> Course:
    if decision.waited_for is not None:
        run.facts.tell_conflict(Outcome.WAITED, decision.waited_for.holder)
    return RUNS


def _go_unlocked(run: Record, decision: GoUnlocked) -> Course:
    error = decision.because
    if error is not None:
        run.facts.tell(
            Outcome.RUN_UNLOCKED, "redislock: %s runs WITHOUT its lock: %s", run, error,
            reason=error.reason,
        )  # fmt: skip
    return Runs(End.UNLOCKED)


def _cannot_run(run: Record, decision: CannotRun) -> Course:
    return Fails(decision.error)


# -- it ends without a run --------------------------------------------------------------------


def _turn_away(run: Record, decision: TurnedAway) -> Course:
    outcome, holder, key = decision.outcome, decision.holder, run.facts.key
    if outcome in (Outcome.ALREADY_DONE, Outcome.RUNS_ELSEWHERE):
        run.facts.tell_conflict(outcome, holder)
        return Ends(AlreadyDone())
    if outcome is Outcome.REPLACED:
        assert holder is not None
        return end_replaced(run, holder)
    if decision.why:
        logger.warning("redislock: %s is skipped: %s", run, decision.why)
    # Note this before the result is stored: if it never is, a copy of the message runs.
    if outcome is not Outcome.RAISED or run.facts.acks_failures:
        run.note_end()
    run.count_turned_away(holder)
    run.facts.tell_conflict(outcome, holder)
    if outcome is Outcome.SKIPPED_WITH_RESULT:
        return Returns(decision.result)
    if outcome is Outcome.RAISED:
        return Fails(refused(LockConflict(key, holder)), End.TURNED_AWAY)
    return Ends(_store_end(run, TaskSkipped(key, holder)))


def end_replaced(run: Record, by: Holder) -> Returns | Ends:
    """End a task in favour of a newer run, with its policy's result if it has one."""
    run.facts.tell_conflict(Outcome.REPLACED, by)
    result = run.facts.policy.result_if_replaced
    if result is not NO_RESULT:
        course: Returns | Ends = Returns(result)
    else:
        course = Ends(_store_end(run, TaskReplaced(run.facts.key, by)))
    if not run.has_lock:
        run.note_end()
    return course


def publish_replaced(
    task: LockedTask, raw: dict[str, Any], request: Any, args: Any, kwargs: Any, by: Holder
) -> bool:
    """Publish a task that was replaced again, so that a worker ends it with its policy's result, as
    Celery ends tasks: its chain and its callbacks go on. False if it has no such result, or cannot
    be published.
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


def _store_end(run: Record, error: TaskSkipped) -> Skipped:
    if not run.facts.is_eager:
        store_skipped(run.facts.task, run.request, error)
    return Skipped(error)


# -- it is published again --------------------------------------------------------------------


def _put_off(run: Record, decision: PutOff) -> Course:
    """Publish the task again, to be run after a countdown; or end it, if it would expire before.

    A message that expires is dropped by RabbitMQ, and its task would have no result. With a broker
    that redelivers what is not acknowledged in time, the countdown is at most half of that time: a
    message that sleeps for longer is delivered twice, and each copy would be put off in turn.
    """
    facts, cause = run.facts, decision.cause
    if decision.comes_anew:
        run.give_up_kept()
    if decision.learned:
        run.learn(**decision.learned)
    longest = longest_countdown(facts.locks.redelivery.after)
    countdown = min(decision.countdown * random.uniform(1.0, SPREAD), longest)
    left = seconds_until(facts.raw.get("expires"))
    if cause is not None and left is not None and left > 2 * IN_TIME:
        countdown = min(countdown, left - IN_TIME)  # the server may answer any moment
    ahead = countdown if decision.is_alone and not run.delivery.redelivered else 0.0
    if left is not None and left < ahead:
        run.note_end()
        room.end_expired(facts.task, facts.claim.keys, run.request, facts.label)
        return Ends(Expired())
    _say_put_off(run, decision)
    header = run.next_header(outage=cause is not None)
    return _publish(facts.task, facts.raw, run.request, run.delivery, header, countdown, cause)


def give_back(task: LockedTask, raw: dict[str, Any], args: Any, kwargs: Any) -> Course:
    """Give a message that a newer release wrote back to its queue, as it came: a newer worker can
    read its header. Until that one comes, this is repeated.
    """
    request = Context(raw, args=args, kwargs=kwargs, called_directly=False)
    delivery = Delivery.take_from({**raw, KEY: None})
    if delivery.fanout and delivery.queue is None:
        logger.warning("redislock: %s[%s] is left to newer workers", task.name, request.id)
        return Ends(AlreadyDone())  # each worker of its exchange has a copy
    longest = longest_countdown(task.app_locks.redelivery.after)
    countdown = min(BACK_AFTER * random.uniform(1.0, SPREAD), longest)
    left = seconds_until(raw.get("expires"))
    if left is not None:  # RabbitMQ would drop it; Celery ends it with a result
        countdown = max(min(countdown, left - IN_TIME), 0.0)
    logger.info(
        "redislock: %s[%s] goes back to its queue for %.1f s: a newer release sent it",
        task.name, request.id, countdown,
    )  # fmt: skip
    return _publish(task, raw, request, delivery, {KEY: raw[KEY]}, countdown)


def _say_put_off(run: Record, decision: PutOff) -> None:
    outcome, countdown, cause = decision.outcome, decision.countdown, decision.cause
    if cause is not None:
        run.facts.tell(
            Outcome.UNAVAILABLE, "redislock: %s is deferred for %.1f s: %s", run, countdown, cause,
            logged={"reason": cause.reason}, countdown=countdown,
        )  # fmt: skip
    elif outcome is not None:
        run.facts.tell_conflict(outcome, decision.holder, countdown)


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


def parking_of(run: Record, question: Park) -> Parking:
    """The data that put the task into the waiting room."""
    facts, delivery, request = run.facts, run.delivery, run.request
    task, label = facts.task, facts.label
    header = delivery.parked_header(broker_of(task.app), label, _has_result(facts.policy))
    options = message_options(facts.raw, request, header, delivery)
    entry = Entry.of(task, request.args, request.kwargs, options, delivery.content_type)
    grace, is_newest = question.grace, question.newest and not facts.began
    # A task that began is older than the newest: it waits beside its task's pending slot.
    member = facts.claim.member or (slot_of(task.name) if is_newest else facts.claim.entry_id)
    return Parking(
        entry.sealed(task.app, facts.key).dump(),
        member=member,
        arrived=delivery.arrived,
        received=delivery.received,
        receipt=delivery.receipt,
        limit=question.limit,
        give_up=question.give_up,
        in_front=delivery.parked or grace is not None or (question.newest and facts.began),
        replace=(successor_text(task.name, facts.claim.task_id), grace),
        quiet=question.quiet,
    )


def _wait_in_room(run: Record, decision: Waits) -> Course:
    facts = run.facts
    if decision.outcome is Outcome.DEBOUNCED:
        facts.tell(
            Outcome.DEBOUNCED, "redislock: %s is debounced: it waits under %s until no newer call"
            " has come for a while", run, facts.key, details={}, holder=None,
        )  # fmt: skip
    else:
        facts.tell_conflict(decision.outcome, decision.holder)
    return Ends(Waiting(), End.PUT_OFF)


_DEEDS: Final[dict[type[Decision], Callable[[Record, Any], Course]]] = {
    Go: _go,
    GoUnlocked: _go_unlocked,
    CannotRun: _cannot_run,
    TurnedAway: _turn_away,
    PutOff: _put_off,
    Waits: _wait_in_room,
}
