"""A locked task's request in the worker's main process."""

from __future__ import annotations

import contextlib
import logging
from functools import cache, partial
from typing import Any, Final

from celery import signals as celery_signals
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.concurrency.solo import TaskPool as SoloPool
from celery.exceptions import Terminated, WorkerLostError
from celery.utils.imports import symbol_by_name
from celery.worker.request import Request

from ..app import internals
from ..app.brokers import AS_CELERY_READS_IT, origin_of
from ..app.delivery import (
    KEY,
    VERSION,
    Delivery,
    Kept,
    attempt_of,
    done_key_of,
    is_from_newer,
    replaces_another,
    restore_route,
    stamp,
)
from ..app.events import events
from ..app.housekeeper import housekeeper
from ..app.outcomes import Outcome, Whose, report, report_expired
from ..app.results import store_skipped
from ..app.times import has_passed
from ..errors import LockUnavailable, TaskReplaced
from ..lock.forks import between_forks
from ..lock.heartbeat import heartbeat
from ..protocol import notes, past, rooms
from ..protocol.clock import clock
from ..protocol.entries import id_of
from ..protocol.keys import LockKeys, keys_of_lock_id
from ..protocol.log import logger
from ..tasks.act import publish_replaced
from ..tasks.ends import RETRIES, Deferred, End, Skipped, Waiting
from ..tasks.facts import COPIED_FROM, ends_message
from ..tasks.settle import settle_beside
from ..tasks.task import SingletonTask
from .child_lease import ChildLease
from .contained import contained
from .finished import FinishedNote, finished_notes
from .kept import reservations, sleeping
from .parked import parked_tasks
from .source import source_of

#: If a message has waited here for so many seconds, its run may leave a done note: a little less
#: than `COPIED_FROM`, since the run begins a little later.
NOTED_FROM: Final = COPIED_FROM - 0.1
#: Seconds until a server that did not answer is asked again about the tasks of dead children.
ASK_AGAIN: Final = 10.0


