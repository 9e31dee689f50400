"""What must be true of a course. Each property names the line of the documents that it checks, and
judges what the witnesses saw. None of them knows how the package does it.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable

from . import tasks
from .baton import EPOCH
from .course import FINAL, LIMIT_FALLS_EVERY, Call, Course, Run, Suspended
from .tasks import MAX_WAIT, Spec, Version

Property = Callable[[Course], None]
_all: list[Property] = []


def prop(check: Property) -> Property:
    """A property: it is checked of each course."""
    _all.append(check)
    return check


def of_one_release(check: Property) -> Property:
    """A property of courses in which no other release is deployed."""
    return prop(lambda course: None if course.plan.deployed else check(course))


def judge(course: Course) -> None:
    """Check all properties."""
    for text in course.crashes:
        course.failed(
            "crashed",
            " / ".join(each.strip() for each in text.splitlines()[-9:] if "^^" not in each),
        )
    for check in _all:
        check(course)


# -- what is allowed for ----------------------------------------------------------------------


def _happened(course: Course, *kinds: str) -> bool:
    return any(kind in kinds for _, _, kind in course.happened)


#: The lock server could not be asked for a while, or forgot.
UNREACHABLE = (
    "lose requests", "lose replies", "late", "cut", "restart", "restart empty", "read only",
    "stop server", "fail over", "no replica", "late replica",
)  # fmt: skip
#: The same; or it took no new locks.
OUTAGES = ("full", *UNREACHABLE)


#: A worker ended, with all that it remembered.
WORKER_ENDS = ("kill worker", "shut down", "shut down cold", "deploy")


def _outage(course: Course) -> bool:
    return _happened(course, *OUTAGES)


def _was_broken(course: Course) -> bool:
    return any(what == "break" for _, what, _ in course.operated)


def _clocks(course: Course) -> bool:
    """guarantees.md, "Clocks": "Expiry uses the *server's* wall clock"; "`max_wait` compares the
    workers' clocks".
    """
    return _happened(course, "server's clock", "worker's clock")


def _specs(course: Course) -> list[Spec]:
    """What each release makes of the tasks."""
    return [each.spec for each in (*course.plan.tasks, *course.plan.deployed)]


def _deaths(course: Course) -> bool:
    return _happened(course, "kill child", "stop child", *WORKER_ENDS) or any(
        each.option in ("soft", "hard") or each.policy == "replace" for each in _specs(course)
    )


# -- locks ------------------------------------------------------------------------------------


@prop
def never_two_inside(course: Course) -> None:
    """guarantees.md: "One holder for each key on one Redis server"; "An empty restart"; "Failover";
    "A holder that lost its lock is told".
    """
    forgets = _happened(course, "restart empty", "server's clock")
    for olders, newer in course.overlaps:
        broken = [at for at, what, key in course.operated if what == "break" and key == newer.key]
        forgotten = [each for each in (*olders, newer) if _is_forgotten(course, each)]
        is_documented = (
            forgets
            or len(olders) + 1 - len(forgotten) <= course.limit
            or any(at <= newer.began + 1.0 for at in broken)
        )
        who = [course.named(each.task_id) for each in (*olders, newer)]
        told = [each for each in olders if _is_told_in_time(course, each, newer)]
        if not is_documented:
            course.failed("never two inside", f"{', '.join(who)} in {newer.key}")
        elif len(told) <= len(olders) - course.limit:
            course.failed("told in time", f"{', '.join(who)} in {newer.key}")


def _is_forgotten(course: Course, run: Run) -> bool:
    """guarantees.md, "Failover": "A new lock may be missing on the promoted replica"; but not what
    the only replica has confirmed.
    """
    return not course.plan.replicas and any(
        since <= run.began and run.took <= until for since, until in course.forgotten
    )


def _is_told_in_time(course: Course, older: Run, newer: Run) -> bool:
    is_held_up = _happened(course, "stop child") or _outage(course)
    ended = course.now if older.ended is None else older.ended
    within = course.ttl if is_held_up else course.ttl / 3
    is_short = ended - newer.began <= within + 1.0
    return older.lease.is_lost or is_short or not older.process.is_alive


@prop
def what_replicas_do_not_confirm_does_not_run(course: Course) -> None:
    """servers.md, "What a failover forgets": "If none has within 0.1 s, the lock is given back"."""
    for run in course.ran_unconfirmed:
        course.failed("is confirmed", f"{course.named(run.task_id)} in {run.key}")


@prop
def fences_rise(course: Course) -> None:
    """guarantees.md: "Each acquisition has a higher fence, within limits": the counter and the
    server's clock keep it from falling, if not both are lost.
    """
    if course.limit > 1 or (
        _happened(course, "restart empty", "fail over") and _happened(course, "server's clock")
    ):
        return
    last: dict[str, Run] = {}
    for run in course.runs:
        if not run.fence:
            continue
        before = last.get(run.lock)
        is_after = before is None or (before.ended is not None and before.ended <= run.began)
        if before is not None and is_after and run.fence <= before.fence:
            same = run.task_id == before.task_id
            course.failed("fences rise", f"{run.fence} after {before.fence} in {run.lock} ({same})")
        last[run.lock] = run


@prop
def nothing_is_left(course: Course) -> None:
    """guarantees.md: "No lock without an expiry"; deliveries.md: each end settles what it holds;
    options.md: a reservation of a message that was lost lasts for `lock_queued_ttl`.
    """
    for key in sorted(course.server.look.keys("*")):
        kind = key.partition("}:")[2].partition(":")[0] or key.partition(":")[2].partition(":")[0]
        if kind in STAYS:
            continue
        now = (EPOCH + course.now + course.server.clock.step) * 1000
        if kind == "waiters" and not course.server.look.zcount(key, now, "+inf"):
            continue  # redis.md: "and those that wait no more, whose requests may come late"
        if kind == "rooms" and _is_of_another_limit(course, key):
            continue  # the look that is due removes it
        if not course.all_ended() and kind in (*OF_A_ROOM, "lock", "lock2", "waiters"):
            continue  # a worker that was killed has lost calls, which may be reserved
        if kind.startswith("lock") and _is_reserved_in_vain(course, key):
            continue
        left = course.server.look.pttl(key)
        course.failed("nothing is left", f"{key}, for {left} ms")


def _is_of_another_limit(course: Course, key: str) -> bool:
    """Whether a room is listed by somebody for whom its lock has another limit than for its tasks:
    of another release, or of another time; or a `RedisLock`, "which takes the first slot".
    """
    limits = {each.partition("|")[0] for each in course.server.look.zrange(key, 0, -1)}
    is_known = course.plan.deployed or course.limit_falls
    return bool(is_known) or (course.limit > 1 and limits == {"1"})


def _is_reserved_in_vain(course: Course, key: str) -> bool:
    """Whether the end of what is reserved may be forgotten, and the worker that would free it has
    ended.
    """
    has_ended = _happened(course, "fail over") and _happened(course, *WORKER_ENDS)
    return has_ended and '"queued":true' in course.server.look.get(key)


#: Kinds of keys that outlive their runs, on purpose.
STAYS = ("fence", "history", "turned", "sweep", "done", "broken", "lost", "suspended")


#: Kinds of keys of waiting rooms.
OF_A_ROOM = ("room", "entries", "rooms", "deadlines", "sent")

# -- calls ------------------------------------------------------------------------------------


@prop
def every_call_ends(course: Course) -> None:
    """policies.md: "Every duplicate ends with a result"; guarantees.md: nothing is lost, but what
    a killed worker had without `acks_late`, and what a server forgot: that is "named by an ERROR of
    the worker that had its message, unless that worker ends first".
    """
    for call in course.calls.values():
        if course.end_of(call) is not None or _may_be_lost(course, call):
            continue
        if _was_forgotten(course, call):
            if not (_is_said(course, call) or _happened(course, *WORKER_ENDS)):
                course.failed("what is forgotten is said", call.name)
            continue
        states = [state for _, state, _ in course.states.get(call.task_id, [])] or ["PENDING"]
        ran = sum(run.task_id == call.task_id for run in course.runs)
        course.failed("every call ends", f"{call.name} stays {states[-1]} ({states}, {ran} runs)")


def _options(course: Course, call: Call) -> set[str]:
    """The options of its task, in each release."""
    return {each.option for each in course.specs_of(call)}


def _has_another_key(course: Course, call: Call) -> bool:
    """deploying.md, "A `lock_key` or the prefix changes": "so may copies of what has run", each of
    which sends what follows. Or it takes no lock in the other release.
    """
    before = [course.calls[each] for each in call.after if each in course.calls]
    return any(
        each.name == call.spec.name and each.lock_key != Version.lock_key
        for each in course.plan.deployed
    ) or any(_has_another_key(course, each) for each in before)


def _may_be_lost(course: Course, call: Call) -> bool:
    if _happened(course, "restart empty", "broker away"):
        return True
    if call.task_id in course.at_broker():
        return True  # it comes again after the visibility timeout
    if call.task_id in course.killed and _options(course, call) != {"late"}:
        return True
    if _is_behind_a_reservation(course, call) or _was_not_told(course, call):
        return True
    return any(
        _may_be_lost(course, course.calls[each]) or _was_forgotten(course, course.calls[each])
        for each in call.after
        if each in course.calls
    )


def _was_not_told(course: Course, call: Call) -> bool:
    """Whether a child died after it had stored a chord member's SUCCESS, and before it told the
    chord: Celery takes the task for done, and acknowledges its message, which nobody can help. The
    message comes again if the whole worker died.
    """
    return call.ends_chord and any(
        stored <= at and state == "SUCCESS"
        for at, task_id in course.deaths
        if task_id in call.after
        for stored, state, _ in course.states.get(task_id, [])
    )


def _is_behind_a_reservation(course: Course, call: Call) -> bool:
    """options.md, "`lock_queued_ttl`": "how long a message that was lost keeps its lock". What is
    wrong with the call for which it is reserved is said of that one.
    """
    look = course.server.look
    values = [look.get(each) for each in look.keys(f"*:lock*:{call.key}")]
    ids = [json.loads(value)["task_id"] for value in values if value and '"queued":true' in value]
    return any(course.end_of(course.calls[each]) is None for each in ids if each in course.calls)


def _was_forgotten(course: Course, call: Call) -> bool:
    """guarantees.md, "Failover": whether it began to wait in Redis just before one."""
    return any(
        task_id == call.task_id and since <= at <= until
        for at, _, task_id in course.parked
        for since, until in course.forgotten
    )


def _is_said(course: Course, call: Call) -> bool:
    return any(
        "has forgotten" in text and call.task_id in text
        for text in (record.getMessage() for _, record in course.logged)
    )


#: The ends of each policy's calls, beside SUCCESS, where the body returns.
ENDS = {
    "none": set(),
    "skip": {"REVOKED"}, "skip_result": set(), "raise": {"FAILURE"}, "defer": set(),
    "defer_bounded": {"FAILURE"}, "wait": set(), "wait_bounded": set(), "queue": set(),
    "queue_bounded": {"FAILURE"}, "queue_limited": {"REVOKED"}, "coalesce": {"REVOKED"},
    "coalesce_result": set(), "debounce": {"REVOKED"}, "replace": {"REVOKED"},
}  # fmt: skip


@prop
def each_ends_as_its_policy_says(course: Course) -> None:
    """policies.md, "Side by side". With a deploy, as either release says; deploying.md, "Options
    change": what a newer call replaces, "as the worker says that has its message: without `result=`
    it is REVOKED".
    """
    dropped = any(what == "drop" for _, what, _ in course.operated)
    for call in course.calls.values():
        end = course.end_of(call)
        ends = [ENDS[each.policy] for each in course.specs_of(call)]
        allowed = {"SUCCESS", "never sent"}.union(*ends)
        if call.does[:1] == ["raise"] or _options(course, call) & {"soft", "hard", "abort"}:
            allowed.add("FAILURE")
        if call.task_id in course.killed or _happened(course, "broker away"):
            allowed.add("FAILURE")
        policies = {each.policy for each in course.specs_of(call)}
        if len(policies) > 1 and any(each.startswith(NEWEST) for each in policies):
            allowed.add("REVOKED")
        if "expires" in call.options or dropped or "offer_for" in course.plan.also:
            allowed.add("REVOKED")
        if call.after or any(each.policy == "replace" for each in _specs(course)):
            allowed |= {"FAILURE", "REVOKED"}
        if end is not None and end not in allowed:
            result = course.states[call.task_id][-1][2]
            course.failed("ends as its policy says", f"{call.name} is {end}: {result!r}")


@prop
def each_ends_once(course: Course) -> None:
    """guarantees.md: "It runs only if the holder dies, or its lock is broken"; "A replaced task
    ends once".
    """
    if _outage(course) or _happened(course, "lose broker", "double"):
        return
    for call in course.calls.values():
        ends = [state for _, state, _ in course.states.get(call.task_id, []) if state in FINAL]
        if "queued" in _options(course, call) and course.plan.visibility is not None:
            continue  # options.md: nothing is locked while it runs, so copies run
        if _has_another_key(course, call):
            continue
        if len(ends) > _most_ends(course, call) and not _arrived_late(course, call):
            course.failed("each ends once", f"{call.name}: {ends}")


def _most_ends(course: Course, call: Call) -> int:
    most = 1 + course.killed.get(call.task_id, 0) + _broken(course, call) + _stopped(course, call)
    if "hard" in _options(course, call):
        most *= 3  # Celery stores such a failure twice before it kills the body, which may end
    if call.spec.option == "soft":
        most += 1  # the limit may come after Celery has stored the result
    if "expires" in call.options:  # Celery itself ends each copy that has expired
        most += len(course.published(call.task_id)) - (course.plan.visibility is None)
    before = [course.calls[each] for each in call.after if each in course.calls]
    return most + sum(_most_ends(course, each) - 1 for each in before)  # their failures are its own


def _broken(course: Course, call: Call) -> int:
    """How many of its runs had their locks broken."""
    return sum(
        what == "break" and key == run.key and run.began <= at + 1.0 and not (run.ended or at) < at
        for run in course.runs
        if run.task_id == call.task_id
        for at, what, key in course.operated
    )


def _stopped(course: Course, call: Call) -> int:
    """How many processes may have been stopped while they stored that it was replaced.
    guarantees.md: "if that process was only stopped meanwhile, its end is stored twice".
    """
    stops = [ends - at for at, ends, kind in course.happened if kind == "stop child"]
    is_replaced = "TaskReplaced" in str(course.states.get(call.task_id))
    return sum(each > 5.0 for each in stops) if is_replaced else 0


@prop
def nothing_runs_twice(course: Course) -> None:
    """guarantees.md, "Retries and redeliveries"."""
    if _outage(course) or _happened(course, "double", "lose broker"):
        return
    for call in course.calls.values():
        if _arrived_late(course, call) or _waits_under_another_limit(course, call):
            continue
        if _has_another_key(course, call):
            continue
        runs = [run for run in course.runs if run.task_id == call.task_id and run.lease]
        for attempt in {run.attempt for run in runs}:
            done = [run for run in runs if run.attempt == attempt and run.ended is not None]
            more = call.does[:1] == ["replace"]
            if len(done) > 1 + more + _killed(course, call):
                course.failed("nothing runs twice", f"{call.name}, attempt {attempt}: {len(done)}")


def _killed(course: Course, call: Call) -> int:
    """How often it was killed, or what it follows was: Celery may have sent it by then."""
    before = [course.calls[each] for each in call.after if each in course.calls]
    return course.killed.get(call.task_id, 0) + sum(_killed(course, each) for each in before)


def _arrived_late(course: Course, call: Call) -> bool:
    """guarantees.md: "If the broker connection breaks within a second of a message's arrival, its
    task may run twice".
    """
    ends = [at for at, _, kind in course.happened if kind == "shut down cold"]
    return any(
        abs(at - met) <= 1.0 for met in course.met.get(call.task_id, ()) for at in ends
    ) or any(
        _arrived_late(course, course.calls[each]) for each in call.after if each in course.calls
    )


def _waits_under_another_limit(course: Course, call: Call) -> bool:
    """options.md: "When a limit falls", what waits in a pool slot has the limit it began with; and
    its copy, which the room published as not taken, a higher one.
    """
    return course.limit_falls and len(course.published(call.task_id)) > 1


def _named_in(result: object) -> str | None:
    """The task that an error names as the holder, as the backend has it."""
    told = result.get("exc_message") if isinstance(result, dict) else None
    holders = [each for each in told or () if isinstance(each, dict) and "task_id" in each]
    return holders[0]["task_id"] if holders else None


@of_one_release
def the_newest_call_gets_its_run(course: Course) -> None:
    """policies.md: "the latest change must be processed"; "if a newer call takes its place,
    REVOKED". Who follows the names comes to a run that began after the call was sent.
    guarantees.md, "Clocks": "If it jumps back, ... the newer one may be taken for the older".
    """
    if _happened(course, "restart empty", "broker away", "kill worker", "server's clock"):
        return
    if any(what in ("drop", "break") for _, what, _ in course.operated):
        return
    if "offer_for" in course.plan.also:
        return  # what no worker takes ends without a run
    for call in course.calls.values():
        each, passed = call, list[Call]()
        while each not in passed and not _ran_since(course, each, call.sent):
            passed.append(each)
            newer = _named_in((course.states.get(each.task_id) or [(0.0, "", None)])[-1][2])
            each = course.calls.get(newer or "", each)
        ended = course.end_of(each) in ("REVOKED", "SUCCESS") and "expires" not in each.options
        if call.spec.policy not in NEWEST or any(one.after for one in passed):
            continue  # what comes after it in a chain ends with it
        if each in passed and ended:
            course.failed("newest call", f"{call.name} comes to {each.name}, which did not run")


def _ran_since(course: Course, call: Call, since: float) -> bool:
    return any(run.task_id == call.task_id and run.began >= since for run in course.runs)


#: Policies whose newer calls take the place of those that wait.
NEWEST = ("coalesce", "debounce", "replace")


@prop
def nobody_is_its_own_duplicate(course: Course) -> None:
    """guarantees.md, "Retries and redeliveries": "A redelivered copy that meets its own lock is
    deferred, whatever the policy"; of a retry: "it waits or is deferred, never skipped".
    """
    for call in course.calls.values():
        for _, state, result in course.states.get(call.task_id, []):
            told = result.get("exc_type") if isinstance(result, dict) else None
            if told != "LockLost" and _named_in(result) == call.task_id:
                course.failed("own duplicate", f"{call.name} is {state} by itself: {told}")


@of_one_release
def a_lock_that_is_kept_lets_nobody_in(course: Course) -> None:
    """guarantees.md: "the next attempt takes it over; if none comes, `lock_ttl` after the
    countdown"; deliveries.md, of what replaced itself: "left to the replacement".
    """
    if course.happened or course.limit > 1 or _was_broken(course):
        return
    for call in course.calls.values():
        what, countdown, _ = call.does or ("", 0, 0)
        by_option = call.spec.option in ("both", "publish", "held")[: 3 if "retry" in what else 2]
        runs = [run for run in course.runs if run.task_id == call.task_id and run.lease]
        for run, retry in itertools.pairwise(runs):
            is_next = retry.attempt > run.attempt or what == "replace"
            if not (by_option or what == "pause and retry") or not is_next or run.ended is None:
                continue
            until = min(retry.began, run.ended + countdown + course.plan.ttl)
            for other in course.runs:
                is_other = other.key == run.key and other.task_id != run.task_id
                if other.lease and is_other and run.ended <= other.began < until - TICK:
                    who = course.named(other.task_id)
                    course.failed("kept lock", f"{who} begins between runs of {call.name}")


@of_one_release
def one_message_of_a_call_is_in_the_queue(course: Course) -> None:
    """options.md, "Unique from when it is sent": "nothing was sent", but "duplicates in a canvas,
    whose id something waits for". Looked at is the first call of a key: nobody has had the lock
    before.
    """
    if course.happened or course.operated or course.limit > 1:
        return
    outside = {each.args[0] for each in course.plan.events if each.kind in ("lock", "coroutines")}
    first: dict[str, Call] = {}
    for call in course.calls.values():
        one = first.setdefault(call.key, call)
        is_one = one.spec.option in ("queued", "both") and "expires" not in one.options
        if one is call or one.spec != call.spec or one.is_of_canvas or call.is_of_canvas:
            continue
        if not is_one:
            continue
        begins = [run.began for run in course.runs if run.task_id == one.task_id]
        ends = course.ended_at(one)
        is_there = one.sent + TICK < call.sent < min([*begins, *ends, course.now]) - TICK
        if is_there and call.key not in outside:
            course.failed("one message", f"{call.name} is sent beside {one.name}")


# -- times ------------------------------------------------------------------------------------


@of_one_release
def max_wait_is_kept(course: Course) -> None:
    """options.md: "`then` acts ... on one that has waited `max_wait` seconds"."""
    if _outage(course) or _deaths(course) or _clocks(course):
        return
    for call in course.calls.values():
        if call.spec.policy != "queue_bounded" or call.task_id not in course.taken:
            continue
        if call.does or call.options or call.after:
            continue
        due = course.taken[call.task_id][0] + MAX_WAIT
        begins = [run.began for run in course.runs if run.task_id == call.task_id]
        published = course.published(call.task_id)
        on_its_way = [at for at in published if at < due and begins and begins[0] < at + OFFERED]
        if on_its_way or (begins and begins[0] < due):
            continue
        sent = [at for at in published if at >= due - 0.5]
        came = sent[0] if sent else course.now
        if came > due + LATE and not _ended_before(course, call, due):
            course.failed("max_wait", f"{call.name} is published {came - due:.2f} s late")


#: Seconds by which something that is due may be late.
LATE = 0.5


def _ended_before(course: Course, call: Call, due: float) -> bool:
    states = course.states.get(call.task_id, [])
    return any(at < due + LATE and state in FINAL for at, state, _ in states)


@of_one_release
def pauses_are_kept(course: Course) -> None:
    """options.md, "A pause after a run": from the end of the run, or from its begin. CHANGELOG.md:
    also on a full server.
    """
    if _happened(course, *UNREACHABLE) or _clocks(course) or course.limit > 1:
        return
    if _was_broken(course):
        return
    for run in course.runs:
        until, why = _paused_until(course, run)
        for other in course.runs:
            if other.key != run.key or other.task_id == run.task_id or not other.lease:
                continue
            if run.ended is not None and run.ended <= other.began < until - TICK:
                course.failed(
                    "pauses",
                    f"{course.named(other.task_id)} begins {until - other.began:.2f} s before the"
                    f" pause of {course.named(run.task_id)} is over, {why}",
                )


#: Seconds by which what two witnesses say may differ.
TICK = 0.05


def _paused_until(course: Course, run: Run) -> tuple[float, str]:
    """Until when the next run has to wait; for a short time if there is no pause."""
    call, lease = course.calls.get(run.task_id), run.lease
    if (
        call is None
        or run.ended is None
        or not lease
        or lease.is_lost
        or run.task_id in course.killed
    ):
        return 0.0, ""
    if run.paused:
        return run.ended + run.paused, f"for which its body asked ({call.does[0]})"
    ended = [state for at, state, _ in course.states.get(run.task_id, ()) if at >= run.ended][:1]
    if call.spec.option == "pause" and ended in (["SUCCESS"], ["FAILURE"]) and not call.does:
        return run.ended + tasks.PAUSE, "by lock_pause"
    if call.spec.option == "min_hold" and ended == ["SUCCESS"] and not call.does:
        return run.began + tasks.MIN_HOLD, "by lock_min_hold"
    return 0.0, ""


@of_one_release
def debounced_calls_wait_for_quiet(course: Course) -> None:
    """options.md: "the last one runs when none has come for `quiet` seconds, or `max_wait` after
    the first"; "A retry does not wait for quiet".
    """
    if _outage(course) or _clocks(course):
        return
    for run in course.runs:
        call = course.calls.get(run.task_id)
        if call is None or call.spec.policy != "debounce" or run.attempt or not run.lease:
            continue
        if call.does[:1] == ["replace"] or "retry" in " ".join(map(str, call.does)):
            continue
        if "size" in call.options:
            continue  # policies.md: it cannot wait in a room
        arrived = course.taken[run.task_id][0]
        of_slot = [
            course.taken[each.task_id][0]
            for each in course.calls.values()
            if (each.spec, each.key) == (call.spec, call.key) and each.task_id in course.taken
        ]
        is_old = any(at <= run.began - 3 * tasks.QUIET + TICK for at in of_slot)
        if run.began < arrived + tasks.QUIET - TICK and not is_old:
            course.failed("quiet", f"{call.name} begins {run.began - arrived:.2f} s after it came")


@prop
def a_queue_keeps_its_order(course: Course) -> None:
    """policies.md: "Only `Queue` keeps an order: the one in which workers found the lock held. A
    task whose message does not come within 5 s may be overtaken".
    """
    if course.happened or course.operated or course.limit > 1:
        return
    began = {run.task_id: run.began for run in reversed(course.runs)}
    waiting: dict[str, list[tuple[float, Call]]] = {}
    for at, key, task_id in course.parked:
        call = course.calls.get(task_id)
        if call is None or call.spec.policy not in ("queue", "queue_bounded") or call.does:
            continue
        before = waiting.setdefault(key, [])
        if task_id not in began or began[task_id] < at or any(call is each for _, each in before):
            continue
        for _, earlier in before:
            mine, theirs = began[task_id], began[earlier.task_id]
            sent = [when for when in course.published(earlier.task_id) if when < theirs]
            if mine < theirs and not (sent and sent[0] < mine - COMES_WITHIN):
                if _gave_up(earlier, theirs, course) or _gave_up(call, mine, course):
                    continue
                kept = any(each.keeps(earlier.spec.name, key) for each in course.suspended)
                if kept and earlier.spec != call.spec:
                    continue  # the suspension of a task does not touch others
                course.failed("a queue's order", f"{call.name} begins before {earlier.name}")
        before.append((at, call))


#: Seconds for which the lock waits for a task that was published, with a margin.
COMES_WITHIN = 0.5


def _gave_up(call: Call, began: float, course: Course) -> bool:
    """Whether it had waited for its `max_wait`: then it asks once more, out of turn."""
    waited = began - course.taken[call.task_id][0]
    return call.spec.policy == "queue_bounded" and waited > MAX_WAIT - TICK


# -- suspensions ------------------------------------------------------------------------------


@of_one_release
def no_run_of_what_is_suspended_begins(course: Course) -> None:
    """operations.md, "Suspend for a while": "What runs goes on, and so does a retry whose lock is
    kept. Other retries and redelivered messages wait for the end".
    """
    if _happened(course, "restart empty", "server's clock"):
        return
    slow = 13.0 if course.happened else 2 * TICK  # between the lock and the body
    for run in course.runs:
        call = course.calls.get(run.task_id)
        task = None if call is None else call.spec.name
        for each in course.suspended:
            if not (each.began + slow < run.began < each.until and each.keeps(task, run.key)):
                continue
            if _outage(course) and not run.lease:
                continue  # it could not be found out
            if call is not None and _goes_on(course, call, run, each):
                continue
            if _is_in_doubt(course, each.what, each.name):
                continue
            course.failed(
                "suspended",
                f"{course.named(run.task_id)} (attempt {run.attempt}) begins in {run.key}"
                f" {run.began - each.began:.2f} s after {each.what} {each.name} was suspended",
            )


def _is_in_doubt(course: Course, what: str, name: str) -> bool:
    """Whether the last that an operator said of it may be forgotten, by a failover."""
    said = [
        (first, heard)
        for each in course.suspended
        if (each.what, each.name) == (what, name)
        for first, heard in [(each.first, each.began), (each.last - 2.0, each.last)]
    ]
    return any(
        since <= heard and first <= until
        for first, heard in said
        for since, until in course.forgotten
    )


def _goes_on(course: Course, call: Call, run: Run, suspended: Suspended) -> bool:
    """Whether the lock may have been kept for this run: for a retry, or what takes its place."""
    before = [each for each in course.runs if each.task_id == run.task_id and each is not run]
    if not any(each.began <= suspended.began + TICK for each in before):
        return False
    does = " ".join(map(str, call.does))
    keeps = call.spec.option in ("held", "queued", "both", "publish")
    return "replace" in does or ("retry" in does and (keeps or "pause" in does))


@of_one_release
def a_suspension_turns_away(course: Course) -> None:
    """operations.md: "With `Skip()` and `Raise()` it does not run at all". Nothing else ends so,
    and nothing that has begun.
    """
    for call in course.calls.values():
        states = course.states.get(call.task_id, [])
        for at, state, result in states:
            by = _turned_away_by(result)
            if not by:
                continue
            began = [run for run in course.runs if run.task_id == call.task_id and run.began < at]
            if began and not _happened(course, "double", "lose broker"):
                course.failed("turned away", f"{call.name} had begun, and is {state}: {by}")
            may_be = any(
                (each.first <= at <= each.last + 13.0 or _is_in_doubt(course, each.what, each.name))
                and each.keeps(call.spec.name, call.key)
                for each in course.suspended
            )
            if not may_be:
                course.failed("turned away", f"{call.name} is {state} for nothing: {by}")
        if course.happened or call.spec.policy not in ("skip", "skip_result", "raise"):
            continue
        if call.task_id not in course.taken or call.spec.option in ("both", "publish", "queued"):
            continue
        at = course.taken[call.task_id][0]
        for each in course.suspended:
            is_kept = each.keeps(call.spec.name, call.key)
            ends = any(state in FINAL and when < at + LATE for when, state, _ in states)
            if is_kept and each.began < at < each.until - LATE and not ends:
                course.failed("turned away", f"{call.name} does not end under {each}")


def _turned_away_by(result: object) -> str:
    text = str(result)
    return text if "is suspended" in text else ""


@prop
def what_may_run_runs(course: Course) -> None:
    """deliveries.md: who frees the lock publishes the first of the room. operations.md: what waits
    runs after the end; suspending a task does not touch another one of the same lock.
    """
    if course.happened or _deaths(course) or _was_broken(course):
        return
    for call in course.calls.values():
        if call.options or call.after or call.does or call.task_id not in course.taken:
            continue
        if call.spec.policy.startswith(("defer", "debounce")):
            continue
        end = course.ended_at(call)
        begins = [run.began for run in course.runs if run.task_id == call.task_id]
        came = min([*end, *begins, course.now])
        keeps = [each for each in course.suspended if each.keeps(call.spec.name, call.key)]
        free, late = course.taken[call.task_id][0], OFFERED
        for each in keeps:
            if each.first < came and each.last > free:
                free, late = each.last, _late_after(course, each)
        busy = [run for run in course.runs if run.began <= came and run.task_id != call.task_id]
        for run in busy:
            if (over := _free_after(course, run)) > free:
                free, late = over, OFFERED
        if came > free + late:
            course.failed("runs again", f"{call.name} goes on {came - free:.2f} s late")


def _late_after(course: Course, suspended: Suspended) -> float:
    """How late what waits for its end may be. operations.md: "To suspend the same again sets a new
    end, earlier or later": a room is looked at for that as after a `resume`.
    """
    is_new_end = any(
        (each.what, each.name, each.last) == (suspended.what, suspended.name, suspended.began)
        for each in course.suspended
    )
    if suspended.resumed:
        return RESUMED
    return max(LATE, suspended.began + RESUMED - suspended.last if is_new_end else 0.0)


def _free_after(course: Course, run: Run) -> float:
    """When another one may have the lock at the latest."""
    ended = course.now if run.ended is None else run.ended
    if run.task_id not in course.calls:  # outside of tasks there are no pauses
        return ended
    return max(
        ended + max(tasks.PAUSE, run.paused, _kept_in_vain(course, run)), run.began + tasks.MIN_HOLD
    )


def _kept_in_vain(course: Course, run: Run) -> float:
    """Seconds for which its lock may be kept for a retry that has expired. deliveries.md: "if the
    retry is revoked or expires, it stays until it expires".
    """
    call = course.calls.get(run.task_id)
    if call is None or "expires" not in call.options or "retry" not in " ".join(call.does[:1]):
        return 0.0
    return call.does[1] + course.ttl


#: Seconds within which what waits is looked at after a `resume`; and after another one was offered
#: the lock, and does not come.
RESUMED, OFFERED = 2.5, 6.0


@prop
def no_suspension_is_left(course: Course) -> None:
    """operations.md: after its end, nothing is suspended."""
    for each in course.still_suspended:
        if any(
            str(each).startswith(f"{made.what} {made.name}, ")
            and _is_in_doubt(course, made.what, made.name)
            for made in course.suspended
        ):
            continue
        course.failed("no suspension is left", str(each))


# -- what it costs ----------------------------------------------------------------------------


@prop
def no_storm_of_messages(course: Course) -> None:
    """performance.md, of a task that waits in a room: "2 to park it", and "1 when a worker receives
    its message": one more delivery than without, however long it waits. A margin of one; and of two
    if it is suspended.
    """
    for call in course.calls.values():
        met, messages = len(course.met.get(call.task_id, ())), 1 + len(_sent_by_itself(call))
        again = _not_taken(course, call)
        kept = sum(each.keeps(call.spec.name, call.key) for each in course.suspended)
        most = (
            3 * messages + 2 * kept
            + _deferred(course, call) + again + _came_again(course, call)
            + (messages + again + _copies(course, call)) * _put_off_in_outages(course)
            + _falls(course, call) + _overtaken(course, call)
            + course.killed.get(call.task_id, 0)  # a turn died with its process: it has another one
        )  # fmt: skip
        if met > most:
            course.failed("no storm", f"{call.name} was delivered {met} times, not {most}")


def _falls(course: Course, call: Call) -> int:
    """What was published for a slot above a callable limit that falls waits again; and while others
    wait that knew the higher one, about twice a second, and each time that one of them asks in its
    pool slot, which is three times in a ttl. options.md, "Several at once": "may be delivered
    several times a second".
    """
    taken = course.taken.get(call.task_id, [0.0])
    falls = math.ceil((taken[-1] - taken[0]) / (2 * LIMIT_FALLS_EVERY))
    waiters = sum(
        each is not call and each.key == call.key and each.spec.policy.startswith("wait")
        for each in course.calls.values()
    )
    a_second = 2 + waiters * 3 / course.ttl
    return course.limit_falls * falls * math.ceil(LIMIT_FALLS_EVERY * a_second)


def _overtaken(course: Course, call: Call) -> int:
    """options.md, `Replace`: "The newer task goes before all that wait", also before one whose
    message is on its way: that one waits again.
    """
    taken = course.taken.get(call.task_id, [])
    begins = [
        run.began
        for run in course.runs
        if run.key == call.key
        and run.task_id in course.calls
        and any(each.policy == "replace" for each in course.specs_of(course.calls[run.task_id]))
    ]
    spans = [
        (at, min([each for each in taken if each > at], default=at))
        for at in course.published(call.task_id, at_once=True)
    ]
    return sum(any(sent < at < came for sent, came in spans) for at in begins)


def _copies(course: Course, call: Call) -> int:
    """How often the broker delivered a message of it once more, or of one that it follows: each
    copy of that sends what follows.
    """
    before = [course.calls[each] for each in call.after if each in course.calls]
    return course.came_again(call.task_id) + sum(_copies(course, each) for each in before)


def _sent_by_itself(call: Call) -> list[str]:
    """The messages that its body sends under its id."""
    return [each for each in ("retry", "replace") if each in " ".join(map(str, call.does))]


def _doublings(seconds: float, first: float = 1.0) -> int:
    """How many pauses there are in this time that begin with `first`, and double."""
    return math.ceil(math.log2(max(seconds, 0.0) / first + 1.0))


def _deferred(course: Course, call: Call) -> int:
    """options.md: `Defer` publishes the task again after each delay, and so each of its copies; and
    one whose message "is too large for the lock server ... is deferred".
    """
    taken = course.taken.get(call.task_id, [0.0])
    waited, messages = taken[-1] - taken[0], 1 + _copies(course, call)
    if call.options.get("size"):
        return messages * (math.ceil(waited / min(1.0, course.plan.ttl / 3)) + 1)
    policies = {each.policy for each in course.specs_of(call)}
    if not policies & {"defer", "defer_bounded"}:
        return 0
    if "defer" not in policies:
        return messages * (math.ceil(min(waited, MAX_WAIT) / tasks.DELAY) + 1)
    messages += _outage(course)  # who was not told that the broker has it publishes it again
    return messages * (_doublings(waited) + math.ceil(waited / 8.0))


def _not_taken(course: Course, call: Call) -> int:
    """deliveries.md, "A task that no worker takes": "The message is published again after 5, 10,
    20, 40 s and so on"; and "newcomers do not overtake it" for 5 s, or for 1 s: after that it may
    meet the lock held, and waits once more.
    """
    taken = [(at + TICK, True) for at in course.taken.get(call.task_id, ())]
    published = course.published(call.task_id, at_once=True)
    more, under_way, since, again = 0, 0, 0.0, 0
    for at, is_taken in sorted([*((each, False) for each in published), *taken]):
        if is_taken:
            under_way = max(under_way - 1, 0)
        elif under_way and again < _doublings(at - since, 5.0):
            under_way, again, more = under_way + 1, again + 1, more + 1
        else:
            under_way, since, again = under_way + 1, at, 0
    parked = [at for at, _, task_id in course.parked if task_id == call.task_id]
    for last, at in itertools.pairwise(parked):
        more += any(last < each < at - 1.0 for each in published)
    return more


def _came_again(course: Course, call: Call) -> int:
    """guarantees.md: "A redelivered copy that meets its own lock is deferred ... with pauses that
    double"; after that "if no result was stored within 5 s". Each may wait for the lock as the task
    does.
    """
    runs = [run for run in course.runs if run.task_id == call.task_id]
    longest = max((_took(course, run) for run in runs), default=0.0)
    return _copies(course, call) * (2 + _doublings(longest + 5.0))


def _took(course: Course, run: Run) -> float:
    """For how long it had the lock."""
    return (course.now if run.ended is None else run.ended) - run.began


def _put_off_in_outages(course: Course) -> int:
    """options.md: while the lock server does not answer, a task is put off, for 1, 2, 4 s and so
    on. After a restart nobody takes a lock for a third of the ttl. Where the server answers, and
    replicas do not confirm, a task may wait in a room in between, and then counts anew.
    """
    spans = [
        (over - began, 2 if "replica" in kind else 1)
        for began, over, kind in course.happened
        if kind in OUTAGES
    ]
    return sum(times * _doublings(each + course.ttl / 3) for each, times in spans)


@prop
def few_exchanges(course: Course) -> None:
    """performance.md: round trips to the lock server are bounded by what happens; deliveries.md: if
    it does not answer, what a delivery has left to do is tried again "four times a second".
    """
    met = sum(map(len, course.met.values()))
    away = sum(over - began for began, over, kind in course.happened if kind in OUTAGES)
    most = 400 + (40 + 4 * away) * met + 60 * len(course.awaited)
    most += 8 * course.now * len(course.workers)
    if course.server.exchanges > most:
        course.failed("few exchanges", f"{course.server.exchanges}, with {met} deliveries")
