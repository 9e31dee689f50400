"""Runs the body of a locked task, reads how it ended, and decides how to release the lock."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import AsyncGeneratorType, CoroutineType
from typing import Any, Final

from celery.exceptions import Ignore, Reject, Retry

from ..app.internals import is_pool_process
from ..app.outcomes import Outcome
from ..app.times import seconds_until
from ..errors import ConfigError, LockLost, LockUnavailable
from ..lock.lease import Heir
from ..protocol import holders, notes, past
from ..protocol.calls import Release, mark_done, note_replaced, settle
from ..protocol.clock import clock
from ..protocol.holders import Holder, successor_text
from ..protocol.log import get_logger
from . import room
from .abort import Abort
from .limits import surely
from .record import NOT_RUN, Ran, Record

logger = get_logger()

#: What a body returns if it is an `async def` under a decorator.
_NEVER_AWAITED: Final = (CoroutineType, AsyncGeneratorType)


def guarded(run: Record, body: Callable[[], Any], abort: Abort | None) -> Any:
    """Run the body. If the lock is lost, the heartbeat's thread may raise `LockLost` in it."""
    __tracebackhide__ = True
    if abort is None:
        result = body()
    else:
        try:
            result = surely(partial(_armed, abort, body), abort.disarm, abort)
        except LockLost as exc:
            abort.disarm()
            if exc.key is not None:
                raise
            # It was raised from outside, where it cannot be given arguments.
            raise run.lease.lost_error() from None
    if isinstance(result, _NEVER_AWAITED):
        _refuse_async(run, result)
    return result


def _armed(abort: Abort, body: Callable[[], Any]) -> Any:
    __tracebackhide__ = True
    abort.arm()
    return body()


def _refuse_async(run: Record, result: Any) -> None:
    """Fail a task whose decorator hides an `async def`: its body has not run."""
    if isinstance(result, CoroutineType):
        result.close()  # else Python warns that nobody awaited it
    raise ConfigError(
        f"task {run.facts.task.name}: its body returned {type(result).__name__} {result!r}, which"
        " Celery does not await: the lock is released before it runs. Under its decorators the body"
        " is an `async def`; use a plain function that calls asyncio.run"
    )


# -- what the end of the body means -----------------------------------------------------------


def ran_to_its_end(run: Record) -> Ran:
    """The end of a body that returned."""
    return Ran(past.SUCCEEDED, _note_of_end(run, "callbacks", "chain"))


def ran_into(run: Record, error: BaseException) -> Ran:
    """The end of a body that raised this error."""
    if isinstance(error, Retry):
        # The next attempt's message is published: nothing is left to do for this attempt.
        return Ran(past.RETRIED, notes.ENDED, error)
    if isinstance(error, LockLost) and error.key == run.facts.key and run.lease.replaced_by:
        return Ran(past.REPLACED, notes.ENDED)
    if isinstance(error, Reject):
        # A requeued message must run again; without requeueing it never will.
        return Ran(past.REJECTED, "" if error.requeue else notes.ENDED)
    if isinstance(error, Ignore):  # also what `self.replace` raises
        return Ran(past.IGNORED, notes.ENDED)
    if isinstance(error, Exception):
        return Ran(past.FAILED, _note_of_end(run, "errbacks") if run.facts.acks_failures else "")
    return Ran(past.TERMINATED)  # the process is about to end


def _note_of_end(run: Record, *follow: str) -> str:
    """Which note to leave. A redelivered copy checks the stored result, which Celery stores last;
    where none is stored, we note the end ourselves when Celery returns.
    """
    request = run.request
    for name in (*follow, "chord"):
        if getattr(request, name, None):
            return notes.PUBLISHING if run.proves_nothing else notes.EXPECTS_RESULT
    return notes.EXPECTS_RESULT


# -- how the lock is released -----------------------------------------------------------------


def how_to_release(run: Record) -> Release | Heir | None:
    """How to end the lease: release the lock; keep it for the task's next message (`Heir`); or, if
    None, leave it to the worker's main process.
    """
    lease, ran = run.lease, run.ran
    if ran.how == past.TERMINATED and _is_retried_by_worker(run):
        return None
    if lease.replaced_by is None:  # else the lock goes to the run that replaces this one
        if lease.heir is not None:
            return lease.heir
        if ran.retry is not None and _is_held_for(run, ran.retry):
            return Heir(holders.held_for_retry, countdown_of(ran.retry) + lease.ttl)
    return Release(run.note_of(ran.note), run.may_have_copies, _min_hold(run))


