"""Traces a locked task in a worker, around Celery's own tracer.

`Task.__trace__` is the attribute where Celery keeps a task's tracer. On a locked task it is a
property that wraps that tracer in ours. Ours asks for the lock before it enters Celery's, and a
duplicate ends without Celery's. However Celery's ends, ours then settles everything that the
delivery held.

A duplicate that ends sends Celery's `task_prerun` and `task_postrun` one after the other, with
state IGNORED: tools pair them. One that is refused fails in Celery's tracer. One that waits sends
`task_prerun` when its body is about to run.

Tools that make spans of these signals need nothing else. Sentry wraps Celery's tracer instead, with
a scope for each task. Our tracer runs outside that scope, and so makes one too.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any, Final

from celery import states
from celery.signals import task_postrun, task_prerun

from ..app.delivery import KEY
from ..app.internals import is_celerys_tracer, trace_of_end
from ..errors import ConfigError
from .ends import RUN, EndInfo
from .life import Life
from .limits import only_logged
from .locked import LockedTask
from .state import Ends

Tracer = Callable[..., Any]
#: The attribute of our tracers, and of functions that wrap them, that has their task.
_OF: Final = "_redislock_of"


def around(task: LockedTask, inner: Tracer) -> Tracer:
    """A tracer that takes the task's lock and then calls Celery's. A tracer that we made for this
    task before is returned as it is.

    Raises:
        ConfigError: the inner one is not Celery's.
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
            if isinstance(run.course, Ends):
                return _ended(task, run, run.course.error, uuid)
            raw["properties"] = _with_run(raw.get("properties"), run)
            return inner(uuid, args, kwargs, raw)

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
    with the process's next task. Does nothing without Sentry 2 or later in this process.
    """
    sentry = sys.modules.get("sentry_sdk")
    isolation_scope = getattr(sentry, "isolation_scope", contextlib.nullcontext)
    scope: contextlib.AbstractContextManager[Any] = isolation_scope()
    return scope


def _ended(task: LockedTask, run: Life, error: BaseException, uuid: str) -> Any:
    if run.facts is not None and (task_prerun.receivers or task_postrun.receivers):
        args, kwargs = run.facts.args, run.facts.kwargs
        details = {"sender": task, "task_id": uuid, "task": task, "args": args, "kwargs": kwargs}
        told = "redislock: %s has ended, but not all were told"
        with only_logged(told, run), run.as_current():
            task_prerun.send(**details)
            task_postrun.send(**details, retval=error, state=states.IGNORED)
    return trace_of_end(EndInfo(error), error, states.IGNORED)
