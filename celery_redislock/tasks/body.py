"""Runs the body of a locked task under its lock, tells it if the lock is lost, and then releases
the lock, or leaves it to the task's retry.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from types import AsyncGeneratorType, CoroutineType
from typing import Any, Final, NoReturn

from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded

from ..app.errands import errands
from ..app.events import channel
from ..app.outcomes import Outcome, is_heard
from ..app.results import proves_nothing
from ..app.times import seconds_until
from ..errors import ConfigError, LockLost, LockUnavailable
from ..lock.lease import Heir, Lease
from ..protocol import holders, notes, past
from ..protocol.calls import Release, mark_done, note_replaced, settle
from ..protocol.claims import Settled
from ..protocol.clock import clock
from ..protocol.holders import Holder, successor_text
from ..protocol.log import get_logger
from . import turns
from .abort import Abort
from .asking import end_as_replaced
from .attempt import Attempt
from .ends import LEASE

logger = get_logger()

#: What a body returns that is an `async def` under a decorator.
_NEVER_AWAITED: Final = (CoroutineType, AsyncGeneratorType)


class LockedBody:
    """The body of an attempt, and the lease that it runs under, which is made here.

    Attributes:
        lease: the lease. Its fence is 0 if the lock was not acquired.
        note: what copies of the message are told of the end, see `notes`.
        how: how the run ended, for the history, see `past`.
    """

    # Class attributes: an instance is made for each task that runs, and few need other values.
    note, how = "", past.NOT_RUN
    _retry: Retry | None = None
    _ran = _succeeded = False
    #: The server's reply to the release, until the message that is next has been published.
    _following: Settled | None = None

    def __init__(self, attempt: Attempt) -> None:
        options = attempt.options
        self._attempt = attempt
        self._abort = Abort() if options.on_lock_lost == "abort" else None
        self.lease = attempt.lease = Lease(
            attempt.locks.store,
            attempt.claim,
            max_hold=options.lock_max_hold,
            listens=attempt.replaces,
            on_lost=self._on_lost,
            on_extended=self._on_extended,
        )

    # -- the body -------------------------------------------------------------------------

    def run(self, body: Callable[[], Any]) -> Any:
        """Run the body, whose lock is acquired, and remember how it ended."""
        attempt, lease = self._attempt, self.lease
        if is_heard(Outcome.ACQUIRED):
            self._say_acquired(attempt, lease)
        setattr(attempt.request, LEASE, lease)
        self._ran, self.how = True, past.FAILED
        try:
            result = self._guarded(attempt, body)
            if isinstance(result, _NEVER_AWAITED):
                _refuse_async(attempt, result)
        except Retry as exc:
            # The next attempt's message is published: nothing of this one is outstanding.
            self._retry, self.note, self.how = exc, notes.ENDED, past.RETRIED
            raise
        except LockLost as exc:
            by = lease.replaced_by
            if by is None or exc.key != attempt.key:
                self.note = _note_of_failure(attempt)
                raise
            self.note, self.how = notes.ENDED, past.REPLACED
            end_as_replaced(attempt, by)
        except Reject as exc:
            # A requeued message must run again; without requeueing it never will.
            self.note, self.how = "" if exc.requeue else notes.ENDED, past.REJECTED
            raise
        except Ignore:  # also what `self.replace` raises
            self.note, self.how = notes.ENDED, past.IGNORED
            raise
        except Exception:
            self.note = _note_of_failure(attempt)
            raise
        except BaseException:  # the process is to end
            self.how = past.TERMINATED
            raise
        self.note, self._succeeded = _note_of_end(attempt, "callbacks", "chain"), True
        self.how = past.SUCCEEDED
        return result

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
            # It was raised from outside, where it cannot be given arguments.
            raise LockLost(attempt.key, attempt.as_holder) from None

    def _say_acquired(self, attempt: Attempt, lease: Lease) -> None:
        waited, latency = attempt.delivery.waited, lease.acquired_at - attempt.asks_since
        details = {"fence": lease.fence, "waited": waited, "latency": latency}
        attempt.tell(
            Outcome.ACQUIRED,
            "redislock: %s acquired %s fence=%d", attempt, attempt.key, lease.fence,
            emits=attempt.delivery.met_lock, logged={"fence": lease.fence}, details=details,
        )  # fmt: skip

    # -- the end --------------------------------------------------------------------------

    def give_back(self) -> None:
        """Release the lock, or leave it to the retry. Safe to call again. An error of ours is
        logged: the task's own outcome stands, and the lock expires.
        """
        attempt, lease = self._attempt, self.lease
        # The lease is inherited if the body forked, and this is the fork.
        if lease.is_over or lease.pid != os.getpid():
            return
        try:
            if self.how == past.TERMINATED and self._is_retried_by_worker(attempt):
                lease.abandon()
            else:
                self._give_back(attempt, lease)
        except SoftTimeLimitExceeded:
            raise
        except Exception:
            logger.exception(
                "redislock: could not release %s of %s; it expires within %g s",
                attempt.key, attempt, lease.ttl,
            )  # fmt: skip
            lease.abandon()

    def _give_back(self, attempt: Attempt, lease: Lease) -> None:
        retry = self._retry
        if lease.replaced_by is not None:
            # The next run under the lock is another task's.
            if retry is not None:
                self._call_off(attempt, retry, lease.replaced_by)
            retry = lease.heir = None
        if retry is not None and lease.heir is None and self._holds_for(attempt, retry):
            lease.heir = Heir(holders.held_for_retry, _countdown(retry) + lease.ttl)
        kept, owned = lease.heir is not None, False
        if lease.heir is not None:
            owned = lease.leave_to(lease.heir, self.how)
        else:
            min_hold = self._min_hold(attempt, lease, retry)
            note, copies = attempt.note(self.note), attempt.may_have_copies
            settled = lease.release(Release(note, copies, min_hold), self.how)
            if settled is not None:
                owned, self._following = settled.ours, settled
            elif lease.unheard is not None and lease.fence:
                again = partial(self._give_back_again, lease.unheard, copies)
                errands.add(again, most=lease.deadline - clock())
        if lease.fence and self._ran and is_heard(Outcome.RELEASED):
            self._say_released(attempt, lease, owned, kept)

    def _is_retried_by_worker(self, attempt: Attempt) -> bool:
        """Whether this pool process ends, and the main process may send the task's retry: then that
        one releases the lock, or keeps it for the retry, as for a process that was killed.
        """
        sends = channel.is_pool_process and getattr(attempt.task, "retry_on_worker_lost", False)
        return bool(sends and attempt.options.kept_across_retries)

    def _give_back_again(self, release: Release, copies: bool) -> None:
        """Repeat the release that the server did not answer. Otherwise the lock would stay until it
        expires. After that nothing is repeated: the lock may have had other holders since.
        """
        attempt, store = self._attempt, self._attempt.locks.store
        if clock() >= self.lease.deadline:
            return
        note = self.note
        release = release._replace(note=attempt.note(note), always=copies)
        settled = store.run(settle(attempt.claim, release))
        if note != self.note and copies:  # all that follows the body was done meanwhile
            store.ask(mark_done(attempt.claim, attempt.note(self.note)), once=True)
        logger.info("redislock: %s is released now", attempt.key)
        turns.follow(attempt.task.app, attempt.claim.keys, attempt.claim.ttl, settled)

    def hand_over(self) -> None:
        """Publish the message that has the turn now. Safe to call again.

        Not before Celery has stored the result: a broker that does not answer would delay that,
        and a copy of the message that finds no result would run again.
        """
        following, self._following = self._following, None
        if following is None or (following.offered is None and following.due_in is None):
            return
        attempt = self._attempt
        try:
            turns.follow(attempt.task.app, attempt.claim.keys, attempt.claim.ttl, following)
        except SoftTimeLimitExceeded:
            # The task has its result, and a turn that lapses is offered again.
            logger.warning(
                "redislock: %s reached its time limit as it published who is next", attempt
            )
        except Exception:
            logger.exception("redislock: %s could not publish who is next", attempt)

    def _holds_for(self, attempt: Attempt, retry: Retry) -> bool:
        """Whether the lock is to be kept for the retry, and is the lock that the retry needs."""
        options = attempt.options
        # With another scope the retry's message is the heir, if any.
        if options.lock_across_retries != "hold" or options.lock_scope != "running":
            return False
        sig = getattr(retry, "sig", None)
        if sig is None:
            return True
        try:
            args, kwargs = attempt.task.as_sent(sig.args or (), sig.kwargs or {})
            keys = attempt.task.lock_keys_for(args, kwargs, sig.options.get("headers") or {})
        except Exception:
            return False  # it will fail, and needs no lock for that
        return keys == attempt.claim.keys

    def _say_released(self, attempt: Attempt, lease: Lease, owned: bool, kept: bool) -> None:
        held = clock() - lease.acquired_at
        facts: dict[str, Any] = {"fence": lease.fence, "held": held}
        attempt.tell(
            Outcome.RELEASED, "redislock: %s released %s after %.3f s", attempt, attempt.key, held,
            details={**facts, "owned": owned, "kept_for_retry": kept, "how": self.how}, **facts,
        )  # fmt: skip

    def _call_off(self, attempt: Attempt, retry: Retry, by: Holder) -> None:
        """Cancel the published retry: it must not run older work after the newer run."""
        text = successor_text(by.task or "", by.task_id or "")
        claim = attempt.claim
        try:
            called_off = note_replaced(claim, claim.attempt + 1, text, _countdown(retry))
            attempt.locks.store.ask(called_off, once=True)
        except LockUnavailable as exc:
            logger.warning("redislock: could not cancel the retry of %s: %s", attempt, exc.reason)

    def _min_hold(self, attempt: Attempt, lease: Lease, retry: Retry | None) -> float:
        """Seconds since the acquisition for which the lock is kept."""
        options = attempt.options
        after_any = options.lock_min_hold_after == "any" and self._ran and retry is None
        wanted = (self._succeeded or after_any) and lease.replaced_by is None
        return (options.lock_min_hold or 0.0) if wanted else 0.0

    # -- from the heartbeat's thread ------------------------------------------------------

    def _on_lost(self, lease: Lease) -> None:
        attempt = self._attempt
        by, reason = lease.replaced_by, lease.lost_because
        try:
            details = {"fence": lease.fence, "reason": reason, "replaced": by is not None}
            attempt.tell(Outcome.LOST, emits=by is None, details=details, reason=reason)
        finally:
            if self._abort is not None:
                self._abort.fire()

    def _on_extended(self, lease: Lease, late: float, retaken: bool) -> None:
        attempt = self._attempt
        attempt.tell(Outcome.EXTENDED, details={"late": late})
        if retaken:
            attempt.tell(Outcome.RECOVERED, details={"how": "retaken"}, reason="retaken")


def _note_of_failure(attempt: Attempt) -> str:
    return _note_of_end(attempt, "errbacks") if attempt.acks_failures else ""


def _note_of_end(attempt: Attempt, *follow: str) -> str:
    """What proves to a copy that the run is complete: its result, which Celery stores last.
    Where none is stored, we note it ourselves when Celery returns.
    """
    request = attempt.request
    for name in (*follow, "chord"):
        if getattr(request, name, None):
            break
    else:
        return notes.EXPECTS_RESULT
    return notes.PUBLISHING if proves_nothing(attempt.task, request) else notes.EXPECTS_RESULT


def _refuse_async(attempt: Attempt, result: Any) -> NoReturn:
    """Fail a task whose decorator hides an `async def`: its body has not run."""
    if isinstance(result, CoroutineType):
        result.close()  # else Python warns that nobody awaited it
    raise ConfigError(
        f"task {attempt.task.name}: its body returned {type(result).__name__} {result!r}, which"
        " Celery does not await: the lock is released before it runs. Under its decorators the body"
        " is an `async def`; use a plain function that calls asyncio.run"
    )


def _countdown(retry: Retry) -> float:
    return max(seconds_until(retry.when) or 0.0, 0.0)
