"""Locks that are broken on purpose, in a worker's processes only: what the bench must notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_redislock import Debounce, SingletonTask
from celery_redislock.app.outcomes import Outcome
from celery_redislock.lock.heartbeat import Heartbeat
from celery_redislock.lock.lease import Lease
from celery_redislock.protocol import calls
from celery_redislock.servers.restarts import ServerWatch
from celery_redislock.tasks import body, decisions
from celery_redislock.tasks.facts import Facts
from celery_redislock.tasks.record import Record
from celery_redislock.worker import request, sweeper
from celery_redislock.worker.request import LockRequest
from tests.support.scripts import rewrite
from tests.support.waiting import eventually


def apply(name: str | None) -> None:
    """Break the lock in this process, and in those that it forks."""
    if name is not None:
        {**BREAKAGES, **OF_ROOMS}[name]()


def no_heartbeat() -> None:
    """A lock with an expiry, and nobody who extends it or looks whether it is over."""
    Heartbeat.add = lambda self, lease: None  # type: ignore[method-assign]
    Lease.lost = property(lambda self: self.is_lost)  # type: ignore[assignment,method-assign]


def plain_del() -> None:
    """A release that does not look whose lock it deletes."""
    rewrite("settle", "if is_under(current, opening) then", "if type(current) == 'string' then")


def token_is_task_id() -> None:
    """A token that a redelivered message, and a retry, share with the run that they belong to."""

    def stamp(request_dict: dict[str, Any], *args: Any) -> str:
        _stamp(request_dict, *args)
        token: str = request_dict["id"]
        request_dict["properties"]["redislock"]["token"] = token
        return token

    _stamp, request.stamp = request.stamp, stamp


def release_before_death() -> None:
    """A main process that releases when Celery reports a hard limit, and not when the child is
    gone, which is later: when another one is inside.
    """
    from tests.proofs.faults.tasks import history

    on_timeout = LockRequest.on_timeout

    def releasing(self: Any, soft: bool, timeout: float) -> Any:
        if not soft:
            self.task.app_locks.server.run(calls.settle(self._lease.known_claim))
            eventually(lambda: len(history.events("start")) == 2, "another one is inside")
        return on_timeout(self, soft, timeout)

    LockRequest.on_timeout = releasing  # type: ignore[method-assign]


def skip_on_redelivery() -> None:
    """A copy of a message that meets its own lock is taken for a duplicate."""
    behind = decisions._behind

    def skips(run: Any, outcome: Outcome, busy: Any, *learned: Any) -> Any:
        if outcome is Outcome.REDELIVERED:
            return decisions.TurnedAway(Outcome.SKIPPED, busy.holder)
        return behind(run, outcome, busy, *learned)

    decisions._behind = skips


def no_hold_off() -> None:
    """A server that came back empty gives its locks away before their holders take them again."""
    ServerWatch.admit = lambda self, ttl: None  # type: ignore[method-assign]


def removed_when_published() -> None:
    """A room that forgets a task as soon as it has said that it is next."""
    said = "return {member, state.id, entry,"
    _rewrite_rooms(said, f"take_out(member, true) {said}")


def published_once() -> None:
    """A message that does not come is not published again; those behind it have their chance."""
    _rewrite_rooms("and (has_chance or first_of(member))", "and not first_of(member)")


def newcomers_overtake() -> None:
    """A free lock is anybody's, whoever waits in the room."""
    rewrite("acquire", "if may_go(member) then", "if true then")


def nobody_publishes() -> None:
    """A room into which nobody looks, neither who settles nor who looks after it."""
    _rewrite_rooms("return send(member, state)", "return nil")
    sweeper.Sweeper.sweep = lambda self: None  # type: ignore[method-assign]


def copies_run() -> None:
    """Nobody remembers what has run, and a room may publish a message twice."""
    rewrite("acquire", "if done and not (", "if false and not (")


def one_too_many() -> None:
    """A limit that is a counter, and counts wrong: one more gets in."""
    keys_for = SingletonTask.lock_keys_for

    def more(self: Any, *args: Any) -> Any:
        keys = keys_for(self, *args)
        return keys._replace(slots=(*keys.slots, f"{keys.lock}:more")) if keys.slots else keys

    SingletonTask.lock_keys_for = more  # type: ignore[method-assign]


def pause_is_forgotten() -> None:
    """A release that frees the lock at once, whatever `lock_min_hold` says."""
    body._min_hold = lambda run: 0.0


def old_replaces_new() -> None:
    """A waiting room in which who comes back replaces what came since."""
    init = Facts.__init__

    def begins(self: Any, *args: Any) -> None:
        init(self, *args)
        self.began = False

    Facts.__init__ = begins  # type: ignore[method-assign]


def failed_waits_on() -> None:
    """A task that a time limit ends while it is parked stays in the room."""
    Record.call_off_copies = lambda self: None  # type: ignore[method-assign]


def max_wait_begins_anew() -> None:
    """Each newer call has its own `max_wait`: steady traffic never runs."""
    rewrite("park", "(before and state.first_call or now)", "now")


def quiet_time_is_the_first_calls() -> None:
    """A newer call does not begin the quiet time anew."""
    rewrite("park", "math.min(now + quiet,", "math.min(first_call + quiet,")


def nobody_waits_for_quiet() -> None:
    """A debounced call asks for the lock as others do."""
    Debounce.admits = False


def _rewrite_rooms(old: str, new: str) -> None:
    for script in ("acquire", "settle", "look", "park", "reserve"):
        rewrite(script, old, new)


BREAKAGES: dict[str, Callable[[], None]] = {
    f.__name__: f
    for f in (
        *(no_heartbeat, plain_del, token_is_task_id, release_before_death, skip_on_redelivery),
        no_hold_off,
    )
}
#: Of waiting rooms, limits and pauses.
OF_ROOMS: dict[str, Callable[[], Any]] = {
    f.__name__: f
    for f in (
        *(removed_when_published, published_once, newcomers_overtake, nobody_publishes),
        *(copies_run, one_too_many, pause_is_forgotten, old_replaces_new, failed_waits_on),
        *(max_wait_begins_anew, quiet_time_is_the_first_calls, nobody_waits_for_quiet),
    )
}
