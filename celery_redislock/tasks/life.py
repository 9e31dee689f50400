"""The life of one delivery of a locked task: what is known, asked, decided, done, and held.

The lock is acquired before Celery's tracer is entered, so that nothing of the task runs without it.
It is released as the body ends: after that Celery publishes callbacks and chain links, which may
need the lock, and stores the result.

The functions around the body have a local `__tracebackhide__`: tools such as Sentry and pytest
leave their frames out. Else all errors would begin with these, by which they are grouped.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NoReturn

from celery.app.task import Context
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from ..app.delivery import KEY, Delivery, Kept, hand_on_done_key, is_from_newer, take_header
from ..app.housekeeper import housekeeper
from ..app.internals import as_running
from ..app.outcomes import Outcome, is_heard
from ..app.results import is_ready, proves_nothing
from ..app.settings import AppLocks
from ..errors import LockUnavailable
from ..lock.lease import Heir, Lease
from ..protocol import notes, past
from ..protocol.calls import SUSPENDED, Release, kept_off, mark_done, settle
from ..protocol.claims import Busy, Done, Free, Parked, Place, Settled
from ..protocol.clock import clock
from ..protocol.log import logger
from ..protocol.names import NoLock
from ..protocol.rooms import looks_no_more, park
from . import act, decide, lost, room
from . import body as bodies
from .abort import Abort
from .current import lock_of_body
from .ends import LEASE, End
from .facts import Facts, report_no_lock
from .limits import only_logged
from .locked import LockedTask
from .settle import settle_kept
from .state import BEGUN, NOT_RUN, RUNS, Course, Ends, Fails, Ran, Returns, Runs, State

#: Bytes from which on a server may take no message, though it answers. Redis then closes the
#: connection, as in an outage. Its least `proto-max-bulk-len` is twice this.
LARGE: Final = 512 * 1024


def _raise(error: Exception) -> NoReturn:
    """Raise an error of ours in a frame that tools show: they group errors by frames."""
    raise error


class Life:
    """The life of a delivery, and the owner of all that it holds. Nothing else assigns these."""

    # Class attributes: an instance is made for each task that runs, and few need other values.
    facts: Facts = None  # type: ignore[assignment]
    state: State = None  # type: ignore[assignment]
    lease: Lease = None  # type: ignore[assignment]
    course: Course | None = None  # how the delivery goes on in Celery, once that is known
    ran = NOT_RUN  # how the body ended
    is_over = False  # all that the delivery held is settled
    _request: Any = None
    _abort: Abort | None = None
    #: When the lock was asked for, on `clock`.
    _asked_at = 0.0
    #: Knows what ran before, once that may have been changed.
    _running: as_running | None = None
    #: The server's reply to the release if others wait, until the next message is published.
    _following: Settled | None = None
    _completed = _is_settled = False

    def __init__(self, task: LockedTask, raw: dict[str, Any]) -> None:
        self._task = task
        self._raw = raw
        self.kept = Kept.of(raw) if KEY in raw else None  # until settled, or the next message's

    def __str__(self) -> str:
        return str(self.facts or f"{self._task.name}[{self._raw.get('id')}]")

    @property
    def _name(self) -> tuple[str, str]:
        """The delivery and its lock, for a line in the log."""
        lock_id = self.kept.lock_id if self.kept is not None else ""
        return str(self), self.facts.key if self.facts is not None else lock_id

    @property
    def request(self) -> Any:
        """The task's request: Celery's own, once it has made the one under which the body runs."""
        if self._request is None:
            facts = self.facts
            self._request = Context(
                facts.raw, args=facts.args, kwargs=facts.kwargs, called_directly=False
            )
        return self._request

    def as_current(self) -> contextlib.AbstractContextManager[None]:
        """Make this the running task, for receivers, policies and log lines."""
        if self.facts.is_eager:
            return contextlib.nullcontext()
        running = as_running(self._task, self.request)
        self._running = self._running or running
        return running

    def live(
        self,
        args: Any,
        kwargs: Mapping[str, Any],
        trace: Callable[[Life], Any],
        request: Any = None,
    ) -> Any:
        """The whole of it, in the order in which it happens. `trace` is Celery's part, which calls
        `call` where the body is to run; an eager run has its request already.
        """
        __tracebackhide__ = True

        try:
            try:
                self._begin(args, kwargs, request)
                result = trace(self)
                self._completed = True
                return result
            finally:
                self._settle()
        finally:
            # A soft time limit is raised once, but at any bytecode, even in the inner `finally`.
            if not self.is_over:
                self._settle()

    def _begin(self, args: Any, kwargs: Mapping[str, Any], request: Any) -> None:
        __tracebackhide__ = True
        try:
            self.course = self._find_course(args, kwargs, request)
        except Exception as exc:
            try:
                self._end_by(exc)
            except SoftTimeLimitExceeded as limit:
                self.course = Fails(limit)
        except BaseException as exc:
            self.course = Ends(exc, End.COMES_BACK)  # the worker ends
            raise

    def _find_course(self, args: Any, kwargs: Mapping[str, Any], request: Any) -> Course:
        """How the delivery goes on."""
        locks = self._task.app_locks
        if KEY in self._raw and locks.enabled and is_from_newer(self._raw):
            return act.give_back(self._task, self._raw, args, kwargs)
        try:
            if not self._task._takes_lock(locks, is_eager=request is not None):
                return self._go_without_lock(locks, args, kwargs, request)
            self._learn_facts(locks, args, kwargs, request)
        except NoLock:
            report_no_lock(self._task, self._raw)
            return self._go_without(args, kwargs)
        step = decide.first(self.facts, self.state)
        if isinstance(step, decide.Try):
            self.state, step = decide.step(self.facts, self.state, step, self._try(step))
        if step is decide.GO:
            return RUNS
        return self._follow(step)

    def _follow(self, step: decide.Step) -> Course:
        """Ask until it is decided how the delivery goes on, and do what was decided."""
        with self.as_current():
            while True:
                while isinstance(step, decide.Question):
                    answer = self._ask(step)
                    self.state, step = decide.step(self.facts, self.state, step, answer)
                done = self._note_end(step)
                if done is None:
                    return self._act(step)
                self.state, step = decide.step(self.facts, self.state, decide.FIRST, done)

    def _go_without_lock(
        self, locks: AppLocks, args: Any, kwargs: Mapping[str, Any], request: Any
    ) -> Course:
        """Take no lock, but wait if an operator has suspended the task. Raises `NoLock`."""
        task, suspension = self._task, None
        if task.lock_options is not None and locks.enabled and request is None:
            keys = task.lock_keys_for(args, kwargs, self._raw)
            with only_logged("redislock: cannot find out whether %s is suspended", self):
                ttl = task.lock_options.lock_ttl
                suspension = locks.server.ask(kept_off(keys, ttl, task.name), once=True)
        if suspension is None:
            return self._go_without(args, kwargs)
        self._learn_facts(locks, args, kwargs, request)
        left = max(suspension.ends_at - time.time(), 0.0)
        busy = Busy(None, left, SUSPENDED, for_message=True, suspension=suspension)
        self.state, step = decide.wait_its_turn(self.facts, self.state, busy)
        return self._follow(step)

    # -- facts ----------------------------------------------------------------------------

    def _learn_facts(
        self, locks: AppLocks, args: Any, kwargs: Mapping[str, Any], request: Any
    ) -> None:
        task, raw, is_eager = self._task, self._raw, request is not None
        if task._redislock_error is not None:
            task._refuse_if_misconfigured()
        self._request = request
        message = Delivery.take_from(raw)
        self.facts = facts = Facts(task, locks, raw, message, self.kept, args, kwargs, is_eager)
        copies = facts.may_be_copy or task.acks_late or task.acks_after_body
        self.state = State(message, may_have_copies=copies and not is_eager)
        if task.acks_after_body:
            hand_on_done_key(raw, facts.claim.done_key)
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
        if self.kept is not None and not self.kept.is_of(facts.claim.keys):
            # The task has another lock by now: free the old one for the tasks that still use it.
            self._give_up_kept()
            self.state = self.state.learn(parked=False)

    def _go_without(self, args: Any, kwargs: Any) -> Course:
        """Take no lock, and free what is kept for the message."""
        self.course = course = Runs(End.UNLOCKED)
        if self.kept is None:
            self._clear_original(args, kwargs)
        with only_logged("redislock: could not free the reservation or place of %s", self):
            self._give_up_kept()
        take_header(self._raw)
        return course

    def _clear_original(self, args: Any, kwargs: Any) -> None:
        """Delete the lock that another package took when the message was sent, if it may have."""
        clear, course = self._task._redislock_clear, self.course
        if clear is None or course is None or course.end.passes_on:
            return
        if self.facts is not None and (self.facts.claim.kept or self.facts.is_eager):
            return
        with only_logged("redislock: could not look for what another package left for %s", self):
            clear(args, kwargs, self._raw.get("id") or "")

    # -- questions ------------------------------------------------------------------------

    def _ask(self, question: decide.Question) -> Any:
        """Ask the policy, the result backend, or the lock server."""
        if isinstance(question, decide.Meet):
            if question.gave_up:
                self._leave_room()
            return question.ask(self.facts, self.state)
        if isinstance(question, decide.HasResult):
            return self._has_result()
        if isinstance(question, decide.Try):
            return self._try(question)
        return self._wait(question)

    def _has_result(self) -> bool | None:
        task, request = self._task, self.request
        return None if proves_nothing(task, request) else is_ready(task, request.id)

    def _try(self, question: decide.Try) -> decide.Answer:
        if question.reruns:
            logger.warning("redislock: %s ended without a result; it runs again", self)
        if not question.again:
            self._asked_at = clock()
        try:
            answer = self.lease.acquire(again=question.again, note=question.note)
        except LockUnavailable as exc:
            return exc
        if isinstance(answer, Busy):
            self._follow_up(answer)
        return answer

    def _wait(self, question: decide.Await | decide.AwaitEarlier | decide.Park) -> decide.Answer:
        lease, facts = self.lease, self.facts
        answer: decide.Answer
        try:
            if isinstance(question, decide.Park):
                answer = self._park(question)
            elif isinstance(question, decide.AwaitEarlier):
                answer = lease.wait(question.timeout, self._follow_up, again=self.state.again)
            else:
                if self.kept is not None and self.kept.place is not None:
                    self._give_up_kept()  # else copies are published, and wait in more slots
                facts.report(Outcome.WAITING, details={"waits": True})
                try:
                    for_message = not decide.can_park(facts)
                    answer = lease.wait(
                        question.timeout, self._follow_up, for_message, self.state.again
                    )
                finally:
                    facts.report(Outcome.WAITING, details={"waits": False})
        except LockUnavailable as exc:
            return exc
        if isinstance(answer, Busy | Parked | Free):
            self._follow_up(answer)
        return answer

    def _park(self, question: decide.Park) -> decide.Answer:
        facts, claim = self.facts, self.facts.claim
        # The task is likely to replace that one: its done note can be named at once.
        before = facts.parked_before if question.newest else ""
        parking = act.parking_of(facts, self.state, self.request, question, self.lease.in_doubt)
        call = park(claim, parking, [before.encode()] if before else [])
        size = len(parking.entry)
        try:
            answer = facts.locks.server.run(call, once=size > LARGE)
        except LockUnavailable as exc:
            if size <= LARGE:
                raise
            logger.warning(
                "redislock: %s cannot wait in the room of %s: the lock server did not take its"
                " message of %d bytes: %s", self, facts.key, size, exc.reason,
            )  # fmt: skip
            return decide.TooLarge()
        # The next call under a suspension asks first: what it is told goes with its message.
        waits = isinstance(answer, Parked) and answer.suspension is None
        self._task._redislock_note_parked(claim.keys.lock_id, claim.entry_id if waits else "")
        if waits and self.kept is not None and self.kept.has_more_slots(claim.keys):
            # Its publisher looked at more slots than it may have, and would do so again.
            with contextlib.suppress(LockUnavailable):
                facts.locks.server.ask(looks_no_more(claim.keys, self.kept.lock_id), once=True)
        return answer

    def _follow_up(self, answer: Busy | Parked | Free | Settled) -> None:
        claim = self.facts.claim
        room.follow_up(self._task.app, claim.keys, claim.ttl, answer, claim.task_id)

    # -- decisions ------------------------------------------------------------------------

    def _note_end(self, decision: decide.Outcomes) -> Done | None:
        """Note that the task is turned away, before its result is stored: if it never is, a copy of
        the message runs. Returns the note of a copy that was turned away just before this one.
        """
        turned_away = isinstance(decision, decide.TurnedAway) and decision.outcome
        if not turned_away or not act.is_noted(self.facts, turned_away):
            return None
        done = self._note_no_run()
        if done is None or self.state.reruns:  # it may be the note of its first run
            return None
        self.ran = NOT_RUN
        return done

    def _note_no_run(self) -> Done | None:
        """Note that the task ends without a run. Returns the note of a copy that has ended it."""
        facts, state, done = self.facts, self.state, None
        if state.may_have_copies and not state.is_noted:
            done = act.note_end(facts, state, facts.note_of_no_run)
        self.state = state._replace(is_noted=True)
        if facts.note_of_no_run == notes.PUBLISHING:
            self.ran = Ran(note=notes.PUBLISHING)
        return done

    def _act(self, decision: decide.Outcomes) -> Course:
        facts = self.facts
        if isinstance(decision, decide.Waits):
            return act.wait_in_room(facts, decision)
        if isinstance(decision, decide.PutOff):
            return self._put_off(decision)
        if self.state.parks_as:
            # Perhaps only the answer got lost, and the task is in the room: it must not run from
            # there.
            goes_on = isinstance(decision, decide.Go | decide.GoUnlocked)
            ends = not isinstance(decision, decide.CannotRun) or facts.acks_failures
            self._call_off_copies(ends, goes_on)
        if isinstance(decision, decide.TurnedAway):
            course = act.turn_away(facts, self.state, self.request, decision)
            if decision.outcome is Outcome.REPLACED:  # until now, a copy is to end it
                self._note_no_run()
            return course
        if isinstance(decision, decide.CannotRun):
            return Fails(decision.error)
        if isinstance(decision, decide.GoUnlocked):
            return act.run_unlocked(facts, decision)
        if decision.waited_for is not None:
            facts.report_conflict(Outcome.WAITED, decision.waited_for.holder)
        return RUNS

    def _put_off(self, decision: decide.PutOff) -> Course:
        """Publish the task again, to be run after a countdown; or end it, if it would expire."""
        if decision.comes_anew:
            self._give_up_kept()
        facts, request = self.facts, self.request
        countdown = act.countdown_of(facts, decision)
        if act.expires_before(facts, self.state, decision, countdown):
            self._note_no_run()
            return act.end_expired(facts, request, decision)
        state = self.state.arrives(facts.began)
        message = state.message
        suspended = None if decision.suspension is None else str(decision.suspension)
        header = message.next_header(
            self.kept,
            copied=state.copied,
            outage=decision.cause is not None,
            behind=not decision.is_alone,
            suspended=suspended,
        )
        self.state = state.published()
        return act.put_off(facts, request, message, header, countdown, decision)

    def _end_by(self, error: Exception) -> None:
        """End the task before its body, by an error: also by one that a policy raised."""
        if isinstance(error, Ignore | Reject):
            # What was acknowledged already cannot come back.
            comes_back = isinstance(error, Reject) and error.requeue and self._task.acks_late
            self.course = Ends(error, End.COMES_BACK if comes_back else End.CANNOT_RUN)
        else:
            self.course = Fails(error)
        if self.state is None or self.course.end.passes_on:
            return
        # A limit ended the task while that was put off: its next message may be on its way.
        if isinstance(error, SoftTimeLimitExceeded) or self.state.parks_as:
            ends = isinstance(self.course, Ends) or self.facts.acks_failures
            with only_logged("redislock: could not tell the copies of %s under %r", *self._name):
                self._call_off_copies(ends)

    def _call_off_copies(self, ends: bool, goes_on: bool = False) -> None:
        """Let no copy run of a task that failed while it was put off; or before it asked for the
        lock, as a room may have published it twice. The same for one that goes on, or `ends` its
        message, though the server may have put it into the room: its answer was lost.
        """
        state = self.state
        if (state.copied or state.message.parked) and ends:
            if goes_on:
                act.note_end(self.facts, state, notes.EXPECTS_RESULT)
            else:
                self._note_no_run()
        if state.parks_as or state.message.gave_up:
            self._leave_room()

    def _leave_room(self) -> None:
        """Take the task out of the waiting room: it gave up, or failed while it was put there."""
        claim, parks_as = self.facts.claim, self.state.parks_as
        if parks_as:  # it may be there already, or still
            self.kept = Kept(claim.keys.lock_id, claim.kept, Place(parks_as, claim.entry_id))
        self._give_up_kept()
        self.state = self.state._replace(parks_as="")

    def _give_up_kept(self) -> None:
        """Give up the message's reservation or place: the task will not take it."""
        settle_kept(self._task.app, self.kept, End.CANNOT_RUN)
        self.kept = None  # not before: a time limit would leave it to nobody

    # -- the body -------------------------------------------------------------------------

    def call(self, body: Callable[[], Any], request: Any) -> Any:
        """Do what Celery's call of the task does: run the body, if it may run; release the lock."""
        __tracebackhide__ = True
        course = self.course
        if isinstance(course, Fails):
            _raise(course.error)
        if isinstance(course, Returns):
            return course.value
        if self.facts is None:
            return body()
        self._request = request
        try:
            try:
                return self._run(body)
            finally:
                self._release()
        finally:
            if not self.lease.is_over:  # see `live`
                self._release()

    def _run(self, body: Callable[[], Any]) -> Any:
        __tracebackhide__ = True
        facts, lease, request = self.facts, self.lease, self._request
        if not lease.fence:
            return body()
        if is_heard(Outcome.ACQUIRED):
            bodies.report_acquired(facts, self.state.message, lease, self._asked_at)
        setattr(request, LEASE, lease)
        self.ran = BEGUN
        before = lock_of_body.get()
        try:
            lock_of_body.set(lease)
            result = bodies.guarded(facts, lease, body, self._abort)
        except BaseException as exc:
            self.ran = bodies.ran_into(facts, lease, request, exc)
            if self.ran.how != past.REPLACED:
                raise
            assert lease.replaced_by is not None
            course = act.end_replaced(facts, request, lease.replaced_by)
            if isinstance(course, Ends):
                raise course.error from exc
            return course.value
        finally:
            lock_of_body.set(before)
        self.ran = bodies.ran_to_its_end(facts, request)
        return result

    def _release(self) -> None:
        """Release the lock. Safe to call again. An error is only logged: the lock expires."""
        lease = self.lease
        if lease.is_over or lease.inherited:
            return
        try:
            self._release_or_keep(lease)
        except SoftTimeLimitExceeded:
            raise
        except Exception:
            logger.exception(
                "redislock: could not release %s of %s; it expires within %g s",
                self.facts.key, self, lease.ttl,
            )  # fmt: skip
        if not lease.is_over:
            lease.abandon()
        if lease.is_lost:
            lost.has_ended(lease)

    def _release_or_keep(self, lease: Lease) -> None:
        facts, ran = self.facts, self.ran
        if lease.replaced_by is not None and ran.retry is not None:
            bodies.call_off(facts, ran.retry, lease.replaced_by)
        how, owned = bodies.how_to_release(facts, self.state, lease, ran), False
        if how is None:
            return
        if isinstance(how, Heir):
            owned = lease.leave_to(how, ran.how)
        else:
            settled = lease.release(how, ran.how)
            if settled is not None:
                owned = settled.ours
                if settled.due_in is not None or settled.offered is not None:
                    self._following = settled
            elif lease.unheard is not None and (lease.fence or lease.in_doubt):
                until = lease.deadline if lease.fence else clock() + lease.ttl
                again = partial(self._release_again, lease.unheard, until)
                housekeeper.add(again, most=until - clock())
        if lease.fence and ran is not NOT_RUN and is_heard(Outcome.RELEASED):
            bodies.report_released(facts, lease, ran, owned, isinstance(how, Heir))

    def _release_again(self, release: Release, until: float) -> None:
        """Repeat a release without a reply until the lock expires. Others may hold it later."""
        facts, state, note = self.facts, self.state, self.ran.note
        if clock() >= until:
            return
        release = release._replace(note=state.note_of(note), always=state.may_have_copies)
        settled = facts.locks.server.run(settle(facts.claim, release))
        if note != self.ran.note and state.may_have_copies:
            # Celery did all that follows the body meanwhile.
            done = mark_done(facts.claim, state.note_of(self.ran.note))
            facts.locks.server.run(done, once=True)
        logger.info("redislock: %s is released now", facts.key)
        self._follow_up(settled)

    def _on_lost(self, lease: Lease) -> None:
        """Report that the lock was lost. The heartbeat calls this."""
        try:
            bodies.report_lost(self.facts, lease)
        finally:
            if self._abort is not None:
                self._abort.fire()
            if self.ran is BEGUN:
                lost.goes_on(lease)

    def _on_extended(self, lease: Lease, late: float, retaken: bool) -> None:
        self.facts.report(Outcome.EXTENDED, details={"late": late})
        if retaken:
            self.facts.report(Outcome.RECOVERED, details={"how": "retaken"}, reason="retaken")

    # -- the end --------------------------------------------------------------------------

    def _settle(self) -> None:
        """Settle all that the delivery holds. Safe to call again. No error leaves our tracer."""
        try:
            lease = self.lease
            if lease is not None and lease.asked and not lease.is_over:
                self._release()
            if not self._is_settled:
                self._note_completed()
                # The lock took over what was kept.
                if self.kept is not None and not (lease is not None and lease.fence):
                    end = End.CANNOT_RUN if self.course is None else self.course.end
                    settle_kept(self._task.app, self.kept, end)
                self._is_settled = True
            if self._following is not None:
                following, self._following = self._following, None
                self._follow_up(following)
            if self._task._redislock_clear is not None and self.facts is not None:
                self._clear_original(self.facts.args, self.facts.kwargs)
            if self._running is not None:
                self._running.restore()
            self.is_over = True
        except SoftTimeLimitExceeded:
            if self.facts is not None and self.facts.is_eager:
                raise  # the limit is of the task that runs this one
            logger.warning(
                "redislock: the soft time limit of %s came as %r was settled: again", *self._name
            )
        except Exception:
            self._is_settled = True
            logger.exception("redislock: could not settle %s under %r", *self._name)

    def _note_completed(self) -> None:
        """Note for copies of the message that Celery has done all that follows the task's end."""
        state = self.state
        if not (self._completed and self.ran.note == notes.PUBLISHING and state.may_have_copies):
            return
        ran = self.ran
        try:
            self.ran = ran._replace(note=notes.ENDED)  # also for a release that is repeated
            act.note_end(self.facts, state, notes.ENDED)
        except SoftTimeLimitExceeded:
            self.ran = ran  # it is noted when `live` settles again
            raise
