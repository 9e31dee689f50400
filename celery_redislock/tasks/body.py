"""Runs the body of a locked task, reads how it ended, and decides how to release the lock."""

from __future__ import annotations

from collections.abc import Callable
from types import AsyncGeneratorType, CoroutineType
from typing import Any, Final

from celery.exceptions import Ignore, Reject, Retry

from ..app.delivery import Delivery
from ..app.internals import is_pool_process
from ..app.outcomes import Outcome
from ..app.results import note_of_end
from ..app.times import seconds_until
from ..errors import ConfigError, LockLost, LockUnavailable
from ..lock.lease import Heir, Lease
from ..protocol import holders, notes, past
from ..protocol.calls import Release, note_replaced
from ..protocol.clock import clock
from ..protocol.holders import Holder, successor_text
from ..protocol.log import logger
from .abort import Abort
from .facts import Facts
from .state import Ran, State

#: What a body returns if it is an `async def` under a decorator.
_NEVER_AWAITED: Final = (CoroutineType, AsyncGeneratorType)


def guarded(facts: Facts, lease: Lease, body: Callable[[], Any], abort: Abort | None) -> Any:
    """Run the body. If the lock is lost, the heartbeat's thread may raise `LockLost` in it."""
    __tracebackhide__ = True
    if abort is None:
        result = body()
    else:
        try:
            try:
                try:
                    abort.arm()
                    result = body()
                finally:
                    abort.disarm()
            finally:
                if not abort.is_over:  # a time limit cut that short: see `Life.live`
                    abort.disarm()
        except LockLost as exc:
            abort.disarm()
            if exc.key is not None:
                raise
            # It was raised from outside, where it cannot be given arguments.
            raise lease.lost_error() from None
    if isinstance(result, _NEVER_AWAITED):
        _refuse_async(facts, result)
    return result


def _refuse_async(facts: Facts, result: Any) -> None:
    """Fail a task whose decorator hides an `async def`: its body has not run."""
    if isinstance(result, CoroutineType):
        result.close()  # else Python warns that nobody awaited it
    raise ConfigError(
        f"task {facts.task.name}: its body returned {type(result).__name__} {result!r}, which"
        " Celery does not await: the lock is released before it runs. Under its decorators the body"
        " is an `async def`; use a plain function that calls asyncio.run"
    )


# -- what the end of the body means -----------------------------------------------------------


def ran_to_its_end(facts: Facts, request: Any) -> Ran:
    """The end of a body that returned."""
    return Ran(past.SUCCEEDED, note_of_end(facts.task, request, fails=False))


def ran_into(facts: Facts, lease: Lease, request: Any, error: BaseException) -> Ran:
    """The end of a body that raised this error."""
    if isinstance(error, Retry):
        # The next attempt's message is published: nothing is left to do for this attempt.
        return Ran(past.RETRIED, notes.ENDED, error)
    if isinstance(error, LockLost) and error.key == facts.key and lease.replaced_by:
        return Ran(past.REPLACED, facts.note_of_no_run)
    if isinstance(error, Reject):
        # A requeued message must run again; without requeueing it never will.
        return Ran(past.REJECTED, "" if error.requeue else notes.ENDED)
    if isinstance(error, Ignore):  # also what `self.replace` raises
        return Ran(past.IGNORED, notes.ENDED)
    if isinstance(error, Exception):
        ends = facts.acks_failures
        return Ran(past.FAILED, note_of_end(facts.task, request, fails=True) if ends else "")
    return Ran(past.TERMINATED)  # the process is about to end


# -- how the lock is released -----------------------------------------------------------------


def how_to_release(facts: Facts, state: State, lease: Lease, ran: Ran) -> Release | Heir | None:
    """How to end the lease: a release; an `Heir`; or, if None, the main process ends it."""
    if ran.how == past.TERMINATED and _is_retried_by_worker(facts):
        return None
    if lease.replaced_by is None:  # else the lock goes to the run that replaces this one
        if lease.heir is not None:
            return lease.heir
        if ran.retry is not None and _is_held_for(facts, lease, ran.retry):
            return Heir(holders.held_for_retry, countdown_of(ran.retry) + lease.ttl)
    min_hold, pause = _kept_for(facts, lease, ran)
    return Release(state.note_of(ran.note), state.may_have_copies, min_hold, pause=pause)


