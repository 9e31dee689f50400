"""The worker's main process: it mints the tokens, and does for its children what they cannot.

A child that is killed has no chance to release its lock, and one that holds the interpreter's
lock, or is stopped, none to extend it. The main process knows key and token of what each child
runs: it extends the lock beside the child's own heartbeat, and releases it once the child is gone.
"""

from __future__ import annotations

import signal
import weakref
from collections.abc import Iterator
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, Final

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import Terminated, WorkerLostError
from celery import signals as celery_signals
from celery.worker import state
from celery.worker.request import Request

from .. import signals
from ..app.delivery import KEY, Kept, stamp
from ..app.errands import errands
from ..app.events import channel, emit
from ..app.results import store_skipped
from ..core.claims import NOT_OURS, Claim, Extended, Extension
from ..core.clock import clock
from ..core.heartbeat import RETRY_EVERY, heartbeat
from ..core.holders import Holder
from ..core.keys import keys_of_mark
from ..core.lease import logger
from ..core.log import fields
from ..core.rooms import RECEIVED_FOR
from ..core.store import Store
from ..core.upkeep import beat_every
from ..errors import LockUnavailable, TaskReplaced
from ..tasks.attempt import ends_message
from ..tasks.ends import Skipped
from ..tasks.settle import PATIENCE, End, settle_beside
from ..tasks.turns import follow
from .children import ChildWatch

if TYPE_CHECKING:
    from ..tasks.task import SingletonTask


_children: Final = ChildWatch()


class Requests:
    """A set of requests that live. One thread may add to it while another one goes through it."""

    def __init__(self) -> None:
        self._refs: weakref.WeakValueDictionary[int, LockRequest] = weakref.WeakValueDictionary()

    def add(self, request: LockRequest) -> None:
        self._refs[id(request)] = request

    def discard(self, request: LockRequest) -> None:
        self._refs.pop(id(request), None)

    def __iter__(self) -> Iterator[LockRequest]:
        return (each for ref in self._refs.valuerefs() if (each := ref()) is not None)


#: Requests that sleep until their eta, and for which something is kept meanwhile.
_sleeping: Final = Requests()
#: Requests whose messages came from a waiting room, where it is noted that they are here.
_from_rooms: Final = Requests()

#: Seconds after which a child that is to end, and stands the first signal, is killed.
KILL_AFTER: Final = 5.0
#: Seconds between two questions about the tasks of dead children to a server that does not answer.
ASK_AGAIN: Final = 10.0


