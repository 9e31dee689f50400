"""What must be true of a course. Each property names the line of the documents that it checks, and
judges what the witnesses saw. None of them knows how the package does it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from . import tasks
from .course import FINAL, Call, Course, Run, Suspended
from .tasks import MAX_WAIT

Property = Callable[[Course], None]
_all: list[Property] = []


def prop(check: Property) -> Property:
    """A property: it is checked of each course."""
    _all.append(check)
    return check


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


def _outage(course: Course) -> bool:
    """The lock server could not be asked for a while, or forgot."""
    return _happened(
        course, "lose requests", "lose replies", "late", "cut", "restart", "restart empty", "full",
        "read only", "stop server",
    )  # fmt: skip


def _deaths(course: Course) -> bool:
    return _happened(course, "kill child", "kill worker", "stop child", "shut down") or any(
        each.option in ("soft", "hard") or each.policy == "replace" for each in course.plan.specs
    )


# -- locks ------------------------------------------------------------------------------------


@prop
def never_two_inside(course: Course) -> None:
    """guarantees.md: "One holder for each key on one Redis server"; "An empty restart"; "A holder
    that lost its lock is told".
    """
    forgets = _happened(course, "restart empty")
    for olders, newer in course.overlaps:
        broken = [at for at, what, key in course.operated if what == "break" and key == newer.key]
        is_documented = forgets or any(at <= newer.began + 1.0 for at in broken)
        who = [course.named(each.task_id) for each in (*olders, newer)]
        told = [each for each in olders if _is_told_in_time(course, each, newer)]
        if not is_documented:
            course.failed("never two inside", f"{', '.join(who)} in {newer.key}")
        elif len(told) <= len(olders) - course.limit:
            course.failed("told in time", f"{', '.join(who)} in {newer.key}")


def _is_told_in_time(course: Course, older: Run, newer: Run) -> bool:
    is_held_up = _happened(course, "stop child") or _outage(course)
    ended = course.now if older.ended is None else older.ended
    within = course.plan.ttl if is_held_up else course.plan.ttl / 3
    is_short = ended - newer.began <= within + 1.0
    return older.lease.is_lost or is_short or not older.process.is_alive


@prop
def fences_rise(course: Course) -> None:
    """guarantees.md: "Each acquisition has a higher fence, within limits"."""
    if course.limit > 1:
        return
    last: dict[str, Run] = {}
    for run in course.runs:
        if not run.fence:
            continue
        before = last.get(run.key)
        is_after = before is None or (before.ended is not None and before.ended <= run.began)
        if before is not None and is_after and run.fence <= before.fence:
            same = run.task_id == before.task_id
            course.failed("fences rise", f"{run.fence} after {before.fence} in {run.key} ({same})")
        last[run.key] = run


@prop
def nothing_is_left(course: Course) -> None:
    """guarantees.md: "No lock without an expiry"; deliveries.md: each end settles what it holds."""
    for key in sorted(course.server.look.keys("*")):
        kind = key.partition("}:")[2].partition(":")[0] or key.partition(":")[2].partition(":")[0]
        if kind in STAYS:
            continue
        if not course.all_ended() and kind in (*OF_A_ROOM, "lock", "lock2", "waiters"):
            continue  # a worker that was killed has lost calls, which may be reserved
        left = course.server.look.pttl(key)
        course.failed("nothing is left", f"{key}, for {left} ms")


#: Kinds of keys that outlive their runs, on purpose.
STAYS = ("fence", "history", "turned", "sweep", "done", "broken", "lost", "suspended")


#: Kinds of keys of waiting rooms.
OF_A_ROOM = ("room", "entries", "rooms", "deadlines")

# -- calls ------------------------------------------------------------------------------------


@prop
def every_call_ends(course: Course) -> None:
    """policies.md: "Every duplicate ends with a result"; guarantees.md: nothing is lost, but what
    a killed worker had without `acks_late`, and what a server forgot.
    """
    for call in course.calls.values():
        if course.end_of(call) is not None or _may_be_lost(course, call):
            continue
        states = [state for _, state, _ in course.states.get(call.task_id, [])] or ["PENDING"]
        ran = sum(run.task_id == call.task_id for run in course.runs)
        course.failed("every call ends", f"{call.name} stays {states[-1]} ({states}, {ran} runs)")


def _may_be_lost(course: Course, call: Call) -> bool:
    if _happened(course, "restart empty", "broker away"):
        return True
    if call.task_id in course.at_broker():
        return True  # it comes again after the visibility timeout
    if call.task_id in course.killed and call.spec.option != "late":
        return True
    return any(
        _may_be_lost(course, course.calls[each]) for each in call.after if each in course.calls
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
    """policies.md, "Side by side"."""
    dropped = any(what == "drop" for _, what, _ in course.operated)
    for call in course.calls.values():
        end = course.end_of(call)
        allowed = {"SUCCESS", "never sent", *ENDS[call.spec.policy]}
        if call.does[:1] == ["raise"] or call.spec.option in ("soft", "hard", "abort"):
            allowed.add("FAILURE")
        if call.task_id in course.killed or _happened(course, "broker away"):
            allowed.add("FAILURE")
        if "expires" in call.options or dropped:
            allowed.add("REVOKED")
        if call.after or any(each.policy == "replace" for each in course.plan.specs):
            allowed |= {"FAILURE", "REVOKED"}
        if end is not None and end not in allowed:
            result = course.states[call.task_id][-1][2]
            course.failed("ends as its policy says", f"{call.name} is {end}: {result!r}")


@prop
def each_ends_once(course: Course) -> None:
    """guarantees.md: "A redelivered copy ... runs only if the holder dies"."""
    for call in course.calls.values():
        states = course.states.get(call.task_id, [])
        ends = [state for _, state, _ in states if state in FINAL]
        most = 1 + course.killed.get(call.task_id, 0)
        if any(each.option == "hard" for each in course.plan.specs):
            most *= 3  # Celery stores such a failure twice, and that of what comes after it
        if "expires" in call.options and course.plan.visibility is not None:
            most += 1  # Celery itself ends a copy that has expired, though the task runs
        if call.does[:1] == ["replace"]:
            most += 1  # it may be told to end just as it has sent its replacement
        if len(ends) > most and not (_outage(course) or _happened(course, "lose broker", "double")):
            course.failed("each ends once", f"{call.name}: {ends}")


@prop
def nothing_runs_twice(course: Course) -> None:
    """guarantees.md, "Retries and redeliveries"."""
    if _outage(course) or _happened(course, "double", "lose broker"):
        return
    for call in course.calls.values():
        runs = [run for run in course.runs if run.task_id == call.task_id and run.lease]
        for attempt in {run.attempt for run in runs}:
            done = [run for run in runs if run.attempt == attempt and run.ended is not None]
            more = call.does[:1] == ["replace"]
            if len(done) > 1 + more + course.killed.get(call.task_id, 0):
                course.failed("nothing runs twice", f"{call.name}, attempt {attempt}: {len(done)}")


def _named_in(result: object) -> str | None:
    """The task that an error names as the holder, as the backend has it."""
    told = result.get("exc_message") if isinstance(result, dict) else None
    holders = [each for each in told or () if isinstance(each, dict) and "task_id" in each]
    return holders[0]["task_id"] if holders else None


@prop
def the_newest_call_gets_its_run(course: Course) -> None:
    """policies.md: "the latest change must be processed"; "if a newer call takes its place,
    REVOKED". Who follows the names comes to a run that began after the call was sent.
    """
    if _happened(course, "restart empty", "broker away", "kill worker"):
        return
    if any(what in ("drop", "break") for _, what, _ in course.operated):
        return
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


@prop
def a_lock_that_is_kept_lets_nobody_in(course: Course) -> None:
    """guarantees.md: "the next attempt takes it over; if none comes, `lock_ttl` after the
    countdown"; deliveries.md, of what replaced itself: "left to the replacement".
    """
    broken = any(what == "break" for _, what, _ in course.operated)
    if course.happened or course.limit > 1 or broken:
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


@prop
def one_message_of_a_call_is_in_the_queue(course: Course) -> None:
    """options.md, "Unique from when it is sent": "Nothing was sent". Looked at is the first call
    of a key: nobody has had the lock before.
    """
    if course.happened or course.operated:
        return
    outside = {each.args[0] for each in course.plan.events if each.kind in ("lock", "coroutines")}
    first: dict[str, Call] = {}
    for call in course.calls.values():
        one = first.setdefault(call.key, call)
        is_one = one.spec.option in ("queued", "both") and "expires" not in one.options
        if one is call or one.spec != call.spec or one.after or call.after or not is_one:
            continue
        begins = [run.began for run in course.runs if run.task_id == one.task_id]
        is_there = one.sent + TICK < call.sent < min([*begins, course.now]) - TICK
        if is_there and call.key not in outside:
            course.failed("one message", f"{call.name} is sent beside {one.name}")


# -- times ------------------------------------------------------------------------------------


@prop
def max_wait_is_kept(course: Course) -> None:
    """options.md: "`then` acts ... on one that has waited `max_wait` seconds"."""
    if _outage(course) or _deaths(course):
        return
    for call in course.calls.values():
        if call.spec.policy != "queue_bounded" or call.task_id not in course.taken:
            continue
        if call.does or call.options or call.after:
            continue
        due = course.taken[call.task_id][0] + MAX_WAIT
        begins = [run.began for run in course.runs if run.task_id == call.task_id]
        if begins and begins[0] < due:
            continue
        sent = [at for at in course.published(call.task_id) if at >= due - 0.5]
        came = sent[0] if sent else course.now
        if came > due + LATE and not _ended_before(course, call, due):
            course.failed("max_wait", f"{call.name} is published {came - due:.2f} s late")


#: Seconds by which something that is due may be late.
LATE = 0.5


def _ended_before(course: Course, call: Call, due: float) -> bool:
    states = course.states.get(call.task_id, [])
    return any(at < due + LATE and state in FINAL for at, state, _ in states)


@prop
def pauses_are_kept(course: Course) -> None:
    """options.md, "A pause after a run": from the end of the run, or from its begin."""
    if _outage(course) or course.limit > 1 or any(w == "break" for _, w, _ in course.operated):
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
    own = [each.lease for each in course.runs if each.task_id == run.task_id]
    if any(each is not None and each.replaced_by is not None for each in own):
        return 0.0, ""  # the newer run need not wait for what an older one asked
    if run.paused:
        return run.ended + run.paused, f"for which its body asked ({call.does[0]})"
    ended = [state for at, state, _ in course.states.get(run.task_id, ()) if at >= run.ended][:1]
    if call.spec.option == "pause" and ended in (["SUCCESS"], ["FAILURE"]) and not call.does:
        return run.ended + tasks.PAUSE, "by lock_pause"
    if call.spec.option == "min_hold" and ended == ["SUCCESS"] and not call.does:
        return run.began + tasks.MIN_HOLD, "by lock_min_hold"
    return 0.0, ""


@prop
def debounced_calls_wait_for_quiet(course: Course) -> None:
    """options.md: "the last one runs when none has come for `quiet` seconds, or `max_wait` after
    the first"; "A retry does not wait for quiet".
    """
    if _outage(course):
        return
    for run in course.runs:
        call = course.calls.get(run.task_id)
        if call is None or call.spec.policy != "debounce" or run.attempt or not run.lease:
            continue
        if call.does[:1] == ["replace"] or "retry" in " ".join(map(str, call.does)):
            continue
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


@prop
def no_run_of_what_is_suspended_begins(course: Course) -> None:
    """operations.md, "Suspend for a while": "What runs goes on, and so does a retry whose lock is
    kept. Other retries and redelivered messages wait for the end".
    """
    if _happened(course, "restart empty"):
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
            course.failed(
                "suspended",
                f"{course.named(run.task_id)} (attempt {run.attempt}) begins in {run.key}"
                f" {run.began - each.began:.2f} s after {each.what} {each.name} was suspended",
            )


def _goes_on(course: Course, call: Call, run: Run, suspended: Suspended) -> bool:
    """Whether the lock may have been kept for this run: for a retry, or what takes its place."""
    before = [each for each in course.runs if each.task_id == run.task_id and each is not run]
    if not any(each.began <= suspended.began + TICK for each in before):
        return False
    does = " ".join(map(str, call.does))
    keeps = call.spec.option in ("held", "queued", "both", "publish")
    return "replace" in does or ("retry" in does and (keeps or "pause" in does))


@prop
def a_suspension_turns_away(course: Course) -> None:
    """operations.md: "with `Skip()` and `Raise()` it does not run at all". Nothing else ends so,
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
                each.first <= at <= each.last + 13.0 and each.keeps(call.spec.name, call.key)
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
    if course.happened or _deaths(course) or any(w == "break" for _, w, _ in course.operated):
        return
    for call in course.calls.values():
        if call.options or call.after or call.does or call.task_id not in course.taken:
            continue
        if call.spec.policy.startswith(("defer", "debounce")):
            continue
        end = [at for at, state, _ in course.states.get(call.task_id, []) if state in FINAL]
        begins = [run.began for run in course.runs if run.task_id == call.task_id]
        came = min([*end, *begins, course.now])
        keeps = [each for each in course.suspended if each.keeps(call.spec.name, call.key)]
        free, late = course.taken[call.task_id][0], OFFERED
        for each in keeps:
            if each.first < came and each.last > free:
                free, late = each.last, (RESUMED if each.resumed else LATE)
        busy = [run for run in course.runs if run.began <= came and run.task_id != call.task_id]
        for run in busy:
            over = run.ended if run.ended is not None else course.now
            over = max(over + max(tasks.PAUSE, run.paused), run.began + tasks.MIN_HOLD)
            if over > free:
                free, late = over, OFFERED
        if came > free + late:
            course.failed("runs again", f"{call.name} goes on {came - free:.2f} s late")