def _is_retried_by_worker(facts: Facts) -> bool:
    """Whether the main process may send this task's retry: then it ends the lease, too."""
    sends = is_pool_process() and getattr(facts.task, "retry_on_worker_lost", False)
    return bool(sends and facts.options.kept_across_retries)


def _is_held_for(facts: Facts, lease: Lease, retry: Retry) -> bool:
    """Whether the lock is to be kept for the retry, and is the lock that the retry needs."""
    options, task = facts.options, facts.task
    # The body that asks for a pause, and sends its retry, has others wait for that: a free lock
    # would pause nobody, and a pause might refuse the retry.
    holds = options.lock_across_retries == "hold" or lease.pause_for
    # With another scope, sending the retry made its message the heir, if it has the same lock.
    if not holds or options.lock_scope != "running":
        return False
    sig = getattr(retry, "sig", None)
    if sig is None:
        return True
    try:
        args, kwargs = task.as_sent(sig.args or (), sig.kwargs or {})
        keys = task.lock_keys_for(args, kwargs, sig.options.get("headers") or {})
    except Exception:
        return False  # the retry will fail, and needs no lock for that
    return keys.lock == facts.key


def _kept_for(facts: Facts, lease: Lease, ran: Ran) -> tuple[float, float]:
    """For how many seconds the lock is kept: since the acquisition, and from now."""
    options = facts.options
    min_hold = (options.lock_min_hold or 0.0) if ran.how == past.SUCCEEDED else 0.0
    if lease.pause_for is not None:
        return min_hold, lease.pause_for
    if (pauses := options.lock_pause) is None:
        return min_hold, 0.0
    by_end = {past.SUCCEEDED: pauses.success, past.FAILED: pauses.failure}
    return min_hold, by_end.get(ran.how, 0.0)


def countdown_of(retry: Retry) -> float:
    """Seconds until the retry is received."""
    return max(seconds_until(retry.when) or 0.0, 0.0)


def call_off(facts: Facts, retry: Retry, by: Holder) -> None:
    """Cancel the published retry: it must not run older work after the newer run."""
    text, claim = successor_text(by.task or "", by.task_id or ""), facts.claim
    try:
        called_off = note_replaced(claim, claim.attempt + 1, text, countdown_of(retry))
        facts.locks.server.run(called_off, once=True)
    except LockUnavailable as exc:
        logger.warning("redislock: could not cancel the retry of %s: %s", facts, exc.reason)


# -- what is reported of the lock -------------------------------------------------------------


def report_acquired(facts: Facts, message: Delivery, lease: Lease, asked_at: float) -> None:
    fence, latency = lease.fence, lease.acquired_at - asked_at
    facts.report(
        Outcome.ACQUIRED,
        "redislock: %s acquired %s fence=%d", facts, facts.key, fence,
        emits=message.met_lock, logged={"fence": fence},
        details={"fence": fence, "waited": message.waited, "latency": latency},
    )  # fmt: skip


def report_lost(facts: Facts, lease: Lease) -> None:
    """Report that the lock is lost, or that the run must end for another one."""
    by, reason = lease.replaced_by, lease.lost_because
    details = {"fence": lease.fence, "reason": reason, "replaced": by is not None}
    facts.report(Outcome.LOST, emits=by is None, details=details, reason=reason)


def report_released(facts: Facts, lease: Lease, ran: Ran, owned: bool, is_kept: bool) -> None:
    """Report that the lock is released, or kept for the next message."""
    held = clock() - lease.acquired_at
    known: dict[str, Any] = {"fence": lease.fence, "held": held}
    more = {"owned": owned, "kept_for_retry": is_kept, "how": ran.how}
    text = "redislock: %s released %s after %.3f s" if owned else ""
    facts.report(
        Outcome.RELEASED, text, facts, facts.key, held, details={**known, **more}, **known,
    )  # fmt: skip