def _is_retried_by_worker(run: Record) -> bool:
    """Whether this pool process ends, and the main process may send the task's retry. If so, the
    main process releases the lock, or keeps it for the retry, as for a process that was killed.
    """
    task = run.facts.task
    sends = is_pool_process() and getattr(task, "retry_on_worker_lost", False)
    return bool(sends and run.facts.options.kept_across_retries)


def _is_held_for(run: Record, retry: Retry) -> bool:
    """Whether the lock is to be kept for the retry, and is the lock that the retry needs."""
    options, task = run.facts.options, run.facts.task
    # With another scope, sending the retry made its message the heir, if it has the same lock.
    if options.lock_across_retries != "hold" or options.lock_scope != "running":
        return False
    sig = getattr(retry, "sig", None)
    if sig is None:
        return True
    try:
        args, kwargs = task.as_sent(sig.args or (), sig.kwargs or {})
        keys = task.lock_keys_for(args, kwargs, sig.options.get("headers") or {})
    except Exception:
        return False  # the retry will fail, and needs no lock for that
    return keys == run.facts.claim.keys


def _min_hold(run: Record) -> float:
    """Seconds since the acquisition for which the lock is kept."""
    options, ran = run.facts.options, run.ran
    is_any = options.lock_min_hold_after == "any" and ran is not NOT_RUN and ran.retry is None
    is_wanted = (is_any or ran.how == past.SUCCEEDED) and run.lease.replaced_by is None
    return (options.lock_min_hold or 0.0) if is_wanted else 0.0


def countdown_of(retry: Retry) -> float:
    """Seconds until the retry is received."""
    return max(seconds_until(retry.when) or 0.0, 0.0)


def call_off(run: Record, retry: Retry, by: Holder) -> None:
    """Cancel the published retry: it must not run older work after the newer run."""
    text, claim = successor_text(by.task or "", by.task_id or ""), run.facts.claim
    try:
        called_off = note_replaced(claim, claim.attempt + 1, text, countdown_of(retry))
        run.facts.locks.server.ask(called_off, once=True)
    except LockUnavailable as exc:
        logger.warning("redislock: could not cancel the retry of %s: %s", run, exc.reason)


def release_again(run: Record, release: Release, until: float) -> None:
    """Repeat the release that the server did not answer. Otherwise the lock would stay until it
    expires, which is at `until`. Then we repeat nothing: it may have had other holders since.
    """
    facts, copies, note = run.facts, run.may_have_copies, run.ran.note
    if clock() >= until:
        return
    release = release._replace(note=run.note_of(note), always=copies)
    settled = facts.locks.server.run(settle(facts.claim, release))
    if note != run.ran.note and copies:  # Celery did all that follows the body meanwhile
        facts.locks.server.run(mark_done(facts.claim, run.note_of(run.ran.note)), once=True)
    logger.info("redislock: %s is released now", facts.key)
    room.follow_up(facts.task.app, facts.claim.keys, facts.claim.ttl, settled)


# -- what is reported of the lock -------------------------------------------------------------


def say_acquired(run: Record) -> None:
    """Report that the lock is acquired."""
    fence, delivery = run.lease.fence, run.delivery
    latency = run.lease.acquired_at - run.asked_at
    run.facts.tell(
        Outcome.ACQUIRED,
        "redislock: %s acquired %s fence=%d", run, run.facts.key, fence,
        emits=delivery.met_lock, logged={"fence": fence},
        details={"fence": fence, "waited": delivery.waited, "latency": latency},
    )  # fmt: skip


def say_lost(run: Record) -> None:
    """Report that the lock is lost, or that the run must end for another one."""
    lease = run.lease
    by, reason = lease.replaced_by, lease.lost_because
    details = {"fence": lease.fence, "reason": reason, "replaced": by is not None}
    run.facts.tell(Outcome.LOST, emits=by is None, details=details, reason=reason)


def say_released(run: Record, owned: bool, is_kept: bool) -> None:
    """Report that the lock is released, or kept for the next message."""
    held = clock() - run.lease.acquired_at
    facts: dict[str, Any] = {"fence": run.lease.fence, "held": held}
    more = {"owned": owned, "kept_for_retry": is_kept, "how": run.ran.how}
    text = "redislock: %s released %s after %.3f s" if owned else ""
    run.facts.tell(
        Outcome.RELEASED, text, run, run.facts.key, held,
        details={**facts, **more}, **facts,
    )  # fmt: skip
