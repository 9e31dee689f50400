"""More of what must be true of a course: of duplicates, retries, bursts, breaks, deaths, restarts.
See `properties`.
"""

from __future__ import annotations

import math
from itertools import pairwise

from . import tasks
from .course import Awaited, Call, Course
from .properties import (
    LATE,
    OFFERED,
    TICK,
    _deaths,
    _free_after,
    _happened,
    _has_another_key,
    _options,
    _outage,
    _was_broken,
    prop,
)
from .tasks import MAX_WAIT


@prop
def a_dead_child_leaves_no_lock(course: Course) -> None:
    """guarantees.md, "How a run ends": "the worker frees it milliseconds after the process is gone,
    also if it was kept for this attempt".
    """
    for name, key in course.left_by_dead if not _outage(course) else ():
        course.failed("freed after a death", f"the lock of {name}, {key}")


@prop
def who_waits_in_a_room_has_not_failed(course: Course) -> None:
    """guarantees.md, "How a run ends": a child that dies once its task is parked loses nothing."""
    if _outage(course):
        return
    for at, task_id in course.deaths:
        taken = [when for when in course.taken.get(task_id, ()) if when < at]
        parked = [when for when, _, parked in course.parked if parked == task_id and when < at]
        if not taken or not parked or parked[-1] < taken[-1] or course.killed[task_id] > 1:
            continue
        for when, _, result in course.states.get(task_id, []):
            lost = isinstance(result, dict) and result.get("exc_type") == "WorkerLostError"
            if when > at and lost:
                course.failed("has not failed", f"{course.named(task_id)} waits at {when:.3f} s")


@prop
def whose_lock_is_broken_is_told(course: Course) -> None:
    """options.md: "The holder is told who broke it, and does not take it again"; guarantees.md: at
    the next extension, within a third of the ttl.
    """
    if _outage(course) or _happened(course, "stop child"):
        return
    for at, fences in course.broken:
        for run in course.runs:
            if run.fence not in fences or not run.process.is_alive or run.began > at:
                continue
            ended = course.now if run.ended is None else run.ended
            if ended > at + course.plan.ttl / 3 + 1.0 and not run.lease.is_lost:
                course.failed("told of a break", f"{course.named(run.task_id)} in {run.key}")


@prop
def nobody_begins_during_the_hold_off(course: Course) -> None:
    """guarantees.md, "An empty restart": "every process that notices the restart holds off: it
    takes no new lock". With a deploy, for a third of the shorter ttl: the newcomer's may be that.
    """
    ttl = min([course.plan.ttl, *(each.ttl for each in course.plan.deployed)])
    if _happened(course, "stop child", "late", "lose replies"):
        return
    for began, up, kind in course.happened:
        for run in course.runs if kind == "restart empty" else ():
            knew = run.process.state.get("met the lock server", math.inf) < began
            if knew and run.lease and up + 2 * TICK < run.began < up + ttl / 3 - TICK:
                course.failed("hold-off", f"{course.named(run.task_id)} begins in {run.key}")


@prop
def who_waits_outside_of_tasks_gets_the_lock(course: Course) -> None:
    """options.md, "AsyncRedisLock": "the others wait in order"; "A cancelled `acquire` leaves
    nothing behind". Tasks that were published come first.
    """
    if course.happened or _deaths(course):
        return
    for awaited in course.awaited:
        if any(each.keeps(None, awaited.key) for each in course.suspended):
            continue
        until = course.now if awaited.until is None else awaited.until
        free = awaited.since
        for run in course.runs:
            if run.key == awaited.key and run.began < until:
                free = max(free, _free_after(course, run))
        late = 1.0 if awaited.key[1:] else OFFERED
        if until > free + late:
            course.failed("outside", f"the lock {awaited.key} comes {until - free:.2f} s late")


@prop
def who_is_turned_away_met_a_lock(course: Course) -> None:
    """policies.md: "what happens to a task that finds its lock held": held, kept, or waited for."""
    if course.happened or course.operated:
        return
    for call in course.calls.values():
        if call.spec.policy not in ("skip", "skip_result", "raise") or call.does:
            continue
        ends = course.ended_at(call)
        ran = any(run.task_id == call.task_id for run in course.runs)
        if not ends or ran or call.task_id not in course.taken:
            continue
        came, ended = course.taken[call.task_id][0], ends[0]
        keeps = [each for each in course.suspended if each.keeps(call.spec.name, call.key)]
        if any(each.first < ended and came < each.last for each in keeps):
            continue
        if not any(
            _may_be_met(course, other, call, came, ended) for other in course.calls.values()
        ):
            outside = [each for each in course.awaited if each.key == call.key]
            if not any(
                each.since < ended and _outside_until(course, each) > came for each in outside
            ):
                course.failed(
                    "met a lock", f"{call.name} is turned away at {ended:.3f} s by nothing"
                )


