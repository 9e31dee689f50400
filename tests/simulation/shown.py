"""What operators are told and shown: each line of the log is so, what ends without a run is named,
and each look at the locks shows what there is.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Iterator

from .course import FINAL, OFFER_FOR, Call, Course, Look, Run
from .properties import (
    TICK,
    UNREACHABLE,
    _free_after,
    _happened,
    _options,
    _outage,
    _was_broken,
    prop,
)


def _lines(course: Course, *parts: str) -> Iterator[tuple[float, logging.LogRecord]]:
    """The lines of the log with one of these parts, and when they were logged."""
    for at, record in course.logged:
        if any(part in record.getMessage() for part in parts):
            yield at, record


# -- what is said -----------------------------------------------------------------------------


@prop
def no_bug_is_logged(course: Course) -> None:
    """contributing.md: errors of ours are contained, and logged as unexpected."""
    for at, record in course.logged:
        text = record.getMessage()
        if record.exc_info or "unexpected error" in text:
            error = record.exc_info[1] if record.exc_info else None
            if _happened(course, "broker away") and "simulated" in repr(error):
                continue
            course.failed("no bug is logged", f"{at:.3f} s: {text} {error!r}")


@prop
def a_loss_is_one(course: Course) -> None:
    """guarantees.md, "Lost locks": nobody is told of a loss that was none. options.md, "The Redis
    server": what is held is still extended on a full one. guarantees.md, "Code that holds the GIL":
    "In prefork the main process keeps the lock alive", so also that of a child that is stopped. But
    "Clocks": "Expiry uses the *server's* wall clock".
    """
    if _happened(course, *UNREACHABLE, "server's clock") or _was_broken(course):
        return
    for at, record in _lines(course, "LOST"):
        course.failed("a loss is one", f"{at:.3f} s: {record.getMessage()}")


@prop
def a_short_outage_loses_nothing(course: Course) -> None:
    """guarantees.md, "Lost locks": "the server does not answer | after `lock_ttl` without success".
    After an empty restart a lock is lost only if somebody may have had it in between.
    """
    kinds = ("restart", "restart empty", "stop server", "read only")
    others = {kind for _, _, kind in course.happened} - {
        *kinds,
        "full",
        "kill child",
        "lose broker",
    }
    if others or _was_broken(course):
        return
    away = [(begin, end) for begin, end, kind in course.happened if kind in kinds]
    begins = [run.began for run in course.runs] + [
        at for each in course.taken.values() for at in each
    ]
    for at, record in _lines(course, "LOST"):
        before = [each for each in away if each[0] < at]
        first = min((begin for begin, _ in before), default=at)
        silent = max((end for _, end in before), default=at) - first
        may_have_been_had = any(first < each < at for each in begins)
        # What has ended does not take its lock again.
        may_have_been_had |= any(first < (run.ended or at) < at for run in course.runs)
        may_have_been_had &= _happened(course, "restart empty")
        if not may_have_been_had and silent + 0.3 * course.plan.ttl + 1.0 < course.plan.ttl:
            course.failed("a short outage", f"{at:.3f} s: {record.getMessage()}")


@prop
def the_server_is_silent_only_where_it_is_said(course: Course) -> None:
    """monitoring.md, "Logs": a task "is deferred ... because Redis is away". A full one refuses new
    locks; what is held is given back.
    """
    lies = ["could not release", "could not extend"]
    if not _happened(course, *UNREACHABLE):
        lies += [] if _happened(course, "full") or course.plan.also & WHAT_IS_REFUSED else AWAY
        for at, record in _lines(course, *lies):
            course.failed("silence", f"{at:.3f} s: {record.getMessage()}")


#: What is said where the server does not answer; and what else makes it so.
AWAY = ["is deferred for", "no new locks for"]
WHAT_IS_REFUSED = {"large messages"}


#: Seconds for which the package tries to acquire a lock of a long ttl.
TRIED = 2.0


@prop
def a_blink_of_the_server_defers_nothing(course: Course) -> None:
    """options.md, "Connections": "Acquire and release are tried for a third of it, at most 2 s".
    After a restart nobody takes a new lock for a third of the ttl: so long they are not tried, if
    that is more.
    """
    kinds = {"stop server"} | ({"restart"} if course.plan.ttl / 3 <= TRIED else set())
    blinks = all(kind in kinds and end - begin < 0.2 for begin, end, kind in course.happened)
    if blinks and course.plan.ttl >= 6.0 and not course.plan.also & WHAT_IS_REFUSED:
        for at, record in _lines(course, "is deferred for"):
            course.failed("a blink", f"{at:.3f} s: {record.getMessage()}")


@prop
def what_no_worker_has_taken_is_so(course: Course) -> None:
    """guarantees.md, "A task that no worker takes": a minute after it was published, and again and
    again; it ends after `redislock_offer_for`.
    """
    for at, record in course.logged:
        if record.redislock_outcome != "not taken":
            continue
        taken = course.taken.get(record.redislock_task_id, ())
        taken = [when for when in taken if when < at - TICK]  # its room was looked at before
        if taken and taken[-1] > at - OFFER_FOR + 1.0 and not _outage(course):
            ago = f"{at - taken[-1]:.2f} s after one took it"
            course.failed("not taken", f"{at:.3f} s: {record.getMessage()}: {ago}")


@prop
def what_ends_without_a_run_is_named(course: Course) -> None:
    """monitoring.md, "Logs": an ERROR, or a WARNING, for each task that "ends as expired because
    Redis is away"; operations.md, "Suspend for a while": "the log says who suspended it".
    """
    named = {
        record.redislock_task_id for _, record in _lines(course, "ends as expired without a run")
    }
    for call in course.calls.values():
        ended = [at for at, _, result in course.states.get(call.task_id, []) if _is_expiry(result)]
        if ended and call.task_id not in named and (why := _why_it_expired(course, call)):
            course.failed("named", f"{call.name} expired at {ended[0]:.3f} s, {why}")


def _is_expiry(result: object) -> bool:
    return isinstance(result, dict) and result.get("exc_message") in (("expired",), ["expired"])


def _may_be_reserved(course: Course, call: Call, at: float) -> bool:
    """Whether the lock may be reserved for this call's message at that time."""
    states = course.states.get(call.task_id, [])
    has_ended = any(when < at and state in FINAL for when, state, _ in states)
    is_reserved = _options(course, call) & {"queued", "both", "publish"}
    return bool(is_reserved) and call.sent < at and not has_ended