class LockRequest(Request):
    """A request for a locked task."""

    #: Until when the lock server, which did not answer, is not asked about dead children's tasks.
    _not_asked_until = 0.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        events = channel.wanted_by(self, self.task.worker_consumer)
        self._lock_token = stamp(self._request_dict, events, self._content_type)
        self._noted_at = 0.0
        #: What is kept for the message, until it is known to be settled.
        self._kept = Kept.of(self._request_dict)
        if self._kept is not None:
            self._note_received(self._kept)
        #: Of the lock that the child may hold, once one has the task.
        self._lease: ChildLease | None = None
        #: In whose favour the child was terminated, and under which lock.
        self._replaced: TaskReplaced | None = None

    def on_accepted(self, pid: int, time_accepted: float) -> Any:
        """The pool took the task. In a pool of processes, each runs one task at a time."""
        # First of all: what follows may terminate the child.
        if self.task.runs_in_children:
            lease = self._lease = ChildLease(pid, self, self._lock_token)
            _children.on_exit(pid, lease.child_ended)
        accepted = super().on_accepted(pid, time_accepted)
        if self.task.runs_in_children:
            heartbeat.add(lease)
        return accepted

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        """A time limit was exceeded. If it is the hard one, the child is killed next."""
        if not soft:
            self._child_is_to_end()
            ends = ends_message(self.task, "acks_on_timeout")
            self.settle(End.ENDED_BY_CELERY if ends else End.COMES_BACK)
        return super().on_timeout(soft, timeout)

    def terminate(self, pool: Any, signal: Any = None) -> Any:
        """The task was revoked, and its child is to end."""
        self._child_is_to_end()
        self.settle(End.ENDED_BY_CELERY)
        return super().terminate(pool, signal)

    def cancel(self, pool: Any, signal: Any = None, **kwargs: Any) -> Any:
        """The connection to the broker was lost, and the child is to end."""
        self._child_is_to_end()
        return super().cancel(pool, signal, **kwargs)

    def _child_is_to_end(self) -> None:
        if self._lease is not None:
            self._lease.child_is_to_end = True

    def end_child(self, error: TaskReplaced, signum: int) -> None:
        """Terminate the child, in another's favour.

        In the consumer's thread, which is the one that gives tasks to children, lest it be another
        task that ends: while this one is active its child has no other.
        """
        if self not in state.active_requests:
            return
        logger.warning(
            "redislock: terminating pid %d, which runs %s[%s]: %s is to take its place",
            self.worker_pid, self.task.name, self.id, error.holder and error.holder.task_id,
        )  # fmt: skip
        self._child_is_to_end()
        self._replaced = error
        self.task.worker_consumer.pool.terminate_job(self.worker_pid, signum)

    def send_event(self, kind: str, **event: Any) -> Any:
        """An event of the task's own. One that was shown as waiting is not shown so for ever: for
        monitors, what stands for a state outdoes the state REVOKED.
        """
        super().send_event(kind, **event)
        header = self._request_dict.get(KEY) if kind == "task-revoked" else None
        if isinstance(header, dict) and (header.get("deferrals") or header.get("parked")):
            super().send_event("task-lock-revoked", name=self.task.name)

    def _note_received(self, kept: Kept) -> None:
        if self.eta is not None:
            _sleeping.add(self)
        if kept.entry_id and kept.mark:
            _from_rooms.add(self)
            errands.add(partial(self.note_here, kept))

    def note_here(self, kept: Kept) -> None:
        """Note in the waiting room that the message of that entry is here.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        locks = self.task.app_locks
        keys = keys_of_mark(locks.prefix, kept.mark)
        self._noted_at = clock()
        if not locks.store.rooms.note_received(keys, kept.entry_id, kept.token, PATIENCE):
            _from_rooms.discard(self)

    def still_here(self) -> None:
        """Note it again, when it is time; never again once the task is over, or its child dead."""
        kept = self._kept
        sleeps = self.eta is not None and self.time_start is None and not self._already_revoked
        if kept is None or not (sleeps or self in state.reserved_requests):
            _from_rooms.discard(self)
        elif clock() - self._noted_at > RECEIVED_FOR / 3:
            self.note_here(kept)

    def settle(self, end: End) -> None:
        """Give up what is kept for the message. In a thread: it asks the lock server and the
        broker, and this one serves them all.
        """
        kept, self._kept = self._kept, None
        settle_beside(self.task.app, kept, end)

    def revoked(self) -> bool:
        """Whether the task is not to run: it was revoked, or has expired. Its turn is over then."""
        if self._already_revoked:
            return True
        is_revoked = bool(super().revoked())
        if is_revoked:
            self.settle(End.ENDED_BY_CELERY)
        return is_revoked

    @property
    def is_revoked(self) -> bool:
        """Whether somebody has revoked the task by now, which Celery looks at when it is due."""
        if self.id in state.revoked:
            return True
        return any(
            stamp in state.revoked_stamps
            and set(_listed(self.stamps.get(stamp))) & set(_listed(state.revoked_stamps[stamp]))
            for stamp in self.stamped_headers
        )

    @property
    def _claim(self) -> Claim:
        """What the child claims."""
        return ChildLease(0, self, self._lock_token).claim

    def on_failure(
        self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False
    ) -> Any:
        """The task failed, or was skipped."""
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        if isinstance(error, Skipped):
            if self._already_cancelled:
                # The connection to the broker was lost when the child had ended it and we had not
                # heard of that: Celery has stored RETRY since, and what we acknowledge comes once.
                store_skipped(self.task, self._context, *error.args)
            self._announce_skipped()
        is_gone = isinstance(error, Terminated | WorkerLostError | SystemExit)
        if is_gone and self._replaced is not None and not self._already_revoked:
            return self._announce_replaced(self._replaced)
        if isinstance(error, WorkerLostError) and self._goes_on_elsewhere():
            # The child had put its task into the waiting room: that is no failure of the task.
            state.task_ready(self)
            return self.acknowledge()
        if is_gone:
            comes_back = self.task.acks_late and self.task.reject_on_worker_lost
            comes_back = comes_back and isinstance(error, WorkerLostError)
            comes_back = comes_back or self._already_cancelled
            self.settle(End.COMES_BACK if comes_back else End.ENDED_BY_CELERY)
        return super().on_failure(exc_info, send_failed_event, return_ok)

    def _goes_on_elsewhere(self) -> bool:
        """Whether the task of a dead child waits for its turn, or has had it since."""
        options = self.task.lock_options
        if not options.parks or options.lock_scope == "queued":
            return False
        if clock() < LockRequest._not_asked_until:
            return False
        try:
            claim = self._claim
            goes_on: bool = self.task.app_locks.store.rooms.goes_on_elsewhere(claim)
        except LockUnavailable as exc:
            # This is the worker's own thread, and many children may have been killed.
            LockRequest._not_asked_until = clock() + ASK_AGAIN
            logger.warning("redislock: cannot tell whether %s waits: %s", self.id, exc.reason)
            return False
        if goes_on:
            logger.warning(
                "redislock: the child that put %s[%s] into the waiting room is dead; it runs in"
                " its turn", self.task.name, self.id,
                extra=fields("queued", claim.keys.lock, task=self.task.name, task_id=self.id),
            )  # fmt: skip
        return goes_on

    def _announce_replaced(self, error: TaskReplaced) -> None:
        """The child was terminated. As Celery does with a revoked task, but with a result that says
        by whom, and that ends its chain.
        """
        state.task_ready(self)
        store_skipped(self.task, self._context, error)
        self.acknowledge()
        self._already_revoked = True
        self._announce_skipped(terminated=True)
        said = {"task": self.task.name, "task_id": self.id, "holder": error.holder}
        emit("replaced", "replaced", error.key or "", **said)

    def _announce_skipped(self, terminated: bool = False) -> None:
        said = {"terminated": terminated, "signum": None, "expired": False}
        super().send_event("task-revoked", **said)  # another event says what it was
        celery_signals.task_revoked.send(sender=self.task, request=self._context, **said)


class ChildLease:
    """What the main process knows of a lock that a child may hold: enough to extend it, and to
    release it when the child is dead. Never to take it.

    Attributes:
        child_is_to_end: this process has ended the child, or is about to. Celery forgets the
            request before the child is gone.
    """

    def __init__(self, pid: int, request: LockRequest, token: str) -> None:
        self._pid = pid
        self._request = weakref.ref(request)
        self._task: SingletonTask = request.task
        self._arguments = (request._args, request._kwargs)
        sent: dict[str, Any] = request._request_dict
        self._attempt = (
            request.id,
            sent.get("retries") or 0,
            sent.get("replaced_task_nesting") or 0,
        )
        self.child_is_to_end = self._child_is_dead = False
        self.token = token
        options = self._task.lock_options
        self.ttl: float = options.lock_ttl
        self._beat_every = beat_every(self.ttl, options.on_conflict.replaces)
        self._began = clock()
        self.next_beat = self._began + self._beat_every
        #: When the server last said that the child has the lock, and whether it does; None while
        #: it was not asked.
        self._confirmed_at: float | None = None
        self._held: bool | None = None

    @property
    def store(self) -> Store:
        return self._task.app_locks.store

    @cached_property
    def claim(self) -> Claim:
        """The child's claim. Made when it is needed: most tasks end before."""
        keys = self._task.lock_keys_for(*self._arguments)
        return Claim(keys, self.token, self.ttl, "", *self._attempt)

    @property
    def known_claim(self) -> Claim | None:
        """The claim; None if the arguments give no name, which the child says as the task fails."""
        try:
            return self.claim
        except Exception as exc:
            logger.debug("redislock: %s: no lock name: %s", self._attempt[0], exc)
            return None

    def child_ended(self) -> None:
        """The child is gone, and this was the last that it took: release what it left."""
        self._child_is_dead = True
        heartbeat.discard(self)  # first, or an extension could meet the release
        try:
            claim = self.known_claim
            if claim is None:
                return  # the child could not tell the lock's name either
            reply = self.store.locks.settle(claim, stray=True)
            if reply.ours:
                self._say_freed()
            follow(self._task.app, claim.keys, self.ttl, reply)
        except LockUnavailable as exc:
            logger.error("redislock: could not release the lock of dead pid %d: %s", self._pid, exc)
        except Exception:
            logger.exception("redislock: could not release the lock of dead pid %d", self._pid)

    def _say_freed(self) -> None:
        key = self.claim.keys.lock
        task_id, attempt, _ = self._attempt
        said = {"task": self._task.name, "task_id": task_id or "", "attempt": attempt}
        logger.warning(
            "redislock: released %s, whose holder, pid %d, is dead", key, self._pid,
            extra=fields("recovered", key, reason="freed", **said),
        )  # fmt: skip
        if signals.lock_recovered.receivers:
            details = signals.RecoveredDetails(key=key, how="freed", **said)
            signals.lock_recovered.send(sender=self._task, details=details)
        # If this worker ended the child, that has its own event, whose state this one would hide.
        if not self.child_is_to_end:
            emit("recovered", "recovered", key, reason="freed", **said)

    def report(self) -> dict[str, Any] | None:
        """What this process knows of it, as plain data; None if the child has ended it."""
        now = clock()
        if not self._may_hold:
            return None
        task_id, attempt, _ = self._attempt
        confirmed = self._confirmed_at
        return {
            "key": self.claim.keys.lock,
            "task": self._task.name,
            "task_id": task_id,
            "attempt": attempt,
            "pid": self._pid,
            "fence": None,
            "held": self._held,
            "held_for": round(now - self._began, 3),
            "confirmed_ago": None if confirmed is None else round(now - confirmed, 3),
            "ttl": self.ttl,
        }

    # -- for the heartbeat ----------------------------------------------------------------

    @property
    def _may_hold(self) -> bool:
        """Whether the child may still run the task, and it is known which lock that takes."""
        if self._child_is_dead or not (self.child_is_to_end or self._is_active):
            return False
        return self.known_claim is not None

    @property
    def _is_active(self) -> bool:
        request = self._request()
        return request is not None and request in state.active_requests

    def extension(self, now: float) -> Extension | None:
        """Never takes a lock that is missing: the child may just have released it."""
        if not self._may_hold:
            heartbeat.discard(self)
            return None
        max_hold = self._task.lock_options.lock_max_hold
        return Extension(self.claim, self.claim.opening, 0, retake=False, max_hold=max_hold)

    def answered(self, reply: Extended | LockUnavailable, sent_at: float, discarded: bool) -> None:
        if discarded:
            return
        if isinstance(reply, LockUnavailable):
            logger.debug("redislock: could not extend for pid %d: %s", self._pid, reply)
            self.next_beat = clock() + RETRY_EVERY
        elif reply.outcome == NOT_OURS:
            # It still waits for the lock, has lost it or released it: the child says which.
            self._held = False
            self.next_beat = clock() + self._beat_every
        else:
            self.next_beat = sent_at + self._beat_every
            self._confirmed_at, self._held = sent_at, True
            if reply.replaced_by is not None:
                self._make_room(reply.replaced_by, reply.ends_in)

    def _make_room(self, by: Holder, ends_in: float) -> None:
        """Terminate the child in another's favour, when its time is over."""
        request = self._request()
        if ends_in > 0:
            self.next_beat = min(self.next_beat, clock() + ends_in)
        elif request is not None:
            signum = signal.SIGKILL if -ends_in > KILL_AFTER else signal.SIGTERM
            error = TaskReplaced(self.claim.keys.lock, by)
            self._task.worker_consumer.call_soon(request.end_child, error, signum)


def settle_revoked() -> None:
    """Settle what is kept for messages that are revoked, and that Celery ends at their eta."""
    for request in _sleeping:
        if request.is_revoked:
            _sleeping.discard(request)
            request.settle(End.ENDED_BY_CELERY)


def note_received() -> None:
    """Note again of what messages from waiting rooms are still here, unless their tasks run.

    Raises:
        LockUnavailable: the server did not answer in time.
    """
    for request in _from_rooms:
        request.still_here()


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple | set) else [value]


@cache
def lock_request(base: type[Any]) -> type[Any]:
    """The request class of a locked task that has this one without a lock."""
    if issubclass(base, LockRequest):
        return base
    if base is Request:
        return LockRequest
    return type(f"Lock{base.__name__}", (LockRequest, base), {})