class LockRequest(Request):
    """A request for a locked task."""

    #: After a lock server did not answer: when to ask it again about dead children's tasks.
    _not_asked_until = 0.0
    #: Values before `_begin`; and whether Celery has sent the task's retry.
    _received, _came_on, _is_copy, _is_retried = float("-inf"), -1, True, False
    _lock_token = ""
    #: The lease of the lock that the child may hold, once a child has the task.
    _lease: ChildLease | None = None
    #: The run for which the child was terminated, and the lock.
    _replaced: TaskReplaced | None = None
    #: What is reserved for the message, until it is known to be settled, and for which lock.
    _kept: Kept | None = None
    lock_keys: LockKeys
    _is_reserved = False
    #: Whether the broker got the message back; and whether it may have another copy of it since the
    #: pool took it so late.
    _is_requeued = _was_late = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._begin()

    @contained
    def _begin(self) -> None:
        self._received = clock()
        task, raw, consumer = self.task, self.request_dict, self.task.worker_consumer
        has_header = KEY in raw
        if has_header:
            restore_route(raw)
        #: The connection to the broker on which the message came: how many there were before it.
        self._came_on = internals.times_connected(consumer)
        wants_events = events.wanted_by(self.eventer, consumer)
        origin = AS_CELERY_READS_IT
        if not task.hears_acks:
            origin = origin_of(self.message, task.app_locks.redelivery)
        info = raw["delivery_info"]
        source = source_of(consumer, self.message.delivery_info or {}, info["exchange"])
        self._lock_token = stamp(raw, wants_events, self.content_type, origin, source)
        #: Whether it may be one of several copies: then its run's done note stays.
        self._is_copy = bool(source.fanout or origin.redelivered or info["redelivered"])
        if has_header:
            self._is_copy = self._is_copy or replaces_another(raw)
            self._note_kept()

    def _note_kept(self) -> None:
        self._kept = kept = Kept.of(self.request_dict)
        if kept is None:
            return
        if self.eta is not None:
            sleeping[id(self)] = self
        with contextlib.suppress(ValueError):  # whoever settles it says so
            self.lock_keys = keys_of_lock_id(self.task.app_locks.prefix, kept.lock_id)
            self._is_reserved = kept.place is None

    def on_accepted(self, pid: int, time_accepted: float) -> Any:
        """The pool took the task. In a pool of processes, each runs one task at a time."""
        # Do this first: what follows may terminate the child.
        if self.task.runs_in_children:
            self._watch_child(pid)
        accepted = super().on_accepted(pid, time_accepted)
        if self._lease is not None:
            heartbeat.add(self._lease)
        if self._is_reserved:
            reservations.add(self)
        return accepted

    @contained
    def _watch_child(self, pid: int) -> None:
        if self._lock_token:
            lease = ChildLease(pid, self, self._lock_token)
            housekeeper.when_gone(pid, lease.child_ended, most=lease.ttl)
            self._lease, self._was_late = lease, clock() - self._received > NOTED_FROM

    def unsettled(self) -> Kept | None:
        """The reservation or room place of the message; None if the message will come back."""
        return self._kept if self.acknowledged and not self._is_requeued else None

    @contained
    def settle(self, end: End) -> None:
        """Settle what is kept for the message, beside this thread, which serves all requests."""
        kept, self._kept = self._kept, None
        settle_beside(self.task.app, kept, end)
        clear = self.task._redislock_clear
        if clear is not None and not end.passes_on and not (kept is not None and kept.token):
            housekeeper.add(partial(clear, self.args, self.kwargs, self.id))

    def reject(self, requeue: bool = False) -> None:
        """Give the message back to the broker, or let the broker drop it."""
        self._is_requeued = requeue and not self.acknowledged
        super().reject(requeue)
        if not requeue:
            self.settle(End.CANNOT_RUN)

    def revoked(self) -> bool:
        """Whether the task is not to run: it was revoked, or has expired."""
        if internals.was_revoked(self):
            return True
        is_over = bool(super().revoked())
        if is_over:
            self.settle(End.ENDED_BY_CELERY)
            self._report_expired()
        return is_over

    @contained
    def _report_expired(self) -> None:
        """Report that an outage, or a suspension, has put the task off until it expired."""
        raw = self.request_dict
        if is_from_newer(raw) or not has_passed(raw.get("expires")):
            return
        message = Delivery.take_from({**raw})
        if not (message.outages or message.suspended):
            return
        key = ""
        with contextlib.suppress(Exception):  # a callable of the user's may raise anything
            key = self.task.lock_keys_for(self.args, self.kwargs, raw).lock
        reason = f"it was put off {message.outages} times, since the lock server did not answer"
        if not message.outages:
            reason = f"it was put off, since this is suspended: {message.suspended}"
        whose = Whose(key, self.task, self.id, attempt_of(raw)[1], self._label)
        report_expired(whose, reason, reason, emits=False)

    def acknowledge(self) -> None:
        """Acknowledge the message, before or after its run. The run's done note may then go."""
        super().acknowledge()
        task = self.task
        # Any other run leaves a note only if its message waited here: see `Facts.may_be_copy`.
        if (
            task.hears_acks
            and not self._is_copy
            and (task.acks_late or task.acks_after_body or clock() - self._received > NOTED_FROM)
        ):
            self._note_acknowledged()

    @contained
    def _note_acknowledged(self) -> None:
        finished_notes.add(self)

    def finished_note(self) -> FinishedNote | None:
        """The run's done note; None if the broker may have given the message to another worker."""
        consumer, locks = self.task.worker_consumer, self.task.app_locks
        visibility_timeout = locks.redelivery.after
        if not internals.is_connected_still(consumer, self._came_on) or (
            visibility_timeout is not None and clock() - self._received > visibility_timeout / 2
        ):
            return None
        raw = self.request_dict
        key = done_key_of(raw)
        if key is None:  # the run had no lock, or was in another process
            task_id, attempt, nesting = attempt_of(raw)
            keys = self.task.lock_keys_for(self.args, self.kwargs, raw)
            key = keys.done_by(id_of(task_id, nesting, attempt))
        return FinishedNote(locks, consumer, self._came_on, key)

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        """A time limit was exceeded. If it is the hard one, the child is killed next."""
        if not soft:
            self._child_is_to_end()
            self._settle_timed_out()
        return super().on_timeout(soft, timeout)

    @contained
    def _settle_timed_out(self) -> None:
        ends = ends_message(self.task, "acks_on_timeout")
        if ends:
            self._note_over(notes.EXPECTS_RESULT)
        self.settle(End.ENDED_BY_CELERY if ends else End.COMES_BACK)

    def terminate(self, pool: Any, signal: Any = None) -> Any:
        """The task was revoked, and its child is to end."""
        self._child_is_to_end()
        self.settle(End.ENDED_BY_CELERY)
        return super().terminate(pool, signal)

    def cancel(self, pool: Any, signal: Any = None, **kwargs: Any) -> Any:
        """The broker's connection was lost, or the worker ends at once, and so does the child."""
        self._child_is_to_end()
        if self.acknowledged:
            self.settle(End.ENDED_BY_CELERY)
        return super().cancel(pool, signal, **kwargs)

    def _note_over(self, kind: str) -> None:
        """Note for copies of the message that this process ends the attempt of a child."""
        may_have_copies = self.task.acks_late or self._is_copy or self._was_late
        if self._lease is not None and may_have_copies:
            self._lease.note_over(kind)

    def _child_is_to_end(self, end_reason: str = past.TERMINATED) -> None:
        if self._lease is not None:
            self._lease.expect_end(end_reason)

    @contained
    def end_child(self, error: TaskReplaced, signum: int) -> None:
        """Terminate the child in favour of a newer run. In the consumer's thread, which gives tasks
        to children: while this request is active, its child has no other task.
        """
        if not internals.is_active(self):
            return
        logger.warning(
            "redislock: terminating pid %d, which runs %s[%s]: %s replaces it",
            self.worker_pid, self.task.name, self.id, error.holder and error.holder.task_id,
        )  # fmt: skip
        self._child_is_to_end(past.REPLACED)
        self._note_over(notes.EXPECTS_RESULT)
        self._replaced = error
        internals.terminate_child(self.task.worker_consumer, self.worker_pid, signum)

    def send_event(self, kind: str, **event: Any) -> Any:
        """Send an event of the task. In monitors, the state of our waiting events outranks REVOKED:
        one more event keeps a revoked task from being shown as waiting for ever.
        """
        super().send_event(kind, **event)
        self._is_retried = self._is_retried or kind == "task-retried"
        header = self.request_dict.get(KEY) if kind == "task-revoked" else None
        if isinstance(header, dict) and (header.get("deferrals") or header.get("parked")):
            super().send_event("task-lock-revoked", name=self.task.name)

    def on_failure(
        self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False
    ) -> Any:
        """The task failed, or was skipped."""
        error = internals.error_of(exc_info)
        if isinstance(error, Skipped):
            self._end_skipped(error)
        if isinstance(error, Deferred):
            self._kept = None  # it has moved to the next message
        if isinstance(error, Waiting):
            self._note_parked(*error.args)
        is_gone = isinstance(error, Terminated | WorkerLostError | SystemExit)
        if is_gone and self._replaced is not None and not internals.was_revoked(self):
            return self._announce_replaced(self._replaced)
        if isinstance(error, WorkerLostError) and self._is_elsewhere():
            # The child had put its task into the waiting room: that is no failure of the task.
            internals.say_ended(self)
            return self.acknowledge()
        if not is_gone:
            return super().on_failure(exc_info, send_failed_event, return_ok)
        heir = self._prepare_retry(error, exc_info.traceback)
        requests = self.task.request_stack
        requests.push(internals.context_of(self))  # where the retry looks for its reason
        try:
            return super().on_failure(exc_info, send_failed_event, return_ok)
        finally:
            requests.pop()
            self._settle_after_death(heir)

    # -- the retry of a task whose child died, which Celery sends from here ------------------

    @contained
    def _prepare_retry(self, error: BaseException, traceback: str) -> Kept | None:
        """Give the retry a header of its own, and note why it is sent. Returns its reservation."""
        heir = None if self._lease is None else self._lease.heir
        context = internals.context_of(self)
        headers = {k: v for k, v in (context.headers or {}).items() if k != KEY}
        own = {} if heir is None else {KEY: {"v": VERSION, **heir.header}}
        context.headers = {**headers, **own}
        setattr(context, RETRIES, (error, traceback))
        return heir

    @contained
    def _settle_after_death(self, heir: Kept | None) -> None:
        """Settle what is kept for this message, unless it, or the retry, needs that."""
        comes_back, lease = self._is_requeued or internals.was_cancelled(self), self._lease
        is_passed_on = heir == self._kept and (self._is_retried or comes_back)
        if lease is not None:
            lease.note_cut_short(self._is_retried)
            if self._is_retried:
                self._note_over(notes.ENDED)
        if not self._is_retried and not is_passed_on:
            settle_beside(self.task.app, heir, End.ENDED_BY_CELERY)
        self.settle(End.COMES_BACK if comes_back or is_passed_on else End.ENDED_BY_CELERY)

    @contained
    def _end_skipped(self, error: Skipped) -> None:
        if internals.was_cancelled(self):
            # The connection to the broker was lost after the child had ended the task, and before
            # we knew. Celery has stored RETRY since, and the message does not come again.
            store_skipped(self.task, internals.context_of(self), *error.args)
        self._announce_skipped()

    @contained
    def _note_parked(self, lock_id: str) -> None:
        parked_tasks.add(self, lock_id, attempt_of(self.request_dict))

    @contained
    def _is_elsewhere(self) -> bool:
        """Whether the task of a dead child waits in the room, or has been run elsewhere since."""
        if clock() < LockRequest._not_asked_until:
            return False
        lease = self._lease
        claim = None if lease is None else lease.known_claim
        if lease is None or claim is None:
            return False
        try:
            own = [kept.token for kept in (self._kept, lease.heir) if kept is not None]
            server = self.task.app_locks.server
            is_elsewhere: bool = server.ask(rooms.goes_on_elsewhere(claim, own), once=True)
        except LockUnavailable as exc:
            # This is the worker's own thread, and many children may be dead: do not wait for each.
            LockRequest._not_asked_until = clock() + ASK_AGAIN
            text = "redislock: cannot find out whether %s is in the waiting room: %s"
            logger.warning(text, self.id, exc.reason)
            return False
        if is_elsewhere:
            self._note_parked(claim.keys.lock_id)
            report(
                Outcome.QUEUED, Whose(claim.keys.lock, self.task, self.id, label=self._label),
                "redislock: the pool process that put %s[%s] into the waiting room died; the task"
                " still gets its turn", self.task.name, self.id, level=logging.WARNING, emits=False,
            )  # fmt: skip
        return is_elsewhere

    @property
    def _label(self) -> str | None:
        return self.task.label_for(self.args, self.kwargs, self.request_dict)  # type: ignore[no-any-return]

    @contained
    def _announce_replaced(self, error: TaskReplaced) -> None:
        """End the task of a terminated child as Celery ends a revoked one, but with a result that
        names the run which replaced it, and that ends its chain.
        """
        internals.say_ended(self)
        by, context = error.holder, internals.context_of(self)
        assert by is not None
        is_sent = publish_replaced(
            self.task, self.request_dict, context, self.args, self.kwargs, by
        )
        if not is_sent:
            store_skipped(self.task, context, error)
        self.acknowledge()
        internals.mark_revoked(self)
        if is_sent:
            return
        self._announce_skipped(terminated=True)
        whose = Whose(error.key or "", self.task, self.id, label=self._label)
        report(Outcome.REPLACED, whose, holder=error.holder)

    def _announce_skipped(self, terminated: bool = False) -> None:
        how = {"terminated": terminated, "signum": None, "expired": False}
        super().send_event("task-revoked", **how)  # an event of ours says why
        if celery_signals.task_revoked.receivers:  # the request costs more than all the rest
            celery_signals.task_revoked.send(
                sender=self.task, request=internals.context_of(self), **how
            )


@cache
def lock_request(base: type[Any]) -> type[Any]:
    """The request class of a locked task that, without its lock, would have this class."""
    if issubclass(base, LockRequest):
        return base
    if base is Request:
        return LockRequest
    return type(f"Lock{base.__name__}", (LockRequest, base), {})


def prepare(task: SingletonTask, consumer: Any) -> None:
    """Prepare a locked task in the main process: its requests mint the tokens."""
    assert task.lock_options is not None
    base = symbol_by_name(getattr(task, "Request"))  # noqa: B009  mypy: untyped base
    task.Request = lock_request(base)
    is_locked = task.lock_options.lock_scope != "queued"
    is_prefork = isinstance(consumer.pool, PreforkPool)
    if is_prefork:
        between_forks.use()
    task.runs_in_children = is_locked and is_prefork
    task.acks_after_body = isinstance(consumer.pool, SoloPool)
    task.hears_acks = is_locked and task.app_locks.redelivery.hears_acks
    task.worker_consumer = consumer
