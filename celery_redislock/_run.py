"""One run of a locked task, where it runs: acquire, body, release, and what a duplicate ends in.

Everything happens inside the task's `__call__`: Celery publishes callbacks, chain links and the
result after it, and `after_return` is not called for a retry.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final, NoReturn

from celery import states
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded

from . import _holder, signals
from ._abort import Abort
from ._clock import clock
from ._delivery import Delivery
from ._events import OF_CONFLICT, channel, emit
from ._holder import Holder, successor_text
from ._lock import Lease
from ._log import fields, get_logger
from ._reserve import free
from ._room import (
    Entry,
    end_replaced,
    hand_over,
    ignores_result,
    outside_of_tasks,
    store_skipped,
)
from ._store import Acquired, Busy, Claim, Done, Full, Older, Parked, to_ms
from .errors import LockConflict, LockLost, LockUnavailable, TaskReplaced, TaskSkipped
from .policies import NO_RESULT, Defer, Policy, Queue, Raise

if TYPE_CHECKING:
    from ._app import AppLocks
    from ._task import SingletonTask

logger = get_logger()
#: One of its own, so that it can be silenced where many duplicates are the order of the day.
streak_logger = get_logger("celery_redislock.streak")

#: As many duplicates turned away in a row are warned of, and then twice as many, and so on.
STREAK: Final = 3
#: Seconds that a retry waits in place for its earlier attempt, which is just ending.
EARLIER: Final = 1.0
#: Seconds for which a finished attempt's result may still be on its way to the backend.
RESULT_DUE: Final = 5.0
#: Where the request keeps the lease while the body runs.
LEASE: Final = "_redislock_lease"


class Skipped(Ignore):
    """Ends a skipped task, whose result is stored, without another. Seen by `LockRequest`.

    Its only argument is that result, a `TaskSkipped`.
    """


class Deferred(Ignore):
    """Ends a delivery whose task was published again."""


class Waiting(Ignore):
    """Ends a delivery whose task was put into a waiting room."""


class AlreadyDone(Ignore):
    """Ends a copy of a message whose task has run."""


class Unlocked:
    """What `self.lock` is where no lock was taken: nothing to lose, and nothing to fence with."""

    key = None
    token = None
    ttl = 0.0
    fence = 0
    lost = False

    def ensure(self) -> None:
        """Nothing was locked, so nothing is lost."""

    def __repr__(self) -> str:
        return "<no lock>"


UNLOCKED: Final = Unlocked()


class Run:
    """One delivery of a locked task, from the lock's name to the release.

    Raises:
        TypeError: the arguments do not fit the task.
        Exception: what a `lock_key` callable raises.
    """

    # Defaults of the class: one of these is made for each task that runs, and few change them.
    _retry: Retry | None = None
    #: For `Store.release`: "" not run to its end, "1" it leaves a result, "0" it leaves none.
    _done = ""
    _ran = _succeeded = _left_room = _parking = False
    _asks_since = 0.0

    def __init__(
        self,
        task: SingletonTask,
        request: Any,
        locks: AppLocks,
        body: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        self.task = task
        self.request = request
        self.options = options = task.lock_options
        self.delivery = delivery = Delivery.take_from(request)
        self._body = body
        self._args = args
        self._kwargs = kwargs
        self._abort = Abort() if options.on_lock_lost == "abort" else None
        if not request.is_eager:
            channel.wanted = delivery.events
        self.lease = Lease(
            locks.store,
            self._claim(locks),
            max_hold=options.lock_max_hold,
            listens=options.on_conflict.replaces,
            on_lost=self._on_lost,
            on_extended=self._on_extended,
        )
        self.key = self.lease.key
        # Another copy of the message may be about: the broker has it still, or had for as long as
        # a visibility timeout, of which none is shorter than a second; or it did not hear that
        # what this one was deferred from is acknowledged.
        self._may_have_copies = not request.is_eager and bool(
            task.acks_late
            or task.acks_after_body
            or delivery.redelivered
            or delivery.deferrals
            or delivery.age >= 1.0
        )

    def __call__(self) -> Any:
        # A soft time limit may be raised at any bytecode, also within the inner `finally`. It
        # is raised once: the outer one completes what it cut short.
        try:
            try:
                return self._run()
            except SoftTimeLimitExceeded:
                if self._parking:
                    # It has failed: what may stand in the room is not to run.
                    self._hand_over(take_out=self.lease.claim.entry_id)
                raise
            finally:
                self._give_back()
        finally:
            self._give_back()

    # -- acquire and run ------------------------------------------------------------------

    def _claim(self, locks: AppLocks) -> Claim:
        task, request, token = self.task, self.request, self.delivery.token
        ttl = self.options.lock_ttl
        task_id, attempt = request.id or "", request.retries or 0
        nesting = request.replaced_task_nesting or 0
        value = _holder.encode(
            token,
            ttl_ms=to_ms(ttl),
            task=task.name,
            task_id=task_id,
            attempt=attempt,
            nesting=nesting,
            node=request.hostname,
            received=self.delivery.first_received,
        )
        keys = task.lock_keys_for(self._args, self._kwargs)
        reserved = self.delivery.reservation
        # Another lock: the sender's code is not this worker's.
        kept = reserved.token if reserved is not None and reserved.mark == keys.mark else ""
        return Claim(keys, token, ttl, value, task_id, attempt, nesting, locks.done_ttl, kept)

    def _run(self) -> Any:
        reserved = self.delivery.reservation
        if reserved is not None and not self.lease.claim.reservation:
            free(self.task.app, reserved, self.options.lock_ttl)
        self._asks_since = clock()
        reply = self.settle(self._ask)
        if isinstance(reply, Busy):
            if self.delivery.gave_up:
                self.leave_room()
            return self._policy().act(TaskConflict(self, reply))
        return self.run_body() if reply else self.call_body()

    def _ask(self) -> Acquired | Busy | Done:
        """Ask for the lock. If a conflict can end in one way only, it ends with the answer."""
        policy = self._policy()
        if not policy.turns_away:
            return self.lease.take()
        is_noted = self._may_have_copies and (
            not isinstance(policy, Raise) or self._acks_failures()
        )
        return self.lease.take(turned_away=True, noted=is_noted)

    def settle(self, ask: Callable[[], Acquired | Busy | Done]) -> Acquired | Busy | None:
        """Ask for the lock, and deal with all but an ordinary conflict.

        Args:
            ask: asks once, or waits.

        Returns:
            `Acquired`, or `Busy` with somebody else, or None: the task is to run without its lock.

        Raises:
            Deferred: another copy of this message, or its earlier attempt, has the lock.
            AlreadyDone: another copy has run.
            LockUnavailable: the server could not be asked, and the task says to raise that.
        """
        try:
            reply = ask()
            while not isinstance(reply, Acquired):
                if isinstance(reply, Done):
                    reply = self._unless_done(reply)
                elif reply.relation not in ("own", "earlier"):
                    return reply
                elif self.request.is_eager:
                    # An eager retry runs inside its earlier attempt, under that one's lock.
                    return None
                elif reply.relation == "own":
                    self._redelivered(reply)
                else:
                    reply = self._await_earlier()
        except LockUnavailable as exc:
            self._unless_unlocked(exc)
            return None
        return reply

    def _policy(self) -> Policy:
        policy = self.options.on_conflict
        while self.request.is_eager and isinstance(policy, Defer | Queue):
            policy = policy.then  # nobody would run what is published
        return policy

    def run_body(self) -> Any:
        """Run the task's own code. The lock is ours."""
        if signals.lock_acquired.receivers:
            self._send(
                signals.lock_acquired,
                signals.AcquiredDetails,
                fence=self.lease.fence,
                waited=self.delivery.waited,
                latency=clock() - self._asks_since,
            )
        if self.delivery.met_lock:
            self._emit("acquired", "acquired")
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug(
                "redislock: %s took %s fence=%d", self, self.key, self.lease.fence,
                extra=self._fields("acquired", fence=self.lease.fence),
            )  # fmt: skip
        if self.lease.room_waits:
            self._hand_over()
        setattr(self.request, LEASE, self.lease)
        self._ran = True
        try:
            result = self._guarded_body()
        except Retry as exc:
            # The next attempt's message is out: nothing more is to be expected of this one.
            self._retry, self._done = exc, "0"
            raise
        except LockLost as exc:
            by = self.lease.replaced_by
            if by is None or exc.key != self.key:
                self._done = "1" if self._acks_failures() else ""
                raise
            self._done = "0"
            self._end_as_replaced(by)
        except Reject as exc:
            # A requeued message must run again; without requeueing it never will.
            self._done = "" if exc.requeue else "0"
            raise
        except Ignore:  # also what `self.replace` raises
            self._done = "0"
            raise
        except Exception:
            self._done = "1" if self._acks_failures() else ""
            raise
        self._done, self._succeeded = "1", True
        return result

    def _guarded_body(self) -> Any:
        abort = self._abort
        if abort is None:
            return self.call_body()
        try:
            try:
                abort.arm()
                return self.call_body()
            finally:
                abort.disarm()
        except LockLost as exc:
            abort.disarm()
            if exc.key is not None:
                raise
            # It was raised from the outside, where no arguments can be given.
            raise LockLost(self.key, self._as_holder()) from None

    # -- release --------------------------------------------------------------------------

    def _give_back(self) -> None:
        lease = self.lease
        if lease.given_back or lease.inherited:  # the body forked, and the fork ends here too
            return
        retry = self._retry
        if lease.replaced_by is not None:
            # The next run is not this task's.
            if retry is not None:
                self._call_off(retry, lease.replaced_by)
            retry = lease.heir = None
        kept = lease.heir is not None or (
            retry is not None
            and self.options.lock_across_retries == "hold"
            and self.options.lock_scope == "running"  # else its message is the heir, if any
        )
        if lease.heir is not None:
            owned = lease.leave_to(lease.heir)
        elif retry is not None and kept:
            owned = lease.hold(_countdown(retry))
        else:
            owned = lease.release(self._done, self._may_have_copies, self._min_hold(retry))
        if lease.room_waits:
            self._hand_over()
        if not lease.fence:
            return
        held = clock() - lease.acquired_at
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug(
                "redislock: %s gave back %s after %.3f s", self, self.key, held,
                extra=self._fields("released", fence=lease.fence, held=held),
            )  # fmt: skip
        self._send(
            signals.lock_released,
            signals.ReleasedDetails,
            fence=lease.fence,
            held=held,
            owned=owned,
            kept_for_retry=kept,
        )

    def _call_off(self, retry: Retry, by: Holder) -> None:
        """The retry is published. It must not run after the newer run, with what is older."""
        text = successor_text(by.task or "", by.task_id or "")
        claim = self.lease.claim
        try:
            self.lease.store.note_replaced(claim, claim.attempt + 1, text, _countdown(retry))
        except LockUnavailable as exc:
            logger.warning("redislock: could not call off the retry of %s: %s", self, exc.reason)

    def _min_hold(self, retry: Retry | None) -> float:
        """Seconds since the acquisition for which the lock is to stand."""
        after_any = self.options.lock_min_hold_after == "any" and self._ran and retry is None
        wanted = (self._succeeded or after_any) and self.lease.replaced_by is None
        return (self.options.lock_min_hold or 0.0) if wanted else 0.0

    def _hand_over(self, take_out: str = "") -> None:
        claim = self.lease.claim
        hand_over(self.task.app, claim.keys, claim.ttl, take_out)

    def _on_lost(self, lease: Lease) -> None:
        by = lease.replaced_by
        reason = lease.lost_because
        try:
            self._send(
                signals.lock_lost,
                signals.LostDetails,
                fence=lease.fence,
                reason=reason,
                replaced=by is not None,
            )
            if by is None:
                self._emit("lost", "lost", reason=reason)
        finally:
            if self._abort is not None:
                self._abort.fire()

    def _on_extended(self, lease: Lease, late: float, retaken: bool) -> None:
        self._send(signals.lock_extended, signals.ExtendedDetails, late=late)
        if retaken:
            self._send(signals.lock_recovered, signals.RecoveredDetails, how="retaken")
            self._emit("recovered", "recovered", reason="retaken")

    # -- what is neither ours nor an ordinary conflict ------------------------------------

    def _redelivered(self, busy: Busy) -> None:
        """Another copy of the message that the holder is running. Not a duplicate: if the
        holder dies, this copy is all that is left of the task.
        """
        self.delivery.redelivered = True
        self._defer_behind("redelivered", busy)

    def _await_earlier(self) -> Acquired | Busy | Done:
        """A retry that came before its earlier attempt, which published it, has ended."""
        reply = self.lease.wait(min(EARLIER, self.lease.ttl / 3))
        if isinstance(reply, Busy) and reply.relation == "earlier":
            self._defer_behind("retried early", reply)
        return reply

    def _defer_behind(self, outcome: str, busy: Busy) -> None:
        """Look again later whether this task's other run, which has the lock, has ended."""
        countdown = self._backoff(self.delivery.deferrals, self.lease.ttl / 3)
        self.conflict_ended(outcome, busy.holder, countdown)
        # One chain for all the copies that meet this holder: one of them goes on.
        self.republish(countdown, chain=busy.token)

    def _backoff(self, tries: int, most: float) -> float:
        """Seconds: 1, 2, 4 and so on with each try, `most` at most."""
        visible = self.task.app_locks.visibility_timeout
        if visible is not None:
            # A message that sleeps for longer is delivered a second time.
            most = min(most, visible / 2)
        return min(2.0 ** min(tries, 10), most)

    def _unless_done(self, done: Done) -> Acquired | Busy | Done:
        """End a copy of a message whose task has run; ask again if it is not one, or has not
        quite.
        """
        if done.replaced_by is not None:
            self._end_as_replaced(done.replaced_by)
        # Somebody may send a task again under the same id. A copy was about before it ended, itself
        # or as what it was deferred from.
        age = max(self.delivery.age, self.delivery.waited)
        if not self.delivery.redelivered and age < done.age:
            return self.lease.take(again=True)
        # What it is deferred to must be known for a copy too, though it is received later.
        self.delivery.redelivered = True
        if not done.expects_result or self._has_result():
            self.leave_room()
            self.conflict_ended("already done", None)
            raise AlreadyDone
        if done.age < RESULT_DUE:
            self.republish(1.0)
        # It ended, and died before Celery stored what it ended in.
        logger.warning("redislock: %s ended without a result; it runs again", self)
        return self.lease.take(again=True)

    def _has_result(self) -> bool:
        # Here, because it is seldom asked, and senders need no backends.
        from celery.backends.base import DisabledBackend
        from celery.backends.rpc import RPCBackend

        backend = self.task.backend
        if isinstance(backend, DisabledBackend | RPCBackend) or ignores_result(
            self.task, self.request
        ):
            return True  # none can be asked for
        # Not RETRY: that is what an earlier attempt ended in.
        return backend.get_state(self.request.id) in states.READY_STATES

    def _unless_unlocked(self, error: LockUnavailable) -> None:
        """The lock server cannot be asked: return if the task is to run all the same."""
        choice = self.options.on_redis_error
        if choice == "run":
            logger.error(
                "redislock: %s runs WITHOUT its lock: %s", self, error,
                extra=self._fields("run unlocked", reason=error.reason),
            )  # fmt: skip
            return
        if choice == "raise" or self.request.is_eager:
            raise error
        countdown = self._backoff(self.delivery.outages, 60.0)
        logger.error(
            "redislock: %s is deferred for %.1f s: %s", self, countdown, error,
            extra=self._fields("unavailable", countdown=countdown, reason=error.reason),
        )  # fmt: skip
        self._emit("deferred", "unavailable", countdown=countdown)
        self.republish(countdown, cause=error)

    def call_body(self) -> Any:
        """Run the task's own code, with or without a lock."""
        return self._body(*self._args, **self._kwargs)

    # -- the ends of a duplicate ----------------------------------------------------------

    def republish(
        self, countdown: float, *, chain: str | None = None, cause: LockUnavailable | None = None
    ) -> NoReturn:
        """Publish the task again as it came: same id, same everything.

        Args:
            countdown: seconds until it is run; up to a quarter is added at random.
            chain: which chain of deferrals it belongs to; None for the delivery's own.
            cause: why, if that is that the lock server does not answer.

        Raises:
            Deferred: it was published, now or by another copy of this message.
            Reject: it was not, and the broker still has the message.
        """
        chain = chain or self.delivery.chain or self.delivery.token
        if cause is None and self._published_by_a_copy(chain):
            logger.info("redislock: %s was deferred by another copy of its message", self)
            raise Deferred
        countdown *= random.uniform(1.0, 1.25)
        try:
            self._publish(countdown, self.delivery.next_header(chain, outage=cause is not None))
        except SoftTimeLimitExceeded:
            raise
        except Exception as exc:
            logger.exception("redislock: %s could not be published again", self)
            if self.task.acks_late:
                raise Reject(exc, requeue=True) from exc
            raise (cause or exc) from exc
        if cause is None:
            # After publishing: noted before, a crash in between would lose the task.
            with contextlib.suppress(LockUnavailable):  # there may be one copy more
                step = self.delivery.next_step(chain)
                self.lease.store.note_deferral(self.lease.claim, chain, step, countdown)
        raise Deferred

    def _published_by_a_copy(self, chain: str) -> bool:
        step = self.delivery.next_step(chain)
        if chain == self.delivery.token:
            return False  # this very delivery begins the chain
        try:
            return self.lease.store.deferred_step(self.lease.claim, chain) >= step
        except LockUnavailable:
            return False  # one copy too many is better than none

    def _publish(self, countdown: float, header: dict[str, Any]) -> None:
        options = self._message_options(header)
        with outside_of_tasks():
            self.task.app.send_task(
                self.task.name,
                self.request.args,
                self.request.kwargs,
                countdown=countdown,
                add_to_parent=False,
                **options,
            )

    def _message_options(self, header: dict[str, Any]) -> dict[str, Any]:
        """What it takes to publish the task as it came: id, callbacks, expiry, route and all."""
        request = self.request
        options = dict(self.task.signature_from_request(request).options)
        for name in ("redelivered", "is_eager"):  # of the delivery, not of the message
            options.pop(name, None)
        if "ignore_result" in request.__dict__:  # Celery 5.5 forgets it
            options["ignore_result"] = request.ignore_result
        options["headers"] = {**(options.get("headers") or {}), **header}
        return options

    # -- the waiting room -----------------------------------------------------------------

    def park(
        self,
        busy: Busy,
        limit: int | None,
        give_up: float | None,
        newest: bool,
        grace: float | None = None,
    ) -> Acquired | Busy | Full | None:
        """Put the task into the waiting room, unless the lock is free by now.

        Returns:
            As `settle`; or `Full`.

        Raises:
            Waiting: it waits in the room.
        """
        task, request, delivery = self.task, self.request, self.delivery
        options = self._message_options(delivery.parked_header())
        entry = Entry.of(task, request.args, request.kwargs, options).dump()
        # From here on it may be published from the room, also if the answer is lost, or is that
        # it need not wait.
        self._parking = self.delivery.copied = self._may_have_copies = True
        try:
            reply = self.lease.store.park(
                self.lease.claim,
                entry,
                kind=re.sub("[|@]", "_", task.name) if newest else "",
                received=delivery.first_received,
                limit=limit,
                give_up=give_up,
                in_front=delivery.parked or grace is not None,
                replace=None if grace is None else (successor_text(task.name, request.id), grace),
                began=self._has_begun(),
            )
        except LockUnavailable as exc:
            self._unless_unlocked(exc)
            return None
        if not isinstance(reply, Parked):
            self._parking = False
        if isinstance(reply, Full):
            return reply
        if isinstance(reply, Older):
            self._end_as_replaced(reply.holder or Holder(task=task.name, task_id=reply.task_id))
        if isinstance(reply, Parked):
            outcome = "replacing" if grace is not None else "coalesced" if newest else "queued"
            self.conflict_ended(outcome, busy.holder)
        for entry_id, replaced in reply.replaced.items():
            self._end_replaced(entry_id, replaced)
        if isinstance(reply, Parked):
            raise Waiting
        return self.settle(self.lease.take)

    def _has_begun(self) -> bool:
        """Whether the task may have run before: a retry, or a copy of a message whose run died.
        What came since is newer.
        """
        request = self.request
        return bool(request.retries or request.replaced_task_nesting or self.delivery.redelivered)

    def leave_room(self) -> None:
        """End the task's wait in the room, if it came from there: it will not take the lock for
        which it has its turn.
        """
        if self.delivery.parked and not self._left_room:
            self._left_room = True
            self._hand_over(take_out=self.lease.claim.entry_id)

    def _end_replaced(self, entry_id: str, entry: str) -> None:
        claim = self.lease.claim
        end_replaced(self.task.app, claim.keys, claim.ttl, entry_id, entry, claim.task_id)

    # -- skipped, and what is said of it --------------------------------------------------

    def skip(self, holder: Holder | None, result: Any, streak: int | None = None) -> Any:
        """End without running. See `turned_away`."""
        if not isinstance(result, type(NO_RESULT)):
            self.turned_away("skipped with a result", holder, streak)
            return result
        self.turned_away("skipped", holder, streak)
        self._store_end(error := TaskSkipped(self.key, holder))
        raise Skipped(error)

    def _end_as_replaced(self, by: Holder) -> NoReturn:
        """End in favour of a newer run."""
        self.conflict_ended("replaced", by)
        self._store_end(error := TaskReplaced(self.key, by))
        if not self._ran:
            self.mark_done()
        raise Skipped(error)

    def _store_end(self, error: TaskSkipped) -> None:
        if not self.request.is_eager:
            store_skipped(self.task, self.request, error)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Say that the task waits in its pool slot."""
        self._send(signals.lock_waiting, signals.WaitingDetails, waits=True)
        try:
            yield
        finally:
            self._send(signals.lock_waiting, signals.WaitingDetails, waits=False)

    def mark_done(self) -> None:
        """Note that the task has ended without a run, for other copies of its message: one that
        finds the lock free must not run instead.
        """
        if self._may_have_copies:
            with contextlib.suppress(LockUnavailable):  # a copy may run
                self.lease.store.mark_done(self.lease.claim)

    def turned_away(self, outcome: str, holder: Holder | None, streak: int | None) -> None:
        """Say that a conflict ended without a run. A row of those, without a run between, may mean
        that the holder hangs: that is warned of.

        Args:
            outcome: for people.
            holder: who has the lock.
            streak: the how many-th in a row it is, if the server has counted and noted it; else
                None.
        """
        if streak is None:
            if outcome != "raised" or self._acks_failures():
                # Before the result is stored: until it is, a copy runs if nobody stores one.
                self.mark_done()
            streak = 0
            with contextlib.suppress(LockUnavailable):  # it is turned away all the same
                streak = self.lease.store.count_streak(self.lease.claim.keys, self.lease.ttl)
        self.leave_room()  # what it ended in is noted: whatever comes from there now knows
        self.conflict_ended(outcome, holder, streak=streak)
        if _is_remarkable(streak):
            streak_logger.warning(
                "redislock: %d duplicates in a row were turned away, %s is the last:"
                " %s is held by %s",
                streak, self, self.key, holder or "nobody now",
                extra=self._fields("streak", holder=holder, streak=streak),
            )  # fmt: skip

    def conflict_ended(
        self,
        outcome: str,
        holder: Holder | None,
        countdown: float | None = None,
        streak: int = 0,
    ) -> None:
        """Say how a conflict ended: one line, one signal, and an event if the worker sends them."""
        if logger.isEnabledFor(logging.INFO):
            after = f" for {countdown:.1f} s" if countdown is not None else ""
            by = f"held by {holder}" if holder else "held by nobody now"
            extra = self._fields(outcome, holder=holder, countdown=countdown, streak=streak or None)
            text = "redislock: %s %s%s: %s is %s"
            logger.info(text, self, outcome, after, self.key, by, extra=extra)
        if outcome in OF_CONFLICT:
            more = {"holder": holder, "countdown": countdown, "streak": streak or None}
            self._emit(OF_CONFLICT[outcome], outcome, **more)
        self._send(
            signals.lock_conflict,
            signals.ConflictDetails,
            holder=holder,
            outcome=outcome,
            countdown=countdown,
            streak=streak,
        )

    def _acks_failures(self) -> bool:
        """Whether a failure ends the message. A rejected one may come back, to run again."""
        flag = getattr(self.task, "acks_on_failure", None)
        if flag is None:
            flag = self.task.acks_on_failure_or_timeout
        return bool(flag) or not self.task.acks_late

    def _as_holder(self) -> Holder:
        request = self.request
        return Holder(
            task=self.task.name,
            task_id=request.id,
            attempt=request.retries or 0,
            node=request.hostname,
            fence=self.lease.fence,
        )

    @property
    def _who(self) -> dict[str, Any]:
        """Of which run a log line, an event or a signal is."""
        request = self.request
        return {"task": self.task.name, "task_id": request.id, "attempt": request.retries or 0}

    def _fields(self, outcome: str, **more: Any) -> dict[str, Any]:
        return fields(outcome, self.key, **self._who, **more)

    def _emit(self, kind: str, outcome: str, **more: Any) -> None:
        """Send an event, if the worker sends them."""
        if channel.wanted and not self.request.is_eager:
            emit(kind, outcome, self.key, **self._who, **more)

    def _send(self, signal: Any, details: type[Any], **fields: Any) -> None:
        if not signal.receivers:
            return
        signal.send(sender=self.task, details=details(key=self.key, **self._who, **fields))

    def __str__(self) -> str:
        attempt = f" attempt {self.request.retries}" if self.request.retries else ""
        return f"{self.task.name}[{self.request.id}]{attempt}"


def run_unlocked(
    task: SingletonTask, body: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Run a task whose lock stands until it starts."""
    reservation = Delivery.take_from(task.request).reservation
    if reservation is not None:
        free(task.app, reservation, task.lock_options.lock_ttl)
    return body(*args, **kwargs)


