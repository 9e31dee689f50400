"""Results of tasks that end without a run, as Celery's backends store them."""

from __future__ import annotations

import functools
import sys
from datetime import datetime
from traceback import format_exception
from typing import Any, Final

from celery import states
from celery.app.task import Context
from celery.exceptions import Retry
from celery.utils.time import maybe_make_aware

from ..errors import TaskSkipped
from ..protocol import notes

#: On a request: the state RETRY is stored, and Celery stores it no more.
_RETRY_STORED: Final = "_redislock_retry_stored"


def store_retry(task: Any, request: Context, error: Any, traceback: str | None = None) -> None:
    """Store that an attempt ends in a retry, before that is sent: Celery stores it later, and then
    perhaps over the retry's own end, and from here on not at all. The error is the one given to
    `retry`, or None; without a traceback, it is raised here.
    """
    backend = task.backend
    if not hasattr(backend.mark_as_retry, _RETRY_STORED):
        # Celery calls the same backend. What a task or an app has for one may be of any class.
        backend.mark_as_retry = _only_once(backend.mark_as_retry)
    if stores_errors(task, request):
        raised = error if isinstance(error, BaseException) else sys.exc_info()[1]
        if traceback is None and raised is not None:
            traceback = "".join(format_exception(raised))
        # `Retry` makes the error what Celery stores, also if it cannot be pickled.
        backend.mark_as_retry(request.id, Retry(exc=error).exc, traceback, request=request)
    setattr(request, _RETRY_STORED, True)


def _only_once(mark_as_retry: Any) -> Any:
    @functools.wraps(mark_as_retry)
    def mark(task_id: str, exc: Any, *args: Any, request: Any = None, **kwargs: Any) -> Any:
        if hasattr(request, _RETRY_STORED):
            return exc
        return mark_as_retry(task_id, exc, *args, request=request, **kwargs)

    setattr(mark, _RETRY_STORED, True)
    return mark


def store_skipped(task: Any, request: Any, error: TaskSkipped) -> None:
    """Store that a task was skipped: state REVOKED, which chords and chains take for a failure."""
    # mark_as_revoked would leave the rest of a chain pending for ever.
    task.backend.mark_as_failure(
        request.id,
        error,
        request=request,
        store_result=stores_errors(task, request),
        call_errbacks=False,
        state=states.REVOKED,
    )


def store_failed(task: Any, request: Any, error: Exception, traceback: str) -> None:
    """Store that a task failed, also for its chord, chain and errbacks."""
    task.backend.mark_as_failure(
        request.id,
        error,
        traceback,
        request=request,
        store_result=stores_errors(task, request),
        call_errbacks=True,
    )


def store_expired(task: Any, request: Any) -> None:
    """Store that a task expired, as Celery does for a message that arrives too late."""
    task.backend.mark_as_revoked(
        request.id, "expired", request=request, store_result=stores_errors(task, request)
    )


def stores_errors(task: Any, request: Context) -> bool:
    """Whether a failure of this call is stored."""
    return bool(task.store_errors_even_if_ignored or not ignores_result(task, request))


def ignores_result(task: Any, request: Context) -> bool:
    """Whether this call's result is not stored."""
    own = request.__dict__.get("ignore_result")
    return bool(task.ignore_result if own is None else own)


def proves_nothing(task: Any, request: Context) -> bool:
    """Whether no result of this call is stored where others can read it."""
    # Imported here: few calls need it, and senders need no backends.
    from celery.backends.base import DisabledBackend
    from celery.backends.rpc import RPCBackend

    return isinstance(task.backend, DisabledBackend | RPCBackend) or ignores_result(task, request)


def note_of_end(task: Any, request: Context, *, fails: bool) -> str:
    """The note that a call's end leaves: `PUBLISHING` if no stored result proves that all which
    follows has been told. Celery stores a result after it has published callbacks and the chain of
    a success, but before it tells a chord, and before all that follows a failure.
    """
    told = ("chord", "chain", "errbacks") if fails else ("chord",)
    if any(getattr(request, name, None) for name in told):
        return notes.PUBLISHING
    if not fails and (request.callbacks or request.chain) and proves_nothing(task, request):
        return notes.PUBLISHING
    return notes.EXPECTS_RESULT


def is_ready(task: Any, task_id: str) -> bool:
    """Whether a final result is stored. RETRY is not one: so ends an attempt before a retry."""
    return task.backend.get_state(task_id) in states.READY_STATES


def ended_since(task: Any, task_id: str, since: float) -> bool:
    """Whether a result was stored since that Unix time, by the clocks of the machines involved."""
    meta = task.backend.get_task_meta(task_id, cache=False)
    if meta.get("status") not in states.READY_STATES:
        return False
    when = meta.get("date_done")
    try:
        when = datetime.fromisoformat(when) if isinstance(when, str) else when
        return bool(maybe_make_aware(when).timestamp() >= since)
    except (ValueError, TypeError, AttributeError):
        return False
