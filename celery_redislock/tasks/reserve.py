"""Keeps queued tasks unique: the sender acquires the lock, and it is kept for the message.

The reservation is kept under the lock's own key, with a token that travels with the message. The
first copy of the message takes the lock over with that token. The reservation is short while the
message is published, and long once the broker has it: a sender that dies or hangs leaves no lock
without a message.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from celery import uuid
from celery.app.task import Context

from ..app.delivery import KEY, VERSION, Kept
from ..app.outcomes import Outcome, Whose, report
from ..app.results import ended_since, proves_nothing
from ..app.times import seconds_until
from ..errors import LockConflict, LockUnavailable
from ..lock.lease import Heir, Lease
from ..protocol import holders
from ..protocol.calls import keep_reserved, reserve
from ..protocol.checks import MAX_SECONDS
from ..protocol.claims import NOT_OURS, Busy, Claim, Reserved, to_ms
from ..protocol.clock import clock
from ..protocol.holders import Holder
from ..protocol.keys import LockKeys
from ..protocol.log import logger
from ..protocol.names import NoLock
from ..protocol.tokens import new_token
from .current import is_beat
from .ends import End
from .locked import LockedTask
from .room import follow_up
from .settle import settle_beside, settle_kept

#: Seconds that a reservation lasts while its message is published.
PUBLISHING: Final = 30.0
#: Seconds for which a run that has a result may still have the lock: Celery kills its process.
LAST_MOMENTS: Final = 2.0
#: Seconds between two looks at that.
LOOK_EVERY: Final = 0.02

#: Options of a call for whose task something waits that does not see what the call returns: the
#: rest of a chain, a chord, a group, or the attempt that the task continues.
_CANVAS: Final = (
    *("chain", "chord", "group_id", "group_index", "root_id", "parent_id"),
    *("reply_to", "retries", "replaced_task_nesting"),
)
#: Other options that tie the call to this very message: an id that is known, or callbacks.
_BINDING: Final = ("task_id", "link", "link_error")
#: Headers of scheduled calls: the first is of Celery's beat, from 5.7 on, the second of
#: django-celery-beat and its admin. Neither catches a LockConflict.
_SCHEDULES: Final = ("celery_beat_task", "periodic_task_name")
#: The option of a call that has its own `CallOptions`. Never sent.
CALL: Final = "_redislock_call"


class CallOptions(NamedTuple):
    """Options of one call that the task does not set: `compat` gives them."""

    refuse: Callable[[LockConflict], Any]  # gives what a duplicate that is not sent comes to
    raises: bool  # whether `refuse` raises
    queued_ttl: float  # in place of the task's `lock_queued_ttl`


def publish_reserved(
    task: LockedTask,
    publish: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: dict[str, Any],
    own: Lease | None,
) -> Any:
    """Acquire the task's lock, then send the task. See `Sending`."""
    __tracebackhide__ = True  # in eager mode the body runs here
    call_options = options.pop(CALL, None)
    is_in_canvas = any(options.get(name) for name in _CANVAS)
    send = partial(publish, args, kwargs)
    try:
        sent = task.as_sent(args, kwargs, options.get("serializer"))
        call = (*sent, options.get("headers") or {})
        if not is_in_canvas:
            _refuse_if_lacking(task, call[-1])
        keys, label = task.lock_keys_for(*call), task.label_for(*call)
    except NoLock:
        return send(**options)
    except Exception:
        if not is_in_canvas:
            raise
        return send(**options)  # the worker gets the same error, and the task fails for all to see
    sending = Sending(task, send, keys, label, options, is_in_canvas, own, call_options)
    return sending.send()


def _refuse_if_lacking(task: LockedTask, headers: Mapping[str, Any]) -> None:
    """Refuse a call without a header that its key needs. A receiver of `before_task_publish` or
    another base may add it later; the call would be taken for a duplicate of another tenant's.
    """
    given = {**(headers.get("headers") or {}), **headers}
    for name in task.lock_options.lock_headers:
        if name not in given:
            raise TypeError(
                f"{task.name}: lock_headers names {name!r}, which this call lacks as the lock is"
                f" taken; pass apply_async(headers={{{name!r}: ...}}), None for none. A base that"
                " adds headers must come before SingletonTask"
            )