#: Seconds within which what waits is looked at after a `resume`; and after another one was offered
#: the lock, and does not come.
RESUMED, OFFERED = 2.5, 6.0


@prop
def waiting_for_a_suspension_costs_little(course: Course) -> None:
    """DESIGN: "what waits waits in its order and in at most two deliveries"."""
    if course.happened or _deaths(course) or any(w == "break" for _, w, _ in course.operated):
        return
    for call in course.calls.values():
        if call.spec.policy.startswith("defer") or not course.suspended:
            continue
        keeps = sum(each.keeps(call.spec.name, call.key) for each in course.suspended)
        most = 4 + 2 * keeps + 3 * bool(call.does)
        if (met := len(course.met.get(call.task_id, ()))) > most:
            course.failed("costs", f"{call.name} was delivered {met} times, {keeps} suspensions")


@prop
def no_suspension_is_left(course: Course) -> None:
    """operations.md: after its end, nothing is suspended."""
    for each in course.still_suspended:
        course.failed("no suspension is left", str(each))


def _lasts(suspended: Suspended) -> float:
    last = suspended.last if suspended.last != math.inf else suspended.until
    return max(last - suspended.first, 0.0)


# -- what it costs ----------------------------------------------------------------------------


@prop
def no_storm_of_messages(course: Course) -> None:
    """DESIGN: a task that waits costs at most two deliveries more, however long it waits."""
    for call in course.calls.values():
        met = len(course.met.get(call.task_id, ()))
        most = 12 + 4 * course.killed.get(call.task_id, 0)
        if call.spec.policy.startswith("defer"):
            most += 12 + round(sum(_lasts(each) for each in course.suspended) / tasks.DELAY / 3)
        if course.happened:
            most += 20
        if _happened(course, "double", "lose broker", "kill worker"):  # copies are deferred
            most += 4 * round(sum(_took(run) for run in course.runs) / course.plan.ttl * 4)
        if _happened(course, "double"):
            most *= 8  # each copy is deferred in turn
        if met > most:
            course.failed("no storm", f"{call.name} was delivered {met} times")


def _took(run: Run) -> float:
    return 0.0 if run.ended is None else run.ended - run.began


@prop
def few_exchanges(course: Course) -> None:
    """performance.md: round trips to the lock server are bounded by what happens."""
    met = sum(map(len, course.met.values()))
    most = 400 + 40 * met + 8 * course.now * len(course.workers)
    if course.server.exchanges > most:
        course.failed("few exchanges", f"{course.server.exchanges}, with {met} deliveries")


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
    """guarantees.md, "Lost locks": nobody is told of a loss that was none."""
    if course.happened or course.operated:
        return
    for at, record in course.logged:
        if "LOST" in record.getMessage():
            course.failed("a loss is one", f"{at:.3f} s: {record.getMessage()}")
