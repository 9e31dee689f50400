"""What is known of a delivery when the lock is asked for."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

from celery.app.task import Context

from ..app.delivery import Delivery, Kept, attempt_of
from ..app.events import events
from ..app.options import WARN_AFTER
from ..app.outcomes import TURNED_AWAY, Outcome, Whose, report
from ..app.results import note_of_end
from ..app.settings import AppLocks
from ..errors import LockUnavailable
from ..protocol import holders, notes
from ..protocol.claims import Claim, to_ms
from ..protocol.clock import clock
from ..protocol.holders import Holder
from ..protocol.keys import LockKeys, keys_of_lock_id
from ..protocol.suspensions import Suspension
from .locked import LockedTask

#: Another copy of a message may exist once a worker has had it waiting for so many seconds.
COPIED_FROM: Final = 1.0


class Facts:
    """The facts of one delivery of a locked task, which never change. Raises `TypeError` if the
    arguments do not fit the task, and what a `lock_key` callable raises.
    """

    def __init__(
        self,
        task: LockedTask,
        locks: AppLocks,
        raw: dict[str, Any],
        message: Delivery,
        kept: Kept | None,
        args: Any,
        kwargs: Mapping[str, Any],
        is_eager: bool,
    ) -> None:
        self.task, self.locks, self.raw = task, locks, raw
        self.args, self.kwargs, self.is_eager = args, kwargs, is_eager
        self.options = options = task.lock_options
        policy = options.on_conflict
        self.policy = policy.eager() if is_eager else policy
        if not is_eager and message.events != events.wanted:
            events.learn(message.events, raw.get("hostname"))
        #: The task may have run before: a retry, or a copy of a message whose run died. Tasks that
        #: came since are newer.
        self.began = bool(raw.get("retries") or raw.get("replaced_task_nesting") or message.began)
        self.may_be_copy = _may_be_copy(locks, message)  # of a message that has ended
        keys = task.lock_keys_for(args, kwargs, raw)
        if kept is not None or self.began or self.may_be_copy:
            keys = self._with_own_slot(keys, kept)
        self.key = keys.lock
        self.label: str | None = None  # the lock's name for people, from `lock_label`
        if task._redislock_label_maker is not None:
            self.label = task.label_for(args, kwargs, raw)
        self.claim = self._claim(keys, message, kept)

    def _with_own_slot(self, keys: LockKeys, kept: Kept | None) -> LockKeys:
        """The lock's keys. A slot of this task's own is among them, also if the limit is lower by
        now: else the task would run beside itself, or be refused as its own duplicate.
        """
        task, raw = self.task, self.raw
        if kept is not None and kept.token and kept.is_of(keys) and kept.has_more_slots(keys):
            keys = keys_of_lock_id(self.locks.prefix, kept.lock_id)
        if self.is_eager or not (self.began or self.may_be_copy):
            return keys
        own = [raw.get("id")]
        if raw.get("replaced_task_nesting"):
            own.append(raw.get("parent_id"))
        with contextlib.suppress(LockUnavailable):  # the next question says so
            keys = task.reaching(keys, lambda value: holders.is_of_task(value, own))
        return keys

    def _claim(self, keys: LockKeys, message: Delivery, kept: Kept | None) -> Claim:
        task, raw, ttl = self.task, self.raw, self.options.lock_ttl
        task_id, attempt, nesting = attempt_of(raw)
        arrived, age, receipt = None, None, ""
        if self.options.on_conflict.replaces and not self.began:
            arrived, receipt = message.arrived, message.receipt
            if arrived is None and message.received is not None:
                age = message.age
        value = holders.encode(
            message.token,
            ttl_ms=to_ms(ttl),
            task=task.name,
            task_id=task_id,
            attempt=attempt,
            nesting=nesting,
            node=raw.get("hostname"),
            arrived=arrived,
            age=age,
            receipt=receipt,
            label=self.label,
        )
        # It may be for another lock: the sender may have had other code.
        ours = kept if kept is not None and kept.is_of(keys) else None
        return Claim(
            keys, message.token, ttl, value, task_id, attempt, nesting,
            done_ttl=self.locks.done_ttl,
            kept=ours.token if ours else "",
            member=ours.place.member if ours and ours.place else "",
            parent=(raw.get("parent_id") or "") if nesting else "",
            sent=message.sent,
            task=task.name,
            history=self.locks.history,
            turned_away=self.policy.turns_away,
        )  # fmt: skip

    @property
    def parked_before(self) -> str:
        """The entry id of the call that this process parked last, if it did so under this lock, and
        has not met the lock free since; else "".
        """
        lock_id, entry_id = self.task._redislock_parked
        return entry_id if lock_id == self.claim.keys.lock_id else ""

    @property
    def acks_failures(self) -> bool:
        """Whether a failure ends the message. A rejected message may come back, to run again."""
        return ends_message(self.task, "acks_on_failure")

    @cached_property
    def note_of_no_run(self) -> str:
        """The note of a task that ends without a run, as a success or as a failure."""
        request = Context(self.raw)
        either = [note_of_end(self.task, request, fails=fails) for fails in (True, False)]
        return notes.PUBLISHING if notes.PUBLISHING in either else notes.EXPECTS_RESULT

    # -- what is reported of the run -----------------------------------------------------------

    @property
    def _whose(self) -> Whose:
        return Whose(self.key, self.task, self.raw.get("id"), self.claim.attempt, self.label)

    def report(self, outcome: Outcome, *line: Any, emits: bool = True, **more: Any) -> None:
        """Report an outcome of this run. An eager run sends no events. See `outcomes.report`."""
        report(outcome, self._whose, *line, emits=emits and not self.is_eager, **more)

    def report_conflict(
        self,
        outcome: Outcome,
        holder: Holder | None,
        countdown: float | None = None,
        suspension: Suspension | None = None,
    ) -> None:
        """Report how a conflict ended."""
        age = level = None
        if holder is not None and outcome in TURNED_AWAY:
            age = _remarkable_age(holder, WARN_AFTER * self.options.lock_ttl)
            level = None if age is None else logging.WARNING
        after = f" for {countdown:.1f} s" if countdown is not None else ""
        # The holder becomes text only if the line is logged.
        who: Holder | Suspension | None = holder
        by = "has no known holder%.0s"
        if suspension is not None:
            who, by = suspension, "is suspended: %s"
            if outcome in TURNED_AWAY:  # no run does its work
                level = logging.WARNING
        elif holder is not None:
            by = "is taken over by %s" if outcome is Outcome.REPLACED else "is held by %s"
        since = f", for {age:.0f} s" if age is not None else ""
        report(
            outcome, self._whose, f"redislock: %s %s%s: %s {by}%s",
            self, outcome.label, after, self.key, who, since,
            holder=holder, countdown=countdown, suspension=suspension, details={},
            level=level, emits=not self.is_eager,
        )  # fmt: skip

    def __str__(self) -> str:
        attempt = f" attempt {self.claim.attempt}" if self.claim.attempt else ""
        label = "" if self.label is None else f" ({self.label})"
        return f"{self.task.name}[{self.raw.get('id')}]{attempt}{label}"


def _remarkable_age(holder: Holder, warn_after: float) -> float | None:
    """For how many seconds the holder has held the lock, if that is suspiciously long."""
    if holder.acquired_at is None or holder.queued:
        return None
    age = time.time() - holder.acquired_at
    return age if age >= warn_after and not holder.cooling_down else None


def report_no_lock(task: LockedTask, raw: Mapping[str, Any]) -> None:
    """Report that a call takes no lock, by its task's own `lock_key`."""
    task_id, attempt, _ = attempt_of(raw)
    report(
        Outcome.NO_LOCK, Whose("", task, task_id, attempt),
        "redislock: %s[%s] takes no lock: its lock_key is None for this call", task.name, task_id,
        details={"because": "no key"},
    )  # fmt: skip


def _may_be_copy(locks: AppLocks, message: Delivery) -> bool:
    # The broker gave copies to other queues. Or the message waited here longer than a visibility
    # timeout, which is at least a second. Or the broker did not receive the acknowledgement of the
    # message that was deferred to this one. Or the broker may redeliver even acknowledged messages.
    return bool(
        message.copied
        or message.deferrals
        or message.fanout
        or message.received is None
        or clock() - message.received >= COPIED_FROM
        or locks.redelivery.copies_any_time
    )


def ends_message(task: Any, flag: str) -> bool:
    """Whether such a failure, `acks_on_failure` or `acks_on_timeout`, ends the run's message."""
    acks = getattr(task, flag, None)
    return bool(task.acks_on_failure_or_timeout if acks is None else acks) or not task.acks_late