@dataclasses.dataclass(eq=False, repr=False)
class TaskConflict:
    """The `policies.Conflict` of a task in a worker."""

    _run: Run
    _busy: Busy
    _unlocked: bool = False

    @property
    def key(self) -> str:
        return self._run.key

    @property
    def holder(self) -> Holder | None:
        return self._busy.holder

    @property
    def remaining(self) -> float:
        return self._busy.remaining

    @property
    def deferrals(self) -> int:
        return self._run.delivery.deferrals

    @property
    def waited(self) -> float:
        return self._run.delivery.waited

    def skip(self, result: Any = NO_RESULT) -> Any:
        return self._run.skip(self.holder, result, self._busy.streak)

    def defer(self, countdown: float) -> Any:
        if self._run.request.is_eager:
            return self.skip()  # nobody would run what is published
        self._run.leave_room()
        self._run.conflict_ended("deferred", self.holder, countdown)
        return self._run.republish(countdown)

    def wait(self, timeout: float | None) -> bool:
        if self._run.delivery.since is None:
            self._run.delivery.since = time.time()
        run = self._run
        with run.waiting():
            reply = run.settle(lambda: run.lease.wait(timeout, for_queued=run.request.is_eager))
        if isinstance(reply, Busy):
            self._busy = reply
            if not reply.is_for_queued or run.delivery.gave_up:
                return False
            # Who has it needs a pool slot, perhaps this one.
            return self._park(None, timeout, newest=False)
        if reply is None:
            self._unlocked = True
            return True
        self._run.conflict_ended("waited", self.holder)
        return True

    def park(
        self, *, limit: int | None = None, max_wait: float | None = None, newest: bool = False
    ) -> bool:
        if self._run.request.is_eager:
            self.skip()  # nobody would run what is published
        if self._run.delivery.since is None:
            self._run.delivery.since = time.time()
        give_up = None if max_wait is None else max(max_wait - self.waited, 0.001)
        return self._park(limit, give_up, newest)

    def replace(self, grace: float) -> bool:
        request = self._run.request
        if request.is_eager or request.retries or request.replaced_task_nesting:
            # Nobody would run what is published; or the holder started after this task did.
            self.skip()
        if self._run.delivery.since is None:
            self._run.delivery.since = time.time()
        return self._park(None, None, newest=True, grace=grace)

    def _park(
        self,
        limit: int | None,
        give_up: float | None,
        newest: bool,
        grace: float | None = None,
    ) -> bool:
        while True:
            reply = self._run.park(self._busy, limit, give_up, newest, grace)
            if isinstance(reply, Busy):
                self._busy = reply  # it was free for a moment
                continue
            self._unlocked = reply is None
            return not isinstance(reply, Full)

    def run(self) -> Any:
        if self._unlocked:
            return self._run.call_body()
        if not self._run.lease.fence:
            raise RuntimeError("a policy must not run the task before wait() has returned True")
        return self._run.run_body()

    def fail(self) -> Any:
        self._run.turned_away("raised", self.holder, self._busy.streak)
        raise LockConflict(self.key, self.holder)


def _is_remarkable(streak: int) -> bool:
    """Whether it is `STREAK`, twice that, four times, and so on."""
    doublings, rest = divmod(streak, STREAK)
    return rest == 0 and doublings.bit_count() == 1


def _countdown(retry: Retry) -> float:
    when = retry.when
    if isinstance(when, datetime):
        now = datetime.now(when.tzinfo or timezone.utc)
        when = (when.replace(tzinfo=now.tzinfo) - now).total_seconds()
    return max(float(when or 0), 0.0)