def _outside_until(course: Course, awaited: Awaited) -> float:
    """Until when what waits outside of tasks may have the lock."""
    runs = [
        run for run in course.runs if run.key == awaited.key and run.task_id not in course.calls
    ]
    return max(
        [
            course.now if awaited.until is None else awaited.until,
            *(run.ended or course.now for run in runs),
        ]
    )


def _may_be_met(course: Course, other: Call, call: Call, came: float, ended: float) -> bool:
    """Whether another call may have had the lock between these times, or come first."""
    if other is call or other.key != call.key or other.sent > ended:
        return False
    over = course.ended_at(other)
    runs = [run for run in course.runs if run.task_id == other.task_id]
    last = max([*over[:1], *(_free_after(course, run) for run in runs)], default=course.now)
    if last < came - TICK:
        return False
    if runs and runs[0].began < ended + TICK:
        return True
    keeps = [each for each in course.suspended if each.keeps(other.spec.name, call.key)]
    is_suspended = any(each.began < came - TICK and ended < each.until for each in keeps)
    return not is_suspended or other.spec.option in ("both", "publish", "queued")


def _may_begin_again(course: Course, call: Call) -> bool:
    """Whether it replaced itself; or died after its body, or by Celery's word; or what it follows
    died: Celery ends all of a chain then.
    """
    if call.does[:1] == ["replace"]:
        return True
    died = _errors_of(course, call) & {"WorkerLostError", "TimeLimitExceeded"}
    if call.task_id in course.killed and (died or _began_before_its_end(course, call)):
        return True
    return any(_is_dead(course, course.calls[each]) for each in call.after if each in course.calls)


def _began_before_its_end(course: Course, call: Call) -> bool:
    end = course.ended_at(call)[0]
    return any(run.task_id == call.task_id and run.began <= end for run in course.runs)


def _errors_of(course: Course, call: Call) -> set[str]:
    return {
        str(result.get("exc_type")) if isinstance(result, dict) else ""
        for _, _, result in course.states.get(call.task_id, [])
    }


def _is_dead(course: Course, call: Call) -> bool:
    """Whether it may have failed when what follows it had been sent: it died, or its soft time
    limit came.
    """
    is_over = "SoftTimeLimitExceeded" in _errors_of(course, call)
    return (
        call.task_id in course.killed
        or is_over
        or any(_is_dead(course, course.calls[each]) for each in call.after if each in course.calls)
    )


def _is_twice(course: Course, call: Call) -> bool:
    """guarantees.md: "If the broker connection breaks within a second of a message's arrival, its
    task may run twice", and send what follows it twice.
    """
    lost = [at for at, _, kind in course.happened if kind == "lose broker"]
    met = course.met.get(call.task_id, ())
    return any(at <= broke <= at + 1.0 + TICK for at in met for broke in lost) or any(
        _is_twice(course, course.calls[each]) for each in call.after if each in course.calls
    )


@prop
def what_has_ended_does_not_run(course: Course) -> None:
    """guarantees.md, "Retries and redeliveries": "A finished attempt is remembered"."""
    if _outage(course) or _happened(course, "double"):
        return
    for call in course.calls.values():
        if "queued" in _options(course, call) and course.plan.visibility is not None:
            continue  # options.md: nothing is locked while it runs, so copies run
        if _has_another_key(course, call):
            continue
        if "expires" in call.options and course.came_again(call.task_id):
            continue  # Celery looks at that as a message comes: one may wait in the pool
        ends = course.ended_at(call)
        if not ends or _is_twice(course, call) or _may_begin_again(course, call):
            continue
        for run in course.runs:
            if run.task_id == call.task_id and run.began > ends[0] + TICK:
                course.failed(
                    "ended", f"{call.name} begins {run.began - ends[0]:.2f} s after its end"
                )


