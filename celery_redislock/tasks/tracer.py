"""Traces a locked task in a worker, around Celery's own tracer.

`Task.__trace__` is the attribute where Celery keeps a task's tracer. On a locked task it is a
property that wraps that tracer in ours. Ours asks for the lock before it enters Celery's, and a
duplicate ends without Celery's. However Celery's ends, ours then settles everything that the
delivery held.

A duplicate that ends sends Celery's `task_prerun` and `task_postrun` one after the other, with
state IGNORED, or FAILURE if it is refused: tools pair them. A duplicate that waits sends
`task_prerun` when its body is about to run.

Tools that make spans of these signals need nothing else. Sentry wraps Celery's tracer instead, with
a scope for each task. Our tracer runs outside that scope, and so makes one too.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from traceback import format_exception_only
from typing import Any, Final

from celery import Task, states
from celery.exceptions import SoftTimeLimitExceeded
from celery.signals import task_failure, task_postrun, task_prerun

from ..app.delivery import KEY
from ..app.internals import is_celerys_tracer, trace_of_end
from ..app.results import store_failed
from ..errors import ConfigError
from ..protocol.log import logger
from .ends import RUN, EndInfo
from .life import Life
from .limits import only_logged
from .locked import LockedTask
from .refused import is_refusal
from .state import Ends, Fails

Tracer = Callable[..., Any]
#: The attribute of our tracers, and of functions that wrap them, that has their task.
_OF: Final = "_redislock_of"

#: The task's outcome is stored: what fails from then on is only logged.
_NOT_TOLD: Final = "redislock: %s has ended, but not all were told"


def around(task: LockedTask, inner: Tracer) -> Tracer:
    """A tracer that takes the task's lock and then calls Celery's. A tracer that we made for this
    task before is returned as it is. Raises `ConfigError` if the inner one is not Celery's.
    """
    if getattr(inner, _OF, None) is task:
        return inner
    if not is_celerys_tracer(inner):
        raise ConfigError(
            f"task {task.name}: its tracer is {getattr(inner, '__module__', inner)}'s, not"
            " Celery's, and need not run the body under the lock. Use one of Celery's pools, not an"
            " asyncio pool; a function that wraps Celery's tracer is accepted"
        )

    def trace(uuid: str, args: Any, kwargs: Any, request: dict[str, Any] | None = None) -> Any:
        __tracebackhide__ = True
        raw = {} if request is None else request

        def celerys(run: Life) -> Any:
            """Celery's part of the delivery's life."""
            __tracebackhide__ = True
            course = run.course
            if isinstance(course, Ends):
                return _ended(task, run, course.error, uuid)
            if isinstance(course, Fails) and is_refusal(course.error):
                failed = None if _is_awaited(task, inner) else _fail(task, run, course.error, uuid)
                if failed is not None:
                    return failed
            raw["properties"] = _with_run(raw.get("properties"), run)
            return inner(uuid, args, kwargs, raw)

        if "sentry_sdk" not in sys.modules:
            return Life(task, raw).live(args, kwargs, celerys)
        with _scope():
            return Life(task, raw).live(args, kwargs, celerys)

    setattr(trace, _OF, task)
    return trace


def _with_run(properties: Any, run: Life) -> dict[str, Any]:
    """The message's properties, with the run added: the task's `__call__` takes it from there."""
    properties = properties if isinstance(properties, dict) else {}
    stamped = properties.get(KEY)
    return {**properties, KEY: {**(stamped if isinstance(stamped, dict) else {}), RUN: run}}


def _scope() -> contextlib.AbstractContextManager[Any]:
    """A scope for what receivers and policies tell Sentry of this task, so that it is not reported
    with the process's next task. Does nothing with a Sentry before 2.
    """
    isolation_scope = getattr(sys.modules["sentry_sdk"], "isolation_scope", contextlib.nullcontext)
    scope: contextlib.AbstractContextManager[Any] = isolation_scope()
    return scope


def _details(task: LockedTask, run: Life, uuid: str) -> dict[str, Any]:
    """What Celery gives with `task_prerun` and `task_postrun`."""
    args, kwargs = run.facts.args, run.facts.kwargs
    return {"sender": task, "task_id": uuid, "task": task, "args": args, "kwargs": kwargs}


def _ended(task: LockedTask, run: Life, error: BaseException, uuid: str) -> Any:
    if run.facts is not None and (task_prerun.receivers or task_postrun.receivers):
        details = _details(task, run, uuid)
        with only_logged(_NOT_TOLD, run), run.as_current():
            task_prerun.send(**details)
            task_postrun.send(**details, retval=error, state=states.IGNORED)
    return trace_of_end(EndInfo(error), error, states.IGNORED)


def _is_awaited(task: LockedTask, inner: Tracer) -> bool:
    """Whether the failure must happen in Celery's tracer: for a tool, or a `before_start`."""
    has_own_start = type(task).before_start is not Task.before_start
    return has_own_start or hasattr(inner, "__wrapped__")


def _fail(task: LockedTask, run: Life, error: Exception, uuid: str) -> Any:
    """Fail a refused duplicate as Celery's tracer does, but without the traceback, which costs the
    most. None if the backend does not answer: then it fails in Celery's tracer.
    """
    args, kwargs, details = run.facts.args, run.facts.kwargs, _details(task, run, uuid)
    with run.as_current():
        task_prerun.send(**details)
        info = EndInfo(error, "".join(format_exception_only(type(error), error)))
        try:
            store_failed(task, run.request, error, info.traceback)
        except SoftTimeLimitExceeded:
            raise
        except Exception as exc:
            logger.warning("redislock: could not store how %s ended: %r", run, exc)
            task_postrun.send(**details, retval=exc, state=states.FAILURE)
            return None
        with only_logged(_NOT_TOLD, run):
            task.on_failure(error, uuid, args, kwargs, info)
            task_failure.send(
                sender=task, task_id=uuid, exception=error, args=args, kwargs=kwargs,
                traceback=None, einfo=info,
            )  # fmt: skip
            task.after_return(states.FAILURE, error, uuid, args, kwargs, None)
        task_postrun.send(**details, retval=error, state=states.FAILURE)
    return trace_of_end(info, error, states.FAILURE)
