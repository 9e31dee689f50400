"""One run of a locked task: its beginning, its body, and its end.

The lock is taken before Celery's tracer is entered, so that nothing of the task runs without it. It
is released as the body ends: Celery publishes callbacks, chain links and the result after that, and
they may need it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded

from .. import signals
from ..app.delivery import Kept
from ..app.results import proves_nothing
from ..core import holders, notes
from ..core.claims import Acquired, Busy
from ..core.clock import clock
from ..core.holders import Holder, successor_text
from ..core.lease import Heir, Lease
from ..core.log import get_logger
from ..core.right import Right
from ..errors import LockLost, LockUnavailable
from . import turns
from .abort import Abort
from .asking import ask, end_as_replaced, policy_of, resolve
from .attempt import Attempt, hold_time
from .conflict import TaskConflict
from .ends import LEASE
from .settle import End, settle_kept

if TYPE_CHECKING:
    from .task import SingletonTask

logger = get_logger()


class Run:
    """A delivery of a locked task, from the lock's name to its one end.

    Attributes:
        ended: what ended the delivery without its body, or None.
        failure: what the task fails with instead of its body, or None.
        value: what it returns instead of its body's result, if it neither ended nor goes.
        completed: Celery has done all that follows the body.
    """

    # Defaults of the class: one of these is made for each task that runs, and few change them.
    attempt: Attempt | None = None
    ended: BaseException | None = None
    failure: BaseException | None = None
    value: Any = None
    completed = False
    _abort: Abort | None = None
    _retry: Retry | None = None
    _note = ""
    _ran = _succeeded = _released = _settled = False

    def __init__(self, task: SingletonTask, raw: dict[str, Any]) -> None:
        self._task = task
        self._raw = raw
        self._kept = Kept.of(raw)
        self._end = End.CANNOT_RUN

    # -- the beginning --------------------------------------------------------------------

    def begin(self, args: Any, kwargs: Mapping[str, Any], request: Any = None) -> None:
        """Take the lock, or end. What goes wrong is kept, and raised where the body would run, so
        that the task fails as Celery's tasks do.
        """
        try:
            self._task._refuse_if_misconfigured()
            attempt = self.attempt = Attempt(
                self._task, self._raw, self._task.app_locks, args, kwargs, request
            )
            self._ask(attempt)
        except (Ignore, Reject) as exc:
            self.ended = exc
        except Exception as exc:
            self.failure = exc
            if isinstance(exc, SoftTimeLimitExceeded) and self.attempt is not None:
                self._fails_in_room(self.attempt)
        except BaseException:
            self._end = End.COMES_BACK  # the worker ends, and so the broker has the message
            raise

    def _ask(self, attempt: Attempt) -> None:
        options = attempt.options
        if options.on_lock_lost == "abort":
            self._abort = Abort()
        attempt.lease = lease = Lease(
            attempt.locks.store,
            attempt.claim,
            max_hold=options.lock_max_hold,
            listens=options.on_conflict.replaces,
            on_lost=self._on_lost,
            on_extended=self._on_extended,
        )
        kept = attempt.kept
        if kept is not None and kept.mark and kept.mark != attempt.claim.keys.mark:
            # The task's lock is another one by now. What was kept is for those who still have it.
            attempt.kept = attempt.delivery.kept = self._kept = None
            settle_kept(self._task.app, kept, End.CANNOT_RUN)
        attempt.asks_since = clock()
        if isinstance(reply := self._first_answer(attempt), Acquired):
            attempt.goes = True
        else:
            with attempt.as_current():
                self._conflict(attempt, reply)
        if lease.fence:
            attempt.end = End.RAN

    def _first_answer(self, attempt: Attempt) -> Any:
        """What the server says first, or that it could not be asked."""
        try:
            return ask(attempt)
        except LockUnavailable as exc:
            return exc

    def _conflict(self, attempt: Attempt, first: Any) -> None:
        def question() -> Any:
            if isinstance(first, LockUnavailable):
                raise first
            return first

        reply = resolve(attempt, question)
        if isinstance(reply, Busy):
            if attempt.delivery.gave_up:
                self._leave_room(attempt)
            conflict = TaskConflict(attempt, reply)
            conflict.meet(policy_of(attempt))
            self.value = conflict.result
        else:
            attempt.goes = True

    def _fails_in_room(self, attempt: Attempt) -> None:
        if attempt.parking and attempt.acks_failures:
            attempt.mark_done()  # it may have got its turn already, and its message be on its way
        self._leave_room(attempt)

    def _leave_room(self, attempt: Attempt) -> None:
        """It does not wait on in the room: it has given up, or failed as it was put there."""
        claim = attempt.claim
        if attempt.parking or attempt.delivery.gave_up:
            kept = Kept(claim.keys.mark, claim.kept, claim.entry_id)
            attempt.kept = attempt.delivery.kept = self._kept = None
            settle_kept(self._task.app, kept, End.TURNED_AWAY)

    # -- the body -------------------------------------------------------------------------

    def go(self, body: Callable[[], Any], request: Any) -> Any:
        """Run the body, if it is to run, and give the lock back. Where Celery calls the task."""
        if self.failure is not None:
            raise self.failure
        attempt = self.attempt
        assert attempt is not None
        attempt.runs_with(request)
        if not attempt.goes:
            return self.value
        # A soft time limit may be raised at any bytecode, also within the inner `finally`. It
        # is raised once: the outer one completes what it cut short.
        try:
            try:
                lease = attempt.lease
                if lease is None or not lease.fence:
                    return body()
                return self._run_locked(attempt, lease, body)
            finally:
                self._give_back()
        finally:
            self._give_back()

    def _run_locked(self, attempt: Attempt, lease: Lease, body: Callable[[], Any]) -> Any:
        self._say_acquired(attempt, lease)
        request = attempt.request
        setattr(request, LEASE, lease)
        self._ran = True
        try:
            result = self._guarded(attempt, body)
        except Retry as exc:
            # The next attempt's message is out: nothing more is to be expected of this one.
            self._retry, self._note = exc, notes.ENDED
            raise
        except LockLost as exc:
            by = lease.replaced_by
            if by is None or exc.key != attempt.key:
                self._note = self._note_of_failure(attempt)
                raise
            self._note = notes.ENDED
            end_as_replaced(attempt, by)
        except Reject as exc:
            # A requeued message must run again; without requeueing it never will.
            self._note = "" if exc.requeue else notes.ENDED
            raise
        except Ignore:  # also what `self.replace` raises
            self._note = notes.ENDED
            raise
        except Exception:
            self._note = self._note_of_failure(attempt)
            raise
        self._note, self._succeeded = self._note_of_end(attempt, "callbacks", "chain"), True
        return result

    def _note_of_failure(self, attempt: Attempt) -> str:
        return self._note_of_end(attempt, "errbacks") if attempt.acks_failures else ""

    def _note_of_end(self, attempt: Attempt, *follow: str) -> str:
        """What proves that all of the run's end was reached: its result, which Celery stores last.
        Where none is stored we say so ourselves, as Celery returns.
        """
        request = attempt.request
        if not any(getattr(request, name, None) for name in (*follow, "chord")):
            return notes.EXPECTS_RESULT
        return notes.PUBLISHING if proves_nothing(attempt.task, request) else notes.EXPECTS_RESULT

    def _guarded(self, attempt: Attempt, body: Callable[[], Any]) -> Any:
        abort = self._abort
        if abort is None:
            return body()
        try:
            try:
                abort.arm()
                return body()
            finally:
                abort.disarm()
        except LockLost as exc:
            abort.disarm()
            if exc.key is not None:
                raise
            # It was raised from the outside, where no arguments can be given.
            raise LockLost(attempt.key, attempt.as_holder) from None

    def _say_acquired(self, attempt: Attempt, lease: Lease) -> None:
        if signals.lock_acquired.receivers:
            attempt.send(
                signals.lock_acquired,
                signals.AcquiredDetails,
                fence=lease.fence,
                waited=attempt.delivery.waited,
                latency=lease.acquired_at - attempt.asks_since,
            )
        if attempt.delivery.met_lock:
            attempt.emit("acquired", "acquired")
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug(
                "redislock: %s took %s fence=%d", attempt, attempt.key, lease.fence,
                extra=attempt.fields("acquired", fence=lease.fence),
            )  # fmt: skip

    # -- the end --------------------------------------------------------------------------

    def end(self) -> None:
        """Settle all that the delivery holds. Safe to call again."""
        self._give_back()
        if self._settled:
            return
        attempt = self.attempt
        if attempt is None:
            settle_kept(self._task.app, self._kept, self._end)
        else:
            lease = attempt.lease
            # It was taken over with the lock.
            is_taken = lease is not None and lease.fence
            end = self._end if self._end is End.COMES_BACK else attempt.end
            if not is_taken:
                settle_kept(self._task.app, attempt.kept, end)
            if self.completed and self._note == notes.PUBLISHING and attempt.may_have_copies:
                self._confirm(attempt)
        self._settled = True

    def _confirm(self, attempt: Attempt) -> None:
        try:
            attempt.locks.store.done.mark_done(attempt.claim, notes.ENDED)
        except LockUnavailable as exc:
            logger.warning("redislock: a copy of %s may run again: %s", attempt, exc.reason)

    def _give_back(self) -> None:
        attempt = self.attempt
        lease = attempt.lease if attempt is not None else None
        # The body forked, and the fork ends here too?
        if attempt is None or lease is None or lease.given_back or lease.inherited:
            return
        retry = self._retry
        if lease.replaced_by is not None:
            # The next run is not this task's.
            if retry is not None:
                self._call_off(attempt, retry, lease.replaced_by)
            retry = lease.heir = None
        if retry is not None and lease.heir is None and self._holds_for(attempt, retry):
            lease.heir = Heir(holders.held_for_retry, _countdown(retry) + lease.ttl)
        kept, owned = lease.heir is not None, False
        if lease.heir is not None:
            owned = lease.leave_to(lease.heir)
        else:
            settled = lease.settle(
                self._note, attempt.may_have_copies, self._min_hold(attempt, lease, retry)
            )
            if settled is not None:
                owned = settled.ours
                turns.follow(self._task.app, attempt.claim.keys, lease.ttl, settled)
        if lease.fence and self._ran:
            self._say_released(attempt, lease, owned, kept)

    def _holds_for(self, attempt: Attempt, retry: Retry) -> bool:
        """Whether the lock is kept for the retry: if it is to be, and is the retry's lock."""
        options = attempt.options
        # With a scope the retry's message is the heir, if any.
        if options.lock_across_retries != "hold" or options.lock_scope != "running":
            return False
        sig = getattr(retry, "sig", None)
        if sig is None:
            return True
        try:
            keys = self._task.keys_of_call(sig.args or (), sig.kwargs or {})
        except Exception:
            return False  # it will fail, and needs no lock for that
        return keys == attempt.claim.keys

    def _say_released(self, attempt: Attempt, lease: Lease, owned: bool, kept: bool) -> None:
        held = hold_time(lease)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug(
                "redislock: %s gave back %s after %.3f s", attempt, attempt.key, held,
                extra=attempt.fields("released", fence=lease.fence, held=held),
            )  # fmt: skip
        attempt.send(
            signals.lock_released,
            signals.ReleasedDetails,
            fence=lease.fence,
            held=held,
            owned=owned,
            kept_for_retry=kept,
        )

    def _call_off(self, attempt: Attempt, retry: Retry, by: Holder) -> None:
        """The retry is published. It must not run after the newer run, with what is older."""
        text = successor_text(by.task or "", by.task_id or "")
        claim = attempt.claim
        try:
            attempt.locks.store.done.note_replaced(
                claim, claim.attempt + 1, text, _countdown(retry)
            )
        except LockUnavailable as exc:
            logger.warning("redislock: could not call off the retry of %s: %s", attempt, exc.reason)

    def _min_hold(self, attempt: Attempt, lease: Lease, retry: Retry | None) -> float:
        """Seconds since the acquisition for which the lock is kept."""
        options = attempt.options
        after_any = options.lock_min_hold_after == "any" and self._ran and retry is None
        wanted = (self._succeeded or after_any) and lease.replaced_by is None
        return (options.lock_min_hold or 0.0) if wanted else 0.0

    # -- from the heartbeat's thread ------------------------------------------------------

    def _on_lost(self, right: Right) -> None:
        attempt = self.attempt
        assert attempt is not None
        by, reason = right.replaced_by, right.lost_because
        try:
            attempt.send(
                signals.lock_lost,
                signals.LostDetails,
                fence=right.fence,
                reason=reason,
                replaced=by is not None,
            )
            if by is None:
                attempt.emit("lost", "lost", reason=reason)
        finally:
            if self._abort is not None:
                self._abort.fire()

    def _on_extended(self, right: Right, late: float, retaken: bool) -> None:
        attempt = self.attempt
        assert attempt is not None
        attempt.send(signals.lock_extended, signals.ExtendedDetails, late=late)
        if retaken:
            attempt.send(signals.lock_recovered, signals.RecoveredDetails, how="retaken")
            attempt.emit("recovered", "recovered", reason="retaken")


def _countdown(retry: Retry) -> float:
    when = retry.when
    if isinstance(when, datetime):
        now = datetime.now(when.tzinfo or timezone.utc)
        when = (when.replace(tzinfo=now.tzinfo) - now).total_seconds()
    return max(float(when or 0), 0.0)