@dataclasses.dataclass(eq=False, repr=False)
class Sending:
    """One call of a task's `apply_async`."""

    task: LockedTask
    publish: Callable[..., Any]  # Celery's `apply_async`, given the options
    keys: LockKeys
    label: str | None  # that lock's name for people
    options: Mapping[str, Any]
    is_in_canvas: bool  # something that does not see what the call returns waits for its task
    own: Lease | None  # of the task that is running here, if any
    call_options: CallOptions | None = None

    def __post_init__(self) -> None:
        self._lock_options = self.task.lock_options
        self._is_bound = any(self.options.get(name) for name in _BINDING)
        self._task_id: str = self.options.get("task_id") or uuid()
        self.options = {**self.options, "task_id": self._task_id}
        self._reservation = Kept(self.keys.lock_id, new_token())
        self._is_eager = bool(self.task.app.conf.task_always_eager)
        self._seconds = self._seconds_in_queue()

    def send(self) -> Any:
        """Reserve the lock and publish, or do what `on_queued_conflict` says. Returns the
        `AsyncResult` of the task, or of the one that has the lock; or raises `LockConflict` or
        `LockUnavailable`.
        """
        __tracebackhide__ = True
        if self._continues_own():
            return self._pass_on()
        claim = self._claim()
        try:
            reply = self._reserve(claim)
            if isinstance(reply, Busy) and self._has_ended(reply.holder):
                reply = self._take_over(claim, reply)
            result = None if isinstance(reply, Busy) else self._publish_reserved()
        except LockUnavailable:
            raise
        except BaseException:
            # Also an interrupt that came with the server's answer, or while the broker hangs.
            settle_kept(self.task.app, self._reservation, End.CANNOT_RUN)
            raise
        if isinstance(reply, Busy):
            follow_up(self.task.app, self.keys, self._lock_options.lock_ttl, reply)
            return self._meet(reply.holder)
        if reply is not None and self._seconds > PUBLISHING and not self._is_eager:
            self._extend_reservation(claim)
        return result

    def _reserve(self, claim: Claim) -> Reserved | Busy | None:
        """Ask for the lock. None if the server did not answer: the task is sent all the same."""
        call = reserve(claim, min(self._seconds, PUBLISHING))
        try:
            return self.task.app_locks.server.run(call, hold_off=0)
        except LockUnavailable as exc:
            if self._lock_options.on_redis_error == "raise" and not self.is_in_canvas:
                if call.in_doubt:  # nothing is sent, and the lock may be kept for it
                    settle_beside(self.task.app, self._reservation, End.CANNOT_RUN)
                raise
            logger.warning("redislock: %s is sent without a reservation: %s", self, exc)
            return None  # perhaps only the answer was lost: send the token along

    def _has_ended(self, holder: Holder | None) -> bool:
        """Whether the holder has a result. Only a call that would not be sent asks this."""
        if self.is_in_canvas or holder is None or holder.cooling_down:
            return False
        task, task_id, since = self.task, holder.task_id, holder.acquired_at
        if task_id is None or since is None or task_id == self._task_id:
            return False
        try:
            # Whether this call's own result is stored says nothing of the other's.
            return not proves_nothing(task, Context()) and ended_since(task, task_id, since)
        except Exception as exc:  # the backend does not answer: believe the lock server
            logger.debug("redislock: cannot ask whether %s has ended: %r", task_id, exc)
            return False

    def _take_over(self, claim: Claim, busy: Busy) -> Reserved | Busy | None:
        """Reserve the lock of a task that has ended: its reservation was not freed, as in an
        outage; or its run keeps the lock until its process is gone, which may be after its result
        is stored.
        """
        ended, kept, key = busy.holder, busy.reservation, self.keys.lock
        assert ended is not None
        if kept is not None:
            logger.warning(
                "redislock: %s is kept for %s, which has ended: freed", key, kept.task_id
            )
            settle_kept(self.task.app, Kept(self.keys.lock_id, kept.token), End.CANNOT_RUN)
            return self._reserve(claim)
        give_up = clock() + LAST_MOMENTS
        reply: Reserved | Busy | None = busy
        while isinstance(reply, Busy) and reply.holder is not None:
            if reply.holder.task_id != ended.task_id:
                return reply
            if clock() >= give_up:
                logger.warning("redislock: %s is held by %s, which has ended: sent", key, ended)
                return None
            time.sleep(LOOK_EVERY)
            reply = self._reserve(claim)
        return reply

    def _claim(self) -> Claim:
        ttl = self._lock_options.lock_ttl
        token = self._reservation.token
        value = holders.encode(
            token, ttl_ms=to_ms(ttl), task=self.task.name, task_id=self._task_id,
            attempt=self._attempt, nesting=self._nesting, queued=True, queue=self._queue,
            label=self.label,
        )  # fmt: skip
        return Claim(self.keys, token, ttl, value, self._task_id, self._attempt, self._nesting)

    def _publish_reserved(self) -> Any:
        __tracebackhide__ = True
        if self._is_eager and self._lock_options.lock_scope == "queued":
            # The task starts here and now, and its lock is free then.
            settle_kept(self.task.app, self._reservation, End.UNLOCKED)
            return self.publish(**self.options)
        header = {"v": VERSION, **self._reservation.header}
        if self._is_bound:  # the caller may have chosen the id, to send the task again under it
            header["sent"] = self._reservation.token
        headers = {**(self.options.get("headers") or {}), KEY: header}
        return self.publish(**{**self.options, "headers": headers})

    def _extend_reservation(self, claim: Claim) -> None:
        try:
            server = self.task.app_locks.server
            kept = server.run(keep_reserved(claim, self._seconds), once=True)
            if kept.outcome == NOT_OURS:
                logger.debug(
                    "redislock: the reservation of %s was taken or expired while the task was sent",
                    self,
                )
        except LockUnavailable as exc:
            logger.warning(
                "redislock: the reservation of %s lasts only %g s: %s", self, PUBLISHING, exc
            )

    # -- somebody has the lock ------------------------------------------------------------

    def _meet(self, holder: Holder | None) -> Any:
        answer = self._lock_options.on_queued_conflict
        existing = holder.task_id if holder is not None else None
        if self.is_in_canvas or existing == self._task_id:
            answer = "publish"
        call = self.call_options
        raises = answer == "raise" if call is None else call.raises
        if raises and answer != "publish" and self._is_scheduled:
            return self._not_sent(holder)
        if call is not None and answer != "publish" and (call.raises or existing is not None):
            self._ended(Outcome.RAISED if call.raises else Outcome.NOT_SENT, holder)
            return call.refuse(LockConflict(self.keys.lock, holder))
        if answer == "raise":
            self._ended(Outcome.RAISED, holder)
            raise LockConflict(self.keys.lock, holder)
        if answer == "publish" or existing is None or self._is_bound or self._is_eager:
            return self.publish(**self.options)  # the worker's policy decides
        return self._not_sent(holder)

    def _not_sent(self, holder: Holder | None) -> Any:
        """Send nothing. Returns the result of the task that has the lock; None if no task has."""
        self._ended(Outcome.NOT_SENT, holder)
        if holder is None or holder.task_id is None:
            return None
        result = self.task.AsyncResult(holder.task_id)
        # As Celery's `apply_async` does: nothing is to wait for a result that nobody stores.
        result.ignored = bool(self.options.get("ignore_result", self.task.ignore_result))
        return result

    def _ended(self, outcome: Outcome, holder: Holder | None) -> None:
        key, overdue = self.keys.lock, self._overdue(holder)
        more = "" if overdue is None else (
            f"; no worker of this package has taken that message for {overdue:.0f} s: it was lost,"
            " or ran elsewhere, if none of them is busy"
        )  # fmt: skip
        report(
            outcome, Whose(key, self.task, self._task_id, self._attempt, self.label),
            "redislock: %s %s: %s is held by %s%s", self, outcome.label, key, holder, more,
            holder=holder, details={}, emits=False,
            level=None if overdue is None else logging.WARNING,
        )  # fmt: skip

    def _overdue(self, holder: Holder | None) -> float | None:
        """For how many seconds a worker could have taken the message that has the lock, if that is
        suspiciously long; None if not.
        """
        if holder is None or not holder.queued or holder.acquired_at is None or holder.ttl is None:
            return None
        # The ttl that is left tells when its countdown was over.
        since_due = self._lock_options.lock_queued_ttl - holder.ttl
        overdue = min(time.time() - holder.acquired_at, since_due)
        return overdue if overdue >= self._lock_options.warn_after else None

    # -- a retry, or a replacement, from within the run -----------------------------------

    def _continues_own(self) -> bool:
        own = self.own
        return (
            own is not None
            and own.claim.keys.lock == self.keys.lock
            and own.claim.task_id == self._task_id
            and not own.given_back
        )

    def _pass_on(self) -> Any:
        """Publish the next message of the running task, which gets the lock when the run ends."""
        assert self.own is not None
        # The limit may be another one by now: the slot stays.
        self._reservation = self._reservation._replace(lock_id=self.own.claim.keys.lock_id)
        result = self._publish_reserved()
        value = partial(
            holders.kept_in_queue,
            token=self._reservation.token,
            task=self.task.name,
            attempt=self._attempt,
            nesting=self._nesting,
            label=self.label,
        )
        self.own.leave_at_end(Heir(value, self._seconds))
        return result

    # -- what the options say -------------------------------------------------------------

    @property
    def _is_scheduled(self) -> bool:
        headers = self.options.get("headers") or {}
        return is_beat.get() or any(headers.get(name) for name in _SCHEDULES)

    @property
    def _attempt(self) -> int:
        return int(self.options.get("retries") or 0)

    @property
    def _queue(self) -> str | None:
        """The queue that the call names, for people who look at the lock; None if it names none."""
        queue = self.options.get("queue")
        name = getattr(queue, "name", queue)
        return name if isinstance(name, str) else None

    @property
    def _nesting(self) -> int:
        return int(self.options.get("replaced_task_nesting") or 0)

    def _seconds_in_queue(self) -> float:
        """Seconds for which the lock is kept for the message, if nobody takes it."""
        options = self.options
        start = seconds_until(options.get("countdown") or options.get("eta"))
        call = self.call_options
        ttl = self._lock_options.lock_queued_ttl if call is None else call.queued_ttl
        seconds = max(start or 0.0, 0.0) + ttl
        expires = seconds_until(options.get("expires", self.task.expires))
        if expires is not None:
            seconds = min(seconds, max(expires, 0.0))
        return min(seconds, MAX_SECONDS)

    def __str__(self) -> str:
        label = "" if self.label is None else f" ({self.label})"
        return f"{self.task.name}[{self._task_id}]{label}"
