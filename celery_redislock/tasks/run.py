"""One run of a locked task, from the request for the lock to its end.

The lock is acquired before Celery's tracer is entered, so that nothing of the task runs without it.
It is released as the body ends: after that Celery publishes callbacks and chain links, which may
need the lock, and stores the result.

The functions around the body have a local `__tracebackhide__`: tools such as Sentry and pytest
leave their frames out. Else all errors would begin with these, by which they are grouped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

from celery.exceptions import SoftTimeLimitExceeded

from ..app.delivery import is_from_newer, take_header
from ..app.housekeeper import housekeeper
from ..app.outcomes import Outcome, is_heard
from ..app.settings import AppLocks
from ..errors import LockUnavailable
from ..lock.lease import Heir, Lease
from ..protocol import notes, past
from ..protocol.calls import mark_done
from ..protocol.claims import Busy, Full, Settled
from ..protocol.clock import clock
from ..protocol.log import get_logger
from ..verbs import Decision
from . import body as bodies
from . import lost, room
from .abort import Abort
from .asking import Asking
from .conflict import TaskConflict, decide
from .current import lock_of_body
from .decisions import FIRST, GO, replaced_before
from .deeds import carry_out, end_replaced, give_back
from .ends import LEASE
from .facts import Facts
from .limits import only_logged, surely
from .record import BEGUN, NOT_RUN, RUNS, Ends, Fails, Returns, Runs
from .settle import End, settle_kept

logger = get_logger()


def _raise(error: Exception) -> NoReturn:
    """Raise an error of ours in a frame that tools show: they group errors by frames."""
    raise error


class Run(Asking):
    """The run of a delivery, from its facts to its end."""

    _abort: Abort | None = None
    #: The server's reply to the release, until the next message has been published.
    _following: Settled | None = None
    _completed = _is_settled = False

    def live(
        self,
        args: Any,
        kwargs: Mapping[str, Any],
        trace: Callable[[Run], Any],
        request: Any = None,
    ) -> Any:
        """The life of the delivery, in the order in which it happens.

        Args:
            args: the call's arguments.
            kwargs: its keyword arguments.
            trace: Celery's part, which calls `call` where the body is to run.
            request: the request of an eager run.
        """
        __tracebackhide__ = True

        def life() -> Any:
            __tracebackhide__ = True
            try:
                locks = self._task.app_locks
                if locks.enabled and is_from_newer(self._raw):
                    self.course = give_back(self._task, self._raw, args, kwargs)
                elif not self._task._takes_lock(locks, is_eager=request is not None):
                    self._go_without(args, kwargs)
                else:
                    self._learn_facts(locks, args, kwargs, request)
                    answer = replaced_before(self) or (
                        self.admit() if self.facts.policy.admits else self.understand(FIRST)
                    )
                    if answer is GO:
                        self.course = RUNS
                    else:
                        with self.as_current():
                            if not isinstance(answer, Decision):
                                answer = self._meet(answer)
                            self.course = carry_out(self, answer)
            except Exception as exc:
                try:
                    self.end_by(exc)
                except SoftTimeLimitExceeded as limit:
                    self.course = Fails(limit)
            except BaseException as exc:
                self.course = Ends(exc, End.COMES_BACK)  # the worker ends
                raise
            result = trace(self)
            self._completed = True
            return result

        return surely(life, self._settle, self)

    # -- facts ----------------------------------------------------------------------------

    def _learn_facts(
        self, locks: AppLocks, args: Any, kwargs: Mapping[str, Any], request: Any
    ) -> None:
        task = self._task
        if task._redislock_error is not None:
            task._refuse_if_misconfigured()
        self._request = request
        facts = Facts(task, locks, self._raw, self.kept, args, kwargs, request is not None)
        self.facts, self.delivery = facts, facts.delivery
        self.may_have_copies = facts.may_have_copies
        options = facts.options
        if options.on_lock_lost == "abort":
            self._abort = Abort()
        self.lease = Lease(
            locks.server,
            facts.claim,
            max_hold=options.lock_max_hold,
            listens=options.on_conflict.replaces,
            on_lost=self._on_lost,
            on_extended=self._on_extended,
        )
        if self.kept is not None and self.kept.lock_id != facts.claim.keys.lock_id:
            # The task has another lock by now: free the old one for the tasks that still use it.
            self.give_up_kept()
            self.learn(parked=False)

    def _go_without(self, args: Any, kwargs: Any) -> None:
        """Take no lock: locks are switched off, or the task is unique only until it starts."""
        self.course = Runs(End.UNLOCKED)
        if self.kept is None:
            self._clear_original(args, kwargs)
        with only_logged("redislock: could not free what is kept for %s", self):
            self.give_up_kept()
        take_header(self._raw)

    def _clear_original(self, args: Any, kwargs: Any) -> None:
        """Delete the lock that another package took when the message was sent, if it may have."""
        clear, course = self._task._redislock_clear, self.course
        if clear is None or course is None or course.end.passes_on:
            return
        if self.facts is not None and (self.facts.claim.kept or self.facts.is_eager):
            return
        with only_logged("redislock: could not look for what another package left for %s", self):
            clear(args, kwargs, self._raw.get("id") or "")

    # -- a conflict -----------------------------------------------------------------------

    def _meet(self, busy: Busy | Full) -> Decision:
        """What the policy decides. A task that gave up waiting leaves the room first."""
        assert isinstance(busy, Busy)  # no room was asked for yet
        if self.delivery.gave_up:
            self.leave_room()
        return decide(self.facts.policy, TaskConflict(self, busy, self.understand))

    # -- the body -------------------------------------------------------------------------

    def call(self, body: Callable[[], Any], request: Any) -> Any:
        """Do what Celery's call of the task should do: run the body, if it is to run, and then
        release the lock.
        """
        __tracebackhide__ = True
        course = self.course
        if isinstance(course, Fails):
            _raise(course.error)
        if isinstance(course, Returns):
            return course.value
        if self.facts is None:
            return body()
        self._request = request
        return surely(partial(self._run, body), self._release, self.lease)

    def _run(self, body: Callable[[], Any]) -> Any:
        __tracebackhide__ = True
        lease = self.lease
        if not lease.fence:
            return body()
        if is_heard(Outcome.ACQUIRED):
            bodies.say_acquired(self)
        setattr(self._request, LEASE, lease)
        self.ran = BEGUN
        before = lock_of_body.get()
        try:
            lock_of_body.set(lease)
            result = bodies.guarded(self, body, self._abort)
        except BaseException as exc:
            self.ran = bodies.ran_into(self, exc)
            if self.ran.how != past.REPLACED:
                raise
            assert lease.replaced_by is not None
            course = end_replaced(self, lease.replaced_by)
            if isinstance(course, Ends):
                raise course.error from exc
            return course.value
        finally:
            lock_of_body.set(before)
        self.ran = bodies.ran_to_its_end(self)
        return result

    def _release(self) -> None:
        """Release the lock. Safe to call again. An error of ours is only logged: it does not change
        the task's outcome, and the lock expires.
        """
        lease = self.lease
        if lease.is_over or lease.inherited:
            return
        with only_logged(
            "redislock: could not release %s of %s; it expires within %g s",
            *(self.facts.key, self, lease.ttl),
        ):
            self._release_or_keep(lease)
        if not lease.is_over:
            lease.abandon()
        if lease.is_lost:
            lost.has_ended(lease)

    def _release_or_keep(self, lease: Lease) -> None:
        ran = self.ran
        if lease.replaced_by is not None and ran.retry is not None:
            bodies.call_off(self, ran.retry, lease.replaced_by)
        how, owned = bodies.how_to_release(self), False
        if how is None:
            return
        if isinstance(how, Heir):
            owned = lease.leave_to(how, ran.how)
        else:
            settled = lease.release(how, ran.how)
            if settled is not None:
                owned = settled.ours
                self._following = settled
            elif lease.unheard is not None and (lease.fence or lease.in_doubt):
                until = lease.deadline if lease.fence else clock() + lease.ttl
                again = partial(bodies.release_again, self, lease.unheard, until)
                housekeeper.add(again, most=until - clock())
        if lease.fence and ran is not NOT_RUN and is_heard(Outcome.RELEASED):
            bodies.say_released(self, owned, isinstance(how, Heir))

    def _on_lost(self, lease: Lease) -> None:
        """Report that the lock was lost. The heartbeat calls this."""
        try:
            bodies.say_lost(self)
        finally:
            if self._abort is not None:
                self._abort.fire()
            lost.goes_on(self)

    def _on_extended(self, lease: Lease, late: float, retaken: bool) -> None:
        self.facts.tell(Outcome.EXTENDED, details={"late": late})
        if retaken:
            self.facts.tell(Outcome.RECOVERED, details={"how": "retaken"}, reason="retaken")

    # -- the end --------------------------------------------------------------------------

    def _settle(self) -> None:
        """Settle all that the delivery holds. Safe to call again. The task's outcome is known by
        now: no error of ours changes it, and none leaves our tracer.
        """
        try:
            lease = self.lease
            if lease is not None and lease.asked and not lease.is_over:
                self._release()
            if not self._is_settled:
                if lease is not None and lease.fence:  # the lock took over what was kept
                    self._note_completed()
                elif self.kept is not None:
                    end = End.CANNOT_RUN if self.course is None else self.course.end
                    settle_kept(self._task.app, self.kept, end)
                self._is_settled = True
            if self._following is not None:
                self._hand_over()
            if self._task._redislock_clear is not None and self.facts is not None:
                self._clear_original(self.facts.args, self.facts.kwargs)
            if self._running is not None:
                self._running.restore()
            self.is_over = True
        except SoftTimeLimitExceeded as exc:
            if self.facts is not None and self.facts.is_eager:
                raise  # the limit is of the task that runs this one
            logger.error(
                "redislock: could not settle %s under %r in time", *self.name, exc_info=exc
            )
        except Exception:
            self._is_settled = True
            logger.exception("redislock: could not settle %s under %r", *self.name)

    def _note_completed(self) -> None:
        """Note for copies of the message that Celery has done all that follows the body."""
        if not (self._completed and self.ran.note == notes.PUBLISHING and self.may_have_copies):
            return
        self.ran = self.ran._replace(note=notes.ENDED)  # also for a release that is repeated
        try:
            done = mark_done(self.facts.claim, self.note_of(notes.ENDED))
            self.facts.locks.server.run(done, once=True)
        except LockUnavailable as exc:
            logger.warning(
                "redislock: a redelivered copy of %s may run again, as its end was not noted: %s",
                self, exc.reason,
            )  # fmt: skip

    def _hand_over(self) -> None:
        """Have the waiting task that is next published."""
        following, self._following = self._following, None
        assert following is not None
        claim = self.facts.claim
        room.follow_up(self._task.app, claim.keys, claim.ttl, following)