def _why_it_expired(course: Course, call: Call) -> str:
    """What kept the task in a room until it expired, if operators must know of it; else ""."""
    parked = [at for at, _, task_id in course.parked if task_id == call.task_id]
    expired = call.sent + call.options.get("expires", 0.0)
    taken = course.taken.get(call.task_id, ())
    if not parked or any(parked[-1] < at for at in taken) or parked[-1] > expired:
        return ""
    if call.spec.policy == "debounce" and len(parked) == 1:
        return ""  # policies.md: it waits until no newer one has come, whoever has the lock
    for begin, end, kind in course.happened:
        if kind == "restart" and begin + 2.0 < expired < end:
            return "in an outage"
    held = [run for run in course.runs if run.key == call.key and run.took < parked[-1] + TICK]
    if any(_free_after(course, run) > parked[-1] - TICK for run in held) or any(
        _may_be_reserved(course, each, parked[-1])
        for each in course.calls.values()
        if each.key == call.key and each is not call
    ):
        return ""  # it waited for a run or a message, and was told of nothing else that keeps it
    for each in course.suspended:
        keeps = each.keeps(call.spec.name, call.key) and each.began + TICK < parked[-1]
        if keeps and expired < each.until:
            return f"under {each}"
    return ""


@prop
def what_expires_does_so_in_its_time(course: Course) -> None:
    """deliveries.md: "A task that would be put off past its `expires` ends at once"; no other ends
    before that.
    """
    if course.happened:
        return
    for call in course.calls.values():
        defers = call.spec.policy.startswith("defer") or call.spec.option in ("late", "held")
        defers |= "size" in call.options
        early = 10.0 if defers or call.does else TICK
        for at, _, result in course.states.get(call.task_id, []):
            if _is_expiry(result) and at < call.sent + call.options.get("expires", 0.0) - early:
                course.failed(
                    "expires", f"{call.name} expires {at - call.sent:.2f} s after it was sent"
                )


