"""One delivery of a locked task in a worker: what it is, what it holds, what is reported of it."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final

from celery.app.task import Context

from ..app.delivery import Delivery, Kept, attempt_of
from ..app.errands import errands
from ..app.events import channel
from ..app.internals import as_running
from ..app.outcomes import Outcome, Whose, tell, tell_conflict
from ..app.settings import AppLocks
from ..errors import LockUnavailable
from ..lock.lease import Lease
from ..protocol import holders, notes
from ..protocol.calls import mark_done, turn_away
from ..protocol.claims import Busy, Claim, to_ms
from ..protocol.holders import Holder
from ..protocol.log import get_logger
from . import turns
from .locked import LockedTask
from .settle import End

logger = get_logger()

#: Another copy of a message may exist once it has waited in its worker for so many seconds.
COPIED_FROM: Final = 1.0


class Attempt:
    """A delivery, its claim, and its state. The steps are functions that take it.

    Args:
        task: the task.
        raw: the request as Celery hands it to the tracer. Our header is taken out of it.
        kept: what is kept for its message.
        locks: the app's locks.
        args: the call's arguments.
        kwargs: the call's keyword arguments.
        request: the request itself, if there is one already.

    Raises:
        ConfigError: a newer release sent the message.
        TypeError: the arguments do not fit the task.
        Exception: what a `lock_key` callable raises.

    Attributes:
        end: how the delivery ends, as far as is known by now.
        goes: the body is to run.
        reruns: it has run before, and its result is missing.
        parking: it is being put into the waiting room.
        is_noted: the server noted, as it answered, that the task ends without a run.
        replaces: it may end the holder, and others it.
        label: the lock's name for people, from `lock_label`; or None.
        is_counted: the server counted, as it answered, that the task is turned away.
    """

    # Class attributes: an instance is made for each task that runs, and few need other values.
    end = End.CANNOT_RUN
    goes = reruns = parking = replaces = is_noted = is_counted = False
    asks_since = 0.0
    label: str | None = None

    def __init__(
        self,
        task: LockedTask,
        raw: dict[str, Any],
        kept: Kept | None,
        locks: AppLocks,
        args: Any,
        kwargs: Mapping[str, Any],
        request: Any = None,
    ) -> None:
        self.task = task
        self.raw = raw
        self.locks = locks
        self.args = args
        self.kwargs = kwargs
        self.is_eager = request is not None
        if request is not None:
            self.request = request
        self.options = task.lock_options
        self.delivery = delivery = Delivery.take_from(raw, kept)
        if not self.is_eager:
            channel.wanted = delivery.events
        self.claim = self._claim()
        self.key = self.claim.keys.lock
        self.lease: Lease | None = None
        # The broker still has the message, or gave copies to other queues; or the message waited
        # here for longer than a visibility timeout may be, a second at least; or the broker did not
        # receive the acknowledgement of the message that this one was deferred from; or it may
        # deliver again whatever it received.
        self._came_with_copies = not self.is_eager and bool(
            task.acks_late
            or task.acks_after_body
            or delivery.redelivered
            or delivery.deferrals
            or delivery.fanout
            or delivery.age >= COPIED_FROM
            or locks.redelivery.copies_any_time
        )

    @property
    def may_have_copies(self) -> bool:
        """Whether another copy of its message may exist."""
        return self._came_with_copies or self.delivery.copied

    def _claim(self) -> Claim:
        task, raw, delivery = self.task, self.raw, self.delivery
        ttl = self.options.lock_ttl
        task_id, attempt, nesting = attempt_of(raw)
        policy = self.options.on_conflict
        self.replaces = policy.replaces
        arrived, age = self._arrival() if self.replaces else (None, None)
        keys = task.lock_keys_for(self.args, self.kwargs, raw)
        if task._redislock_label_maker is not None:
            self.label = task.label_for(self.args, self.kwargs, raw)
        value = holders.encode(
            delivery.token,
            ttl_ms=to_ms(ttl),
            task=task.name,
            task_id=task_id,
            attempt=attempt,
            nesting=nesting,
            node=raw.get("hostname"),
            arrived=arrived,
            age=age,
            label=self.label,
        )
        kept = delivery.kept
        # It may be for another lock: the sender, or an older release, had other code.
        is_ours = kept is not None and kept.mark == keys.mark
        turns_away = (policy.eager() if self.is_eager else policy).turns_away
        return Claim(
            *(keys, delivery.token, ttl, value, task_id, attempt, nesting, self.locks.done_ttl),
            kept=kept.token if is_ours and kept is not None else "",
            parked=kept is not None and bool(kept.entry_id),
            parent=(raw.get("parent_id") or "") if nesting else "",
            sent=delivery.sent,
            task=task.name,
            history=self.locks.history,
            turned_away=turns_away,
        )

    def _arrival(self) -> tuple[float | None, float | None]:
        """When this run arrived, for one that would replace it: a time, or an age."""
        delivery = self.delivery
        if self.began:
            return None, None
        if delivery.arrived is not None:
            return delivery.arrived, None
        return None, delivery.age if delivery.received is not None else None

    @property
    def began(self) -> bool:
        """Whether the task may have run before: a retry, or a copy of a message whose run died.
        What came since is newer.
        """
        return bool(
            self.raw.get("retries")
            or self.raw.get("replaced_task_nesting")
            or self.delivery.redelivered
        )

    @cached_property
    def request(self) -> Any:
        """The task's request, until Celery makes the one under which the body runs."""
        return Context(self.raw, args=self.args, kwargs=self.kwargs, called_directly=False)

    @contextlib.contextmanager
    def as_current(self) -> Iterator[None]:
        """Make this the running task, for receivers, policies and log lines."""
        if self.is_eager:
            yield
            return
        with as_running(self.task, self.request):
            yield

    # -- the lock -------------------------------------------------------------------------

    def heard(self, reply: Any) -> None:
        """Note when this one arrived. Publish the message that got the turn as this one asked."""
        if isinstance(reply, Busy) and reply.offered is not None:
            turns.publish(self.task.app, self.claim.keys, self.claim.ttl, reply.offered)
        delivery = self.delivery
        is_first = isinstance(reply, Busy) and delivery.arrived is None and not self.began
        if is_first and delivery.received is not None:
            # The latest possible time: its age is taken from when it asked. Taken from a late
            # answer, it would seem to have come before a holder that began earlier.
            delivery.arrived = reply.at - (reply.sent_at - delivery.received)

    def note(self, kind: str) -> str:
        """The kind of done note that this attempt leaves: a lasting one if another copy of the
        message may exist even after this one is acknowledged.
        """
        delivery = self.delivery
        is_copied = delivery.redelivered or delivery.copied or delivery.fanout
        return notes.lasting(kind) if is_copied else kind

    def mark_done(self) -> None:
        """Note that the task ends without a run, for other copies of its message: one that finds
        the lock free must not run instead.
        """
        if self.may_have_copies and not self.is_noted:
            try:
                self._mark_done()
            except LockUnavailable as exc:
                logger.warning(
                    "redislock: a copy of %s may run until its end can be noted: %s",
                    self, exc.reason,
                )  # fmt: skip
                errands.add(self._mark_done, most=self.claim.ttl)

    def _mark_done(self) -> None:
        self.locks.store.ask(mark_done(self.claim, self.note(notes.EXPECTS_RESULT)), once=True)

    def count_turned_away(self, holder: Holder | None) -> None:
        """Count that it ends without a run, unless the server counted it as it answered."""
        fence = None if holder is None else holder.fence
        if self.claim.history and not self.is_counted:
            with contextlib.suppress(LockUnavailable):  # the count is one too low then
                self.locks.store.run(turn_away(self.claim, fence), once=True)

    @property
    def acks_failures(self) -> bool:
        """Whether a failure ends the message. A rejected one may come back, to run again."""
        return ends_message(self.task, "acks_on_failure")

    @property
    def as_holder(self) -> Holder:
        return Holder(
            task=self.task.name,
            task_id=self.claim.task_id or None,
            attempt=self.claim.attempt,
            node=self.raw.get("hostname"),
            fence=self.lease.fence if self.lease is not None else 0,
            label=self.label,
        )

    # -- what is reported of it -----------------------------------------------------------

    def conflict_ended(
        self, outcome: Outcome, holder: Holder | None, countdown: float | None = None
    ) -> None:
        """Tell how a conflict ended."""
        age = _remarkable_age(outcome, holder, self.options.lock_warn_after)
        after = f" for {countdown:.1f} s" if countdown is not None else ""
        # The holder is made a text only if the line is logged.
        by = "has no known holder%.0s"
        if holder is not None:
            by = "is taken over by %s" if outcome is Outcome.REPLACED else "is held by %s"
        since = f", for {age:.0f} s" if age is not None else ""
        tell_conflict(
            outcome, self.whose, f"redislock: %s %s%s: %s {by}%s",
            self, outcome.label, after, self.key, holder, since,
            holder=holder, countdown=countdown,
            level=logging.WARNING if age is not None else None, emits=not self.is_eager,
        )  # fmt: skip

    @property
    def whose(self) -> Whose:
        """The run that a report is about."""
        return Whose(self.key, self.task, self.raw.get("id"), self.claim.attempt, self.label)

    def tell(self, outcome: Outcome, *line: Any, emits: bool = True, **more: Any) -> None:
        """Tell an outcome of this run. An eager run sends no events. See `outcomes.tell`."""
        tell(outcome, self.whose, *line, emits=emits and not self.is_eager, **more)

    def __str__(self) -> str:
        attempt = f" attempt {self.claim.attempt}" if self.claim.attempt else ""
        label = "" if self.label is None else f" ({self.label})"
        return f"{self.task.name}[{self.raw.get('id')}]{attempt}{label}"


def ends_message(task: Any, flag: str) -> bool:
    """Whether such a failure of a run ends its message. If not, the message may come back.

    Args:
        task: the Celery task.
        flag: `acks_on_failure` or `acks_on_timeout`, which Celery 5.5 has as one flag.
    """
    acks = getattr(task, flag, None)
    return bool(task.acks_on_failure_or_timeout if acks is None else acks) or not task.acks_late


def _remarkable_age(
    outcome: Outcome, holder: Holder | None, warn_after: float | None
) -> float | None:
    """For how many seconds the holder that turned it away has held the lock, if that is
    suspiciously long.
    """
    is_away = outcome in (Outcome.SKIPPED, Outcome.SKIPPED_WITH_RESULT, Outcome.RAISED)
    if not is_away or holder is None or holder.acquired_at is None or holder.queued:
        return None
    assert warn_after is not None
    age = time.time() - holder.acquired_at
    return age if age >= warn_after and not holder.cooling_down else None
