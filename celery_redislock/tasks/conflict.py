"""What a policy can do with a task that met a held lock: the verbs, as a worker runs them."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from ..app.again import message_options
from ..app.brokers import broker_of
from ..app.entries import Entry
from ..app.outcomes import Outcome
from ..errors import ConfigError, LockConflict, LockUnavailable, TaskSkipped
from ..policies import NO_RESULT, Policy
from ..protocol.claims import Acquired, Busy, Full, Older, Parked, Parking, Turn
from ..protocol.holders import Holder, successor_text
from ..protocol.log import get_logger
from ..protocol.rooms import park
from . import turns
from .asking import (
    ask,
    end_as_replaced,
    give_up_kept,
    lease_of,
    resolve,
    store_end,
    unless_unlocked,
)
from .attempt import Attempt
from .ends import Skipped, Waiting
from .refused import refused
from .sending import backoff, put_off
from .settle import End

logger = get_logger()

#: Seconds that are left to a task whose time in the waiting room is over.
NO_TIME: Final = 0.001
#: What `run` returns, for the policy to return.
RUN: Final = object()


@dataclasses.dataclass(eq=False, repr=False)
class TaskConflict:
    """The `policies.Conflict` of a task in a worker.

    Attributes:
        result: what the task returns if it ended with a result but without a run.
    """

    _attempt: Attempt
    _busy: Busy
    result: Any = None
    _unlocked: bool = False

    def meet(self, policy: Policy) -> None:
        """Let the policy end the conflict.

        Raises:
            Ignore: it ended without a run, and the task returns nothing.
            LockConflict: the policy refused it.
            ConfigError: the policy did not end the conflict.
        """
        policy.act(self)
        if not self._attempt.goes and self._attempt.end is not End.TURNED_AWAY:
            raise ConfigError(
                f"on_conflict={policy!r} did not end the conflict: its act() must return"
                " conflict.skip(), .defer(), .park(), .replace(), .fail(), or .run() after"
                " conflict.wait() returned True"
            )

    @property
    def key(self) -> str:
        return self._attempt.key

    @property
    def holder(self) -> Holder | None:
        return self._busy.holder

    @property
    def remaining(self) -> float:
        return self._busy.remaining

    @property
    def deferrals(self) -> int:
        return self._attempt.delivery.deferrals

    @property
    def waited(self) -> float:
        return self._attempt.delivery.waited

    # -- ends without a run ---------------------------------------------------------------

    def skip(self, result: Any = NO_RESULT) -> Any:
        attempt, holder = self._attempt, self._busy.holder
        attempt.end = End.TURNED_AWAY
        # Before the result is stored: if it never is, a copy of the message runs.
        attempt.mark_done()
        attempt.count_turned_away(holder)
        if not isinstance(result, type(NO_RESULT)):
            attempt.conflict_ended(Outcome.SKIPPED_WITH_RESULT, holder)
            self.result = result
            return result
        attempt.conflict_ended(Outcome.SKIPPED, holder)
        store_end(attempt, error := TaskSkipped(attempt.key, holder))
        raise Skipped(error)

    def fail(self) -> Any:
        attempt = self._attempt
        attempt.end = End.TURNED_AWAY
        if attempt.acks_failures:
            attempt.mark_done()
        attempt.count_turned_away(self.holder)
        attempt.conflict_ended(Outcome.RAISED, self.holder)
        raise refused(LockConflict(self.key, self.holder))

    def defer(self, countdown: float) -> Any:
        if self._attempt.is_eager:
            return self.skip()  # nobody would run what is published
        delivery = self._attempt.delivery
        if delivery.fanout and delivery.queue is None:
            logger.warning(
                "redislock: %s is skipped: it came through a fanout exchange, to a queue of which"
                " this broker cannot give it back to this worker alone",
                self._attempt,
            )
            return self.skip()
        # It gives up its turn, since it comes back by itself.
        give_up_kept(self._attempt, End.TURNED_AWAY)
        attempt, holder = self._attempt, self.holder
        say = partial(attempt.conflict_ended, Outcome.DEFERRED, holder, countdown)
        return put_off(attempt, countdown, say=say)

    # -- waiting --------------------------------------------------------------------------

    def wait(self, timeout: float | None) -> bool:
        attempt = self._attempt
        self._begin_to_wait()
        with _waiting(attempt):
            reply = resolve(
                attempt,
                lambda: lease_of(attempt).wait(timeout, attempt.heard, attempt.is_eager),
            )
        if isinstance(reply, Busy):
            self._busy = reply
            if not reply.for_message or attempt.delivery.gave_up or attempt.is_eager:
                return False
            # The message that the lock is kept for needs a pool slot, perhaps this one.
            return self._park(None, timeout, newest=False)
        if reply is None:
            self._unlocked = True
            return True
        attempt.conflict_ended(Outcome.WAITED, self.holder)
        return True

    def park(
        self, *, limit: int | None = None, max_wait: float | None = None, newest: bool = False
    ) -> bool:
        if self._attempt.is_eager:
            self.skip()  # nobody would run what is published
        self._begin_to_wait()
        give_up = None if max_wait is None else max(max_wait - self.waited, NO_TIME)
        return self._park(limit, give_up, newest)

    def replace(self, grace: float) -> bool:
        attempt = self._attempt
        if attempt.is_eager or attempt.claim.attempt or attempt.claim.nesting:
            # Nobody would run what is published; or the holder started after this task did.
            self.skip()
        self._begin_to_wait()
        if attempt.began and attempt.delivery.arrived is None:
            # A copy of a run that died: it must not end newer runs, and runs after them.
            return self._park(None, None, newest=True)
        return self._park(None, None, newest=True, grace=grace)

    def run(self) -> Any:
        attempt = self._attempt
        if not self._unlocked and not lease_of(attempt).fence:
            raise RuntimeError("a policy must not run the task before wait() has returned True")
        attempt.goes = True
        return RUN

    def _begin_to_wait(self) -> None:
        if self._attempt.delivery.since is None:
            self._attempt.delivery.since = time.time()

    def _park(
        self,
        limit: int | None,
        give_up: float | None,
        newest: bool,
        grace: float | None = None,
    ) -> bool:
        attempt = self._attempt
        if attempt.delivery.fanout:
            # In the room the copies would be one, and their queues may be gone when it is its turn.
            if give_up is not None and give_up <= NO_TIME:
                return False
            self.defer(backoff(attempt, self.deferrals, attempt.claim.ttl / 3))
        while True:
            reply = self._park_once(limit, give_up, newest, grace)
            if isinstance(reply, Busy):
                self._busy = reply  # the lock was free for a moment
                continue
            self._unlocked = reply is None
            return not isinstance(reply, Full)

    def _park_once(
        self, limit: int | None, give_up: float | None, newest: bool, grace: float | None
    ) -> Acquired | Busy | Full | None:
        """Put the task into the waiting room, unless the lock is free by now.

        Raises:
            Waiting: it waits in the room.
        """
        attempt, delivery = self._attempt, self._attempt.delivery
        request, broker = attempt.request, broker_of(attempt.task.app)
        header = delivery.parked_header(broker, attempt.label)
        options = message_options(attempt.raw, request, header, delivery)
        entry = Entry.of(attempt.task, request.args, request.kwargs, options, delivery.content_type)
        # From here on it may be published from the room, even if the answer is lost, or says that
        # it need not wait.
        attempt.parking = delivery.copied = True
        try:
            parking = Parking(
                entry.sealed(attempt.task.app, attempt.key).dump(),
                kind=re.sub("[|@]", "_", attempt.task.name) if newest else "",
                arrived=delivery.arrived,
                age=delivery.age if delivery.received is not None else 0.0,
                limit=limit,
                give_up=give_up,
                in_front=delivery.parked or grace is not None,
                replace=self._in_favour(grace),
                began=attempt.began,
            )
            reply = attempt.locks.store.run(park(attempt.claim, parking))
        except LockUnavailable as exc:
            unless_unlocked(attempt, exc)
            return None
        return self._parked(reply, newest, grace)

    def _in_favour(self, grace: float | None) -> tuple[str, float | None]:
        return successor_text(self._attempt.task.name, self._attempt.claim.task_id), grace

    def _parked(
        self, reply: Parked | Turn | Full | Older, newest: bool, grace: float | None
    ) -> Acquired | Busy | Full | None:
        attempt = self._attempt
        if not isinstance(reply, Parked):
            attempt.parking = False
        if isinstance(reply, Full):
            return reply
        if isinstance(reply, Older):
            by = reply.holder or Holder(task=attempt.task.name, task_id=reply.task_id)
            end_as_replaced(attempt, by)
        app, keys, ttl = attempt.task.app, attempt.claim.keys, attempt.claim.ttl
        if isinstance(reply, Parked):
            attempt.end = End.PUT_OFF
            attempt.conflict_ended(_parked_as(newest, grace), self.holder)
        for entry_id, replaced in reply.replaced.items():
            turns.end_replaced(app, keys, ttl, entry_id, replaced, attempt.claim.task_id)
        if isinstance(reply, Parked):
            turns.follow(app, keys, ttl, reply)
            raise Waiting
        return resolve(attempt, lambda: ask(attempt))


def _parked_as(newest: bool, grace: float | None) -> Outcome:
    if grace is not None:
        return Outcome.REPLACING
    return Outcome.COALESCED if newest else Outcome.QUEUED


@contextlib.contextmanager
def _waiting(attempt: Attempt) -> Iterator[None]:
    """Say that the task waits in its pool slot."""
    attempt.tell(Outcome.WAITING, details={"waits": True})
    try:
        yield
    finally:
        attempt.tell(Outcome.WAITING, details={"waits": False})