@prop
def what_a_restart_forgot_is_named(course: Course) -> None:
    """policies.md, "Durability": "The worker that parked it then names it in the log"."""
    kinds = {kind for _, _, kind in course.happened}
    if kinds != {"restart empty"}:
        return
    first = min(begin for begin, _, _ in course.happened)
    text = " ".join(record.getMessage() for _, record in _lines(course, "has forgotten"))
    for call in course.calls.values():
        parked = [at for at, _, task_id in course.parked if task_id == call.task_id]
        last = max([0.0, *course.published(call.task_id), *course.taken.get(call.task_id, ())])
        is_there = parked and last < parked[-1] < first - TICK
        if is_there and course.end_of(call) is None and call.task_id not in text:
            course.failed("named", f"{call.name}, which was forgotten, is not named")


# -- what is shown ----------------------------------------------------------------------------

#: Seconds by which what a look shows may be older or newer than what witnesses saw.
SHOWN_LATE = 1.0


@prop
def each_run_is_one_row(course: Course) -> None:
    """operations.md, the states: "A run whose lock came back is `held`", and in no other row."""
    for look in course.looks:
        runs = [each for each in look.rows if each.holder and each.state in GOING_ON]
        fences = collections.Counter((each.name, each.holder.fence) for each in runs)
        for (name, fence), count in fences.items():
            if fence and count > 1:
                course.failed("one row", f"{count} rows of {name}, {fence}, at {look.ended:.3f} s")


GOING_ON = ("held", "silent", "without its lock")


@prop
def what_is_shown_is_so(course: Course) -> None:
    """operations.md, the states: "a run holds it", "nobody holds it", and so on."""
    if course.happened or _was_broken(course):
        return
    for look in course.looks:
        for row in look.rows:
            inside = [run for run in course.runs if run.key == row.name and _spans(run, look)]
            holder = row.holder.task_id if row.holder is not None else None
            if row.state in ("held", "silent") and holder in course.calls:
                ran = [run for run in course.runs if run.task_id == holder]
                if (
                    ran
                    and all(_is_over(run, look) for run in ran)
                    and not course.killed.get(holder)
                ):
                    course.failed("shown", f"{row.name} is {row.state} by {course.named(holder)}")
            if row.state in ("free", "not taken", "suspended") and inside and course.limit == 1:
                who = course.named(inside[0].task_id)
                course.failed(
                    "shown", f"{row.name} is {row.state}, and {who} runs at {look.ended:.3f} s"
                )
        fences = {row.holder.fence for row in look.rows if row.holder and row.state in GOING_ON}
        for run in course.runs:
            if run.fence and _spans(run, look) and run.fence not in fences:
                who = course.named(run.task_id)
                course.failed("shown", f"{who}, which runs, is not shown at {look.ended:.3f} s")


def _spans(run: Run, look: Look) -> bool:
    """Whether the run had its lock all the time of a look."""
    goes_on = run.ended is None or run.ended > look.ended + SHOWN_LATE
    return (
        bool(run.lease) and goes_on and run.began < look.began - SHOWN_LATE and run.process.is_alive
    )


def _is_over(run: Run, look: Look) -> bool:
    return run.ended is not None and run.ended < look.began - SHOWN_LATE