@prop
def unique_from_when_it_is_sent(course: Course) -> None:
    """options.md, "Unique from when it is sent": until it begins, nothing else is sent."""
    if _outage(course) or _was_broken(course) or course.limit > 1:
        return
    if any(each.policy == "replace" for each in course.plan.specs):
        return  # a newer call may have taken its place
    for i, (at, key, task_id) in enumerate(course.reserved):
        call = course.calls.get(task_id)
        if call is None:
            continue
        over = [run.began for run in course.runs if run.task_id == task_id and run.began >= at]
        over += [when for when, _, _ in course.states.get(task_id, ()) if when >= at]
        # With "queued" the lock is given back a moment before the body begins.
        until = min(over, default=course.now) - TICK * ("queued" in _options(course, call))
        for again, its_key, other_id in course.reserved[i + 1 :]:
            other = course.calls.get(other_id)
            is_same = other is not None and other.spec == call.spec and other_id != task_id
            if other is not None and other.is_of_canvas:
                continue  # "So do duplicates in a canvas, whose id something waits for"
            if is_same and its_key == key and again < until:
                course.failed("unique", f"{other_id} is sent beside {call.name}")


@prop
def no_more_may_wait_than_the_limit(course: Course) -> None:
    """options.md: "`then` acts on a task that finds `limit` tasks waiting"."""
    if course.happened:
        return
    for task_id, count in course.waiting.items():
        call = course.calls.get(task_id)
        is_limited = call is not None and call.spec.policy == "queue_limited" and not call.does
        if is_limited and count > tasks.LIMIT:
            course.failed("limit", f"{course.named(task_id)} waits as number {count}")


@prop
def a_kept_retry_takes_its_lock(course: Course) -> None:
    """guarantees.md, "How a run ends": "the next attempt takes it over; if none comes, `lock_ttl`
    after the countdown"; operations.md: it goes on under a suspension.
    """
    if course.happened or _deaths(course) or course.operated:
        return
    for call in course.calls.values():
        what = call.does[0] if call.does else ""
        keeps = call.spec.option in ("held", "both", "publish")
        if (
            not (what == "pause and retry" or (what == "retry" and keeps))
            or call.spec.policy == "none"
        ):
            continue
        runs = [run for run in course.runs if run.task_id == call.task_id]
        if not runs or runs[0].ended is None or runs[0].lease.is_lost:
            continue
        comes = course.taken_retries.get(call.task_id, ())
        begins = runs[1].began if len(runs) > 1 else course.now
        kept_until = runs[0].ended + course.plan.ttl + call.does[1] - 1.0
        if comes and comes[0] < kept_until and begins > max(comes[0], runs[0].ended) + 1.5:
            late = begins - max(comes[0], runs[0].ended)
            course.failed("kept retry", f"the retry of {call.name} begins {late:.2f} s late")


@prop
def a_retry_replaces_nothing(course: Course) -> None:
    """options.md, `Replace`: "A retry replaces nothing"."""
    for at, newer, _ in _told_to_end(course):
        runs = [run for run in course.runs if run.task_id == newer.task_id]
        if any(run.ended is not None and run.ended < at for run in runs):
            course.failed("a retry replaces", f"{newer.name}, at {at:.3f} s")


def _told_to_end(course: Course) -> list[tuple[float, Call, str]]:
    """When runs were told to end, for which call, and the lock's key."""
    return [
        (at, course.calls[record.redislock_holder_task_id], record.redislock_key)
        for at, record in course.logged
        if record.redislock_outcome == "to be replaced"
        and record.redislock_holder_task_id in course.calls
    ]


@prop
def what_runs_goes_on_under_a_suspension(course: Course) -> None:
    """operations.md, "Suspend for a while": "What runs goes on": who is suspended ends no run."""
    for at, newer, _ in _told_to_end(course):
        came = course.taken[newer.task_id][0]
        for each in course.suspended:
            keeps = each.keeps(newer.spec.name, newer.key)
            if keeps and each.began + 2 * TICK < came and at < each.until and not _outage(course):
                course.failed(
                    "suspended", f"{newer.name} ends a run, {at - each.began:.2f} s after {each}"
                )


@prop
def deferrals_grow_and_end(course: Course) -> None:
    """options.md, `Defer`: after `delay`, multiplied by `backoff` each time, at most `max_delay`;
    "`then` acts at the first try after `max_wait` seconds". Each copy has its own tries.
    """
    if course.happened or _deaths(course):
        return
    for call in course.calls.values():
        taken = course.taken.get(call.task_id, [])
        if call.does or call.options or not taken or course.came_again(call.task_id):
            continue
        for i, (one, other) in enumerate(pairwise(taken)):
            least = min(tasks.DELAY * 2**i, 8.0) - TICK
            if call.spec.policy == "defer" and other - one < least:
                course.failed("defers", f"{call.name} comes after {other - one:.2f} s, {i + 1}.")
        tries = [at for at in taken if at > taken[0] + MAX_WAIT + TICK]
        if call.spec.policy == "defer_bounded" and len(tries) > 1:
            course.failed("defers", f"{call.name} tries again after its max_wait")


