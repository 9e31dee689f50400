"""One run of a locked task: its beginning, its body, and its end.

The lock is taken before Celery's tracer is entered, so that nothing of the task runs without it. It
is released as the body ends: after that Celery publishes callbacks and chain links, which may need
the lock, and stores the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from ..app.delivery import Kept
from ..errors import LockUnavailable
from ..protocol import notes
from ..protocol.calls import mark_done
from ..protocol.claims import Acquired, Busy
from ..protocol.clock import clock
from ..protocol.log import get_logger
from .asking import ask, give_up_kept, policy_of, resolve
from .attempt import Attempt
from .body import LockedBody
from .conflict import TaskConflict
from .locked import LockedTask
from .settle import End, settle_kept

logger = get_logger()


class Run:
    """A delivery of a locked task, from the lock's name to its one end.

    Attributes:
        ended: what ended the delivery without its body, or None.
        failure: what the task fails with instead of its body, or None.
        value: what it returns instead of its body's result, if the body is not to run.
        completed: Celery has done all that follows the body.
        is_over: all that the delivery held is settled.
        locks: the app's locks.
    """

    # Class attributes: an instance is made for each task that runs, and few need other values.
    attempt: Attempt | None = None
    ended: BaseException | None = None
    failure: Exception | None = None
    value: Any = None
    completed = is_over = False
    _body: LockedBody | None = None
    _settled = False

    #: What is kept for the message, until an attempt has it.
    _kept: Kept | None = None
    _end = End.CANNOT_RUN

    def __init__(self, task: LockedTask, raw: dict[str, Any]) -> None:
        self._task = task
        self._raw = raw

    @property
    def takes_lock(self) -> bool:
        """Whether the task takes its lock, or fails for what is wrong with its options."""
        try:
            return self._task._takes_lock(is_eager=False)
        except Exception as exc:
            self.failure = exc
            return True

    # -- the beginning --------------------------------------------------------------------

    def begin(self, args: Any, kwargs: Mapping[str, Any], request: Any = None) -> None:
        """Take the lock, or end. An error is kept, and raised where the body would run, so that
        the task fails as Celery's tasks do.
        """
        try:
            self._kept = Kept.of(self._raw)
            if self.failure is not None:
                return
            if self._task._redislock_error is not None:
                self._task._refuse_if_misconfigured()
            attempt = self.attempt = Attempt(
                self._task, self._raw, self._kept, self._task.app_locks, args, kwargs, request
            )
            self._ask(attempt)
        except (Ignore, Reject) as exc:
            self.ended = exc
        except Exception as exc:
            self.failure = exc
            self._unless_it_goes_on(exc)
        except BaseException:
            self._end = End.COMES_BACK  # the worker ends, so the broker keeps the message
            raise

    def _ask(self, attempt: Attempt) -> None:
        self._body = LockedBody(attempt)
        kept = attempt.delivery.kept
        if kept is not None and kept.mark and kept.mark != attempt.claim.keys.mark:
            # The task has another lock by now. What was kept is for those that use the old one.
            give_up_kept(attempt, End.CANNOT_RUN)
        attempt.asks_since = clock()
        try:
            reply: Any = ask(attempt)
        except LockUnavailable as exc:
            reply = exc
        if isinstance(reply, Acquired):
            attempt.goes = True
        else:
            with attempt.as_current():
                self._conflict(attempt, reply)
        if self._body.lease.fence:
            attempt.end = End.RAN

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

    def _unless_it_goes_on(self, failure: Exception) -> None:
        """A time limit ended it as it was put off: its next message may be on its way already."""
        if isinstance(failure, SoftTimeLimitExceeded) and self.attempt is not None:
            try:
                self._fails_beside_a_copy(self.attempt)
            except Exception as exc:
                self._say_bug("tell the copies of", exc)

    def _fails_beside_a_copy(self, attempt: Attempt) -> None:
        if attempt.delivery.copied and attempt.acks_failures:
            attempt.mark_done()
        self._leave_room(attempt)

    def _leave_room(self, attempt: Attempt) -> None:
        """Take it out of the room, if it gave up waiting, or failed while it was put there."""
        claim = attempt.claim
        if attempt.parking or attempt.delivery.gave_up:
            attempt.delivery.kept = Kept(claim.keys.mark, claim.kept, claim.entry_id)
            give_up_kept(attempt, End.TURNED_AWAY)

    # -- the body -------------------------------------------------------------------------

    def go(self, body: Callable[[], Any], request: Any) -> Any:
        """Run the body, if it is to run, and release the lock. Called as Celery calls the task."""
        if self.failure is not None:
            raise self.failure
        attempt, locked = self.attempt, self._body
        assert attempt is not None
        assert locked is not None
        attempt.request = request  # Celery's own
        if not attempt.goes:
            return self.value
        # A soft time limit may be raised at any bytecode, even in the inner `finally`. It is
        # raised once, so the outer `finally` completes what it cut short.
        try:
            try:
                return locked.run(body) if locked.lease.fence else body()
            finally:
                locked.give_back()
        finally:
            if not locked.lease.is_over:
                locked.give_back()

    # -- the end --------------------------------------------------------------------------

    def end(self) -> None:
        """Settle all that the delivery holds. Safe to call again. The task's outcome is known by
        now: no error of ours changes it, and none leaves our tracer.
        """
        try:
            attempt, locked = self.attempt, self._body
            if locked is not None and locked.lease.asked and not locked.lease.is_over:
                locked.give_back()
            if not self._settled:
                self._settle(attempt, locked)
                self._settled = True
            if locked is not None:
                locked.hand_over()
            self.is_over = True
        except SoftTimeLimitExceeded as exc:
            if self.attempt is not None and self.attempt.is_eager:
                raise  # it is the limit of the task that runs this one
            self._say_bug("settle in time", exc)
        except Exception as exc:
            self._settled = True
            self._say_bug("settle", exc)

    def _say_bug(self, what: str, error: Exception) -> None:
        who = self.attempt or f"{self._task.name}[{self._raw.get('id')}]"
        mark = self._kept.mark if self._kept is not None else ""
        key = self.attempt.key if self.attempt is not None else mark
        logger.error("redislock: could not %s %s under %r", what, who, key, exc_info=error)

    def _settle(self, attempt: Attempt | None, locked: LockedBody | None) -> None:
        if attempt is None:
            settle_kept(self._task.app, self._kept, self._end)
        elif locked is None or not locked.lease.fence:  # else it was taken over with the lock
            end = self._end if self._end is End.COMES_BACK else attempt.end
            settle_kept(self._task.app, attempt.delivery.kept, end)
        elif self.completed and locked.note == notes.PUBLISHING and attempt.may_have_copies:
            locked.note = notes.ENDED  # also for a release that is repeated
            self._confirm(attempt)

    def _confirm(self, attempt: Attempt) -> None:
        try:
            done = mark_done(attempt.claim, attempt.note(notes.ENDED))
            attempt.locks.store.ask(done, once=True)
        except LockUnavailable as exc:
            logger.warning(
                "redislock: a redelivered copy of %s may run again, as its end was not noted: %s",
                attempt,
                exc.reason,
            )
