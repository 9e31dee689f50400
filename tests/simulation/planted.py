"""The faults that are planted into the package, to see that the properties find them. FOUND.md says
which property found each.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from .planting import Change, Fault

if TYPE_CHECKING:
    from .plan import Plan


def _at(file: str, old: str, new: str, **where: Any) -> Fault:
    """A fault that is one change."""
    return Fault((Change(file, old, new),), **where)


def _lua(name: str, old: str, new: str, **where: Any) -> Fault:
    return _at(f"scripts/{name}.lua", old, new, **where)


# -- what a plan has ---------------------------------------------------------------------------


def _tasks(*parts: str) -> Any:
    """A plan with a task whose policy or option is, or begins with, one of these."""

    def needs(plan: Plan) -> bool:
        names = [name for spec in plan.specs for name in (spec.policy, spec.option)]
        return any(name == part or name.startswith(f"{part}_") for part in parts for name in names)

    return needs


def _events(*kinds: str) -> Any:
    return lambda plan: any(event.kind in kinds for event in plan.events)


def _does(*what: str) -> Any:
    """A plan with a body that does this."""
    return lambda plan: any(part in str(event.args) for part in what for event in plan.events)


def _both(*needs: Any) -> Any:
    return lambda plan: all(each(plan) for each in needs)


def _calls(policy: str, option: str) -> Any:
    """A plan with a call of a task with this policy, which has this option of a call."""
    return lambda plan: any(
        event.kind == "call" and event.args[0].startswith(policy) and option in event.args[4]
        for event in plan.events
    )


_ROOMS = _tasks("queue", "coalesce", "debounce", "replace")
_FULL, _QUEUES = _events("full"), _tasks("queue")
_RETRIES = _does("retry")
_NEWEST, _SENT_ONCE = _tasks("coalesce", "debounce", "replace"), _tasks("queued", "both", "publish")
_COPIES = _events("lose broker", "kill worker", "double")
_SILENCE = _events("lose replies", "late", "cut", "stop server")


def _expires_in_a_room(plan: Plan) -> bool:
    return any(_calls(each, "expires")(plan) for each in ("queue", "coalesce", "debounce", "wait"))


def _is_suspended_for_long(plan: Plan) -> bool:
    return any(event.kind == "suspend" and event.args[2] >= 90 for event in plan.events)


def _has_few_slots(plan: Plan) -> bool:
    return plan.workers * plan.children <= 2


#: Each wing of the package, broken.
FAULTS: dict[str, Fault] = {
    "a held lock is taken": _lua(
        "acquire", "local slot, current, tells = lock, redis.pcall('GET', lock), false",
        "local slot, current, tells = lock, false, false"
    ),
    "nothing is extended": _lua(
        "extend", "    redis.call('PEXPIRE', slot, ttl)\n    if description", "    if description"
    ),
    "a lock never expires": _lua(
        "taking", "redis.call('SET', slot, stored, 'PX', ttl)", "redis.call('SET', slot, stored)"
    ),
    "the fence is the minute": _lua(
        "taking", "local least = (redis.call('GET', counter) or 0) + 1",
        "fence = string.format('%.0f', math.floor(time[1] / 60)); number = tonumber(fence)\n"
        "local least = 0",
    ),
    "the last parked is first": _lua(
        "park", "in_front == '1' and 'LPUSH' or 'RPUSH'", "in_front == '1' and 'RPUSH' or 'LPUSH'"
    ),
    "a lock is not suspended": _lua(
        "suspended", "in_force['lock '", "in_force['none '", suspends=True
    ),
    "a task is not suspended": _lua(
        "suspended", "in_force['task '", "in_force['none '", suspends=True
    ),
    "resume wakes nobody": _lua(
        "suspend", "if some_may_wait then", "if false then",
        suspends=True,
    ),
    "a retry is no different": _at(
        "tasks/decide.py", "return wait_its_turn(facts, state, busy)",
        "return state, TurnedAway(Outcome.SKIPPED, busy.holder, busy.suspension)", suspends=True,
    ),
    "a copy from a room is put off": _at(
        "tasks/decide.py", "if is_own and _has_own_message(facts, state):", "if False:"
    ),
    "nobody publishes from a room": _at(
        "tasks/room.py",
        "    publish_again(app, entry.task, args, kwargs, options)\n    logger",
        "    logger"
    ),
    "a lock_pause is none": _lua(
        "settle",
        "math.max(rest, pause, rest",
        "math.max(rest, rest"
    ),
    "no quiet is waited for": _lua(
        "park", "math.min(now + quiet, first_call + longest)", "math.min(now + 1, first_call + 1)"
    ),
    "replicas need not confirm": _at(
        "servers/talk.py", "if confirmed >= min_replicas:", "if True:", wanted=("late replica",)
    ),
    "max_wait is twice as long": _lua(
        "park", "string.format('%.0f', now + give_up_after)",
        "string.format('%.0f', now + 2 * give_up_after)",
    ),
}  # fmt: skip

_BEGAN_IN_ROOM = Change(
    "app/delivery.py", 'bool(header.get("began", is_copy and "parked_at" not in header))', "is_copy"
)
_DEFERS = Change(
    "tasks/decide.py", "if not (facts.locks.is_quorum or state.message.fanout):", "if False:"
)

#: What once was wrong, put back.
KNOWN: dict[str, Fault] = {
    "what comes from a room has begun: a storm under max_wait": Fault(
        (_BEGAN_IN_ROOM, _DEFERS), _ROOMS, suspends=True
    ),
    "a suspension that is set anew ends early": _lua(
        "suspend", "list[target] = suspension",
        "list[target] = suspension and list[target] or suspension", suspends=True,
    ),
    "the order after a long suspension": Fault(
        (
            _BEGAN_IN_ROOM,
            _DEFERS,
            Change("tasks/decide.py", "comes_anew = busy.suspension is None", "comes_anew = True"),
        ),
        _QUEUES, suspends=True,
    ),
    "no worker has taken it, though it is suspended": _lua(
        "park", "    redis.call('ZREM', sent, member)\n    state.due = 0",
        "    if not suspension then\n      redis.call('ZREM', sent, member)\n    end\n"
        "    state.due = 0",
        needs=_both(_ROOMS, _is_suspended_for_long, _has_few_slots), suspends=True,
        wanted=("offer_for",),
    ),
    "five bodies of one that is unique in the queue": _lua(
        "reserve", "waiting = waiting or task_there(member) == task and state_of(member).id",
        "waiting = nil", needs=_tasks("queued", "both"), suspends=True,
    ),
    "Replace ends a run under a suspension": _lua(
        "park", "  replace_after = ''  -- what runs goes on", "  -- what runs ends",
        needs=_tasks("replace"), suspends=True,
    ),
    "the skipped neighbour": _lua(
        "suspended", "local is_longer", "of_task = of_task or select(2, next(in_force))\n"
        "    local is_longer", faults=False, suspends=True,
    ),
    "a description on a full server loses the lock": _lua(
        "extend",
        "    redis.call('PEXPIRE', slot, ttl)\n    if description then\n"
        "      -- If the server refuses this, the next extension brings it again.\n"
        "      redis.pcall('SET', slot, described(current, description), 'KEEPTTL')\n    end\n",
        "    if description then\n"
        "      redis.call('SET', slot, described(current, description), 'PX', ttl)\n"
        "    else\n      redis.call('PEXPIRE', slot, ttl)\n    end\n",
        needs=_both(_FULL, _does("describe")), faults=True,
    ),
    "a release with a pause on a full server": _lua(
        "records", "  redis.call('PEXPIRE', slot, ttl)\n", "",
        needs=_both(_FULL, lambda p: _tasks("pause", "min_hold")(p) or _does("pause")(p)),
        faults=True,
    ),
    "a pause is lost by the retry": _at(
        "lock/lease.py", "Release(note, True, pause=pause, heir=value), how)",
        "Release(note, True, heir=value), how)", needs=_does("pause and retry"),
    ),
    "a retry stays RETRY": _at(
        "tasks/task.py", 'if options.get("retries"):\n            publish',
        "if False:\n            publish", needs=_RETRIES,
    ),
    "a loss is told beside an extension": Fault(
        (
            Change("lock/heartbeat.py", "ref in self._overtaken)", "ref not in self._leases)"),
            Change(
                "lock/lease.py", "isinstance(reply, Extended) and reply.takes_again:",
                "isinstance(reply, Extended) and (\n                reply.takes_again or"
                " (self.is_released and reply.outcome != 0)\n            ):",
            ),
            Change("lock/lease.py", "        self.is_undone = True  # first", "        # first"),
        ),
    ),
    "a quorum's release is a loss": _at(
        "protocol/majority.py", "return len(sure) - _agreeing(sure) <",
        "return len(answers) - _agreeing(answers) <",
    ),
    "a debounced message that is too large": _at(
        "tasks/life.py",
        "            if size <= LARGE:\n                raise",
        "            raise",
        needs=_calls("debounce", "size"), wanted=("large messages",),
    ),
    "a hold-off that never ends": _at(
        "servers/restarts.py", "if is_same is False or (is_same is None and may_be_other):",
        "if may_be_other:", wanted=("discreet server",),
    ),
    "a killed child's slot under a callable limit": _at(
        "worker/child_lease.py", "if keys == claim.keys:", "if True:",
        needs=_both(lambda plan: plan.limit == "callable", _events("kill child")),
        wanted=("limit falls",),
        faults=True,
    ),
    "no more than 32 listeners": Fault(
        (
            Change(
                "servers/async_server.py", "from .threads import askers, release_in_background",
                "from .threads import release_in_background\n"
                "from .threads import threads as askers",
            ),
            Change(
                "servers/async_server.py",
                "max(super().crowd, (self._listening + 1) / LISTENING)", "super().crowd",
            ),
        ),
        wanted=("crowd",),
    ),
    "what expires in a room is not named": _at(
        "tasks/room.py",
        'why = while_suspended(suspended) if suspended else _outage_at(app, options["expires"])',
        'why = ""', needs=_expires_in_a_room, suspends=True,
    ),
    "may_go counts who is suspended": _lua(
        "room", "for _, other in ipairs(front()) do",
        "for _, other in ipairs(redis.call('LRANGE', room, 0, #slots + 15)) do",
        needs=_both(_ROOMS, lambda plan: len(plan.specs) > 1), faults=False, suspends=True,
    ),
    "a listed run is two rows": _at(
        "inspection/locks.py", "if (of := _run_identity(row)) not in has_it and of not in shown:",
        "if True:",
        needs=_events("lose replies", "late", "cut", "stop server"), faults=True, wanted=("looks",),
    ),
}  # fmt: skip

#: Mutants: chosen by reading the package, before any of them was run.
OWN: dict[str, Fault] = {
    # -- scripts
    "a second acquire does not know its own token": _lua(
        "acquire", "  if is_under(current[i], opening) then\n    redis.call('PEXPIRE', slot, ttl)",
        "  if false then\n    redis.call('PEXPIRE', slot, ttl)",
        needs=_SILENCE, faults=True,
    ),
    "a copy is not told that its task has run": _lua(
        "acquire", "if done and counts(done)", "if false and counts(done)",
        needs=_COPIES, faults=True,
    ),
    "a retry does not take the lock that is held for it": _lua(
        "acquire", "if holder.held or holder.queued or holder.cooling",
        "if holder.queued or holder.cooling",
        needs=_both(_tasks("held"), _RETRIES), faults=False,
    ),
    "one more than the limit may wait": _lua(
        "park", "redis.call('LLEN', room) >= limit", "redis.call('LLEN', room) > limit",
        needs=_tasks("queue_limited"), faults=False,
    ),
    "quiet has no end under steady traffic": _lua(
        "park", "math.min(now + quiet, first_call + longest)",
        "math.max(now + quiet, first_call + longest)",
        needs=_tasks("debounce"), faults=False,
    ),
    "a lock is kept for 5 ms, not for 5 s": _lua(
        "room", "local KEPT_FOR = 5000 ", "local KEPT_FOR = 5 ",
        needs=_QUEUES, faults=False,
    ),
    "a task that does not come is sent at each look": _lua(
        "room", "math.min(math.max(age, KEPT_FOR), LONGEST_PAUSE)", "math.min(age, KEPT_FOR)",
        needs=_ROOMS,
    ),
    "a vanished lock is taken again, whoever had it since": _lua(
        "extend", " or tonumber(counter) > tonumber(last_counter) then", " then",
        needs=_both(_events("restart empty"), _SILENCE), faults=True,
    ),
    "who leaves takes the newer call along": _lua(
        "entries", "  if state.id == id and ((receipt or '') == ''", "  if (true",
        needs=_NEWEST,
    ),
    "who sends overtakes the room": _lua(
        "reserve",
        "if free and not waiting and (redis.call('EXISTS', room) == 0 or may_go('')) then",
        "if free and not waiting then",
        needs=_both(_ROOMS, _SENT_ONCE),
    ),
    "a retry whose lock is kept is suspended": _lua(
        "acquire", "return mine == 0 and kept_off() or settled(slot, value)",
        "return kept_off() or settled(slot, value)",
        needs=_both(_RETRIES, lambda p: _tasks("held", "both")(p) or _does("pause and")(p)),
        faults=False, suspends=True,
    ),
    "a holder takes a broken lock again": _lua(
        "break",
        "    redis.call('SET', broken_by_whom, earlier .. broken_text(",
        "    local _ = tostring(earlier .. broken_text(",
        needs=_events("break"),
    ),
    # -- tasks
    "a redelivered copy is a duplicate": _at(
        "tasks/decide.py", "    if is_own:\n        # Not",
        "    if False:\n        # Not",
        needs=_COPIES, faults=True,
    ),
    "a Wait begins anew after each suspension": _at(
        "tasks/decide.py",
        "left -= busy.sent_at - wish.busy.sent_at  # since",
        "left -= 0.0  # since",
        needs=_tasks("wait_bounded"), faults=False, suspends=True,
    ),
    "the end of a skipped task is not noted": _at(
        "tasks/life.py", "done = self._note_no_run()", "done = None",
        needs=_both(
            _COPIES, _tasks("queue_limited", "wait_bounded", "queue_bounded", "defer_bounded")
        ), faults=True,
    ),
    "an attempt that was retried leaves no note": _at(
        "tasks/body.py",
        "return Ran(past.RETRIED, notes.ENDED, error)",
        'return Ran(past.RETRIED, "", error)',
        needs=_both(_COPIES, _RETRIES), faults=True,
    ),
    "a run that failed holds on, and one that succeeded does not": _at(
        "tasks/body.py", "(options.lock_min_hold or 0.0) if ran.how == past.SUCCEEDED",
        "(options.lock_min_hold or 0.0) if ran.how != past.SUCCEEDED",
        needs=_tasks("min_hold"), faults=False,
    ),
    "what is put off gives up its place": _at(
        "tasks/settle.py",
        '    if kept is None or end.passes_on:\n        return\n    try:',
        "    if kept is None:\n        return\n    try:",
        needs=lambda p: _ROOMS(p) or _SENT_ONCE(p),
    ),
    "a reservation is not prolonged once it is sent": _at(
        "tasks/reserve.py",
        "self._seconds > PUBLISHING and not",
        "self._seconds < PUBLISHING and not",
        needs=_SENT_ONCE, faults=False,
    ),
    "what expired in a room keeps its place": _at(
        "tasks/room.py", "settled = locks.server.run(settle(claim, leaves))",
        "settled = Settled(True)",
        needs=_expires_in_a_room,
    ),
    "what is put off is taken for expired": _at(
        "tasks/act.py",
        "return left is not None and left < ahead",
        "return left is not None and left > ahead",
        needs=_calls("defer", "expires"),
    ),
    "a retry replaces a newer run": _at(
        "tasks/decide.py",
        "        if facts.claim.attempt or facts.claim.nesting:\n            # The holder",
        "        if False:\n            # The holder",
        needs=_both(_tasks("replace"), _RETRIES),
    ),
    "who comes back to the room goes last": _at(
        "tasks/act.py", "in_front=message.parked or grace is not None or",
        "in_front=grace is not None or",
        needs=_QUEUES, faults=False,
    ),
    # -- lock
    "an extension that failed is not tried again": _at(
        "lock/right.py", "self.next_beat = min(now + RETRY_EVERY, self.deadline)",
        "self.next_beat = self.deadline",
        needs=_events("restart", "stop server", "read only"), faults=True,
    ),
    "a holder does not take its lock again": _at(
        "lock/right.py", "retake = retake and now < self.deadline", "retake = False",
        needs=_events("restart empty"), faults=True,
    ),
    "a release does not wait for the extension": _at(
        "lock/lease.py", "self.unanswered += heartbeat.discard(self, wait)",
        "heartbeat.discard(self, False)",
    ),
    "a release that is repeated knows nothing of the first": _at(
        "lock/lease.py", "call.in_doubt, self.tried_to_release = self.tried_to_release, True",
        "self.tried_to_release = True",
        needs=_SILENCE, faults=True,
    ),
    "a cancelled coroutine gives nothing back": _at(
        "servers/async_server.py", "if not asked.cancelled() and undo is not None:", "if False:",
        needs=_events("coroutines"), faults=False,
    ),
    # -- servers
    "nobody holds off after a restart": _at(
        "servers/restarts.py", "        if left > 0:\n            raise HeldOff(left)",
        "        if False:\n            raise HeldOff(left)",
        needs=_events("restart empty"), faults=True,
    ),
    "nobody tries again in time": _at(
        "servers/server.py", "is_late = clock() >= self._began", "is_late = clock() <= self._began",
        needs=_events("restart", "stop server"), faults=True,
    ),
    "a lost reply leaves no doubt": _at(
        "servers/talk.py",
        "sent_at, asked.in_doubt = clock(), True",
        "sent_at, asked.in_doubt = clock(), False",
        needs=_SILENCE, faults=True,
    ),
    "a connection with an unread reply is used again": _at(
        "servers/talk.py", "return not (is_answer or isinstance(error, HeldOff))", "return False",
        needs=_SILENCE, faults=True,
    ),
    # -- worker
    "the main process extends nothing": _at(
        "worker/request.py", "            heartbeat.add(self._lease)", "            pass",
        needs=_events("stop child"), faults=True,
    ),
    "a lock that was kept for a dead retry stays": _at(
        "worker/child_lease.py", "run_end=end, died=True)\n            reply",
        "run_end=end)\n            reply",
        needs=_both(_events("kill child"), _RETRIES), faults=True,
    ),
    "a task whose child died as it was parked has failed": _at(
        "worker/request.py", "isinstance(error, WorkerLostError) and self._is_elsewhere()", "False",
        needs=_both(_events("kill child"), _ROOMS), faults=True,
    ),
    "rooms are looked at too late": _at(
        "worker/sweeper.py", "soon = SWEEP_EVERY * 1.1", "soon = SWEEP_EVERY * 0.1",
        needs=_tasks("queue_bounded"), faults=False,
    ),
    "what a restart forgot is not named": _at(
        "worker/parked.py", "if known == self._outages:", "if True:",
        needs=_both(_events("restart empty"), _ROOMS), faults=True,
    ),
    # -- app
    "background work is tried once": _at(
        "app/housekeeper.py", "if not self._do(errand) and (now := clock()) < errand.give_up:",
        "if not self._do(errand) and (now := clock()) > errand.give_up:",
        needs=_events("restart", "stop server", "full", "read only"), faults=True,
    ),
    "deferrals are not counted": _at(
        "app/delivery.py", "deferrals=self.deferrals + 1", "deferrals=self.deferrals",
        needs=_tasks("defer"), faults=False,
    ),
    "each deferral begins the wait anew": _at(
        "app/delivery.py", "time.time() if self.since is None else self.since", "time.time()",
        needs=_tasks("defer"), faults=False,
    ),
}  # fmt: skip

#: All of them, by their names.
EVERY: dict[str, Fault] = {**FAULTS, **KNOWN, **OWN}


def plant_by(arguments: Sequence[str]) -> None:
    """Plant the fault that is named behind `--planted`, if one is."""
    for name in [b for a, b in pairwise(arguments) if a == "--planted"]:
        EVERY[name].plant()