@prop
def a_burst_has_an_end(course: Course) -> None:
    """options.md, `Debounce`: the last one runs "`max_wait` after the first", in any case."""
    if course.happened or _deaths(course) or course.operated:
        return
    for call in course.calls.values():
        if call.spec.policy != "debounce" or call.does or call.task_id not in course.taken:
            continue
        if "expires" in call.options:
            continue  # it may end as expired
        if any(other.key == call.key and other.keeps_a_lock for other in course.calls.values()):
            continue  # nobody runs, and yet the lock is not free
        came = course.taken[call.task_id][0]
        due = came + 3 * tasks.QUIET
        is_busy = any(
            run.key == call.key and run.began < due + LATE and _free_after(course, run) > due
            for run in course.runs
        )
        if is_busy or any(each.keeps(call.spec.name, call.key) for each in course.suspended):
            continue
        slot = [
            each for each in course.calls.values() if (each.spec, each.key) == (call.spec, call.key)
        ]
        sent = [at for each in slot for at in course.published(each.task_id)[1:]]
        ends = any(at < due + LATE for each in slot for at in _ends_of(course, each, came))
        if not ends and not any(came < at < due + LATE for at in sent):
            course.failed("quiet", f"nothing is sent {3 * tasks.QUIET} s after {call.name} came")


def _ends_of(course: Course, call: Call, since: float) -> list[float]:
    states = course.states.get(call.task_id, [])
    return [at for at, state, _ in states if state == "SUCCESS" and at > since]


@prop
def newcomers_do_not_overtake(course: Course) -> None:
    """options.md, `Queue`: a "release publishes the first task, for which the lock waits for 5 s",
    guarantees.md: "1 s if others wait in their slots". "Newcomers ... do not overtake it": neither
    does who sends.
    """
    if course.happened or course.operated or course.limit > 1:
        return
    for at, key, sent_id in course.reserved:
        for call in course.calls.values():
            if (
                call.key != key
                or call.task_id == sent_id
                or not call.spec.policy.startswith("queue")
            ):
                continue
            if _is_awaited(course, call, at):
                who = course.named(sent_id)
                course.failed("overtakes", f"{who} has the lock reserved before {call.name}")


def _is_awaited(course: Course, call: Call, at: float) -> bool:
    """Whether the lock is kept for this task then, which was published from a room just now."""
    parked = [when for when, _, task_id in course.parked if task_id == call.task_id and when < at]
    keeps = any(each.keeps(call.spec.name, call.key) for each in course.suspended)
    if not parked or call.does or keeps:
        return False
    sent = [when for when in course.published(call.task_id) if parked[-1] < when < at]
    begins = [run.began for run in course.runs if run.task_id == call.task_id]
    ends = course.ended_at(call)
    gives_up = course.taken[call.task_id][0] + MAX_WAIT - LATE
    is_over = call.spec.policy == "queue_bounded" and at > gives_up
    goes_on = min([*begins, *ends, course.now]) > at
    return bool(sent) and sent[0] > at - 1.0 + TICK and goes_on and not is_over


@prop
def the_time_of_a_wait_goes_on(course: Course) -> None:
    """operations.md, "Suspend for a while": "`max_wait`, `timeout` and `limit` count"."""
    if course.happened or _deaths(course):
        return
    for call in course.calls.values():
        parked = [at for at, _, task_id in course.parked if task_id == call.task_id]
        if call.spec.policy != "wait_bounded" or not parked or call.does or call.options:
            continue
        due = course.taken[call.task_id][0] + tasks.TIMEOUT
        is_suspended = any(
            each.keeps(call.spec.name, call.key)
            and each.began < parked[0] < due - TICK
            and due + LATE < each.until
            for each in course.suspended
        )
        sent = [at for at in course.published(call.task_id) if due - LATE < at < due + LATE]
        begins = [run.began for run in course.runs if run.task_id == call.task_id]
        ends = course.ended_at(call)
        if is_suspended and not sent and min([*begins, *ends, course.now]) > due + LATE:
            course.failed("timeout", f"{call.name} is not published at {due:.3f} s")
