"""What a call of a locked task does: when Celery calls it, the body runs under the lock."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from celery import Task

from ..app.delivery import KEY
from .ends import LEASE, RUN
from .locked import LockedTask

if TYPE_CHECKING:
    from .run import Run

#: Marks the `__call__` that takes the lock: the one that it calls.
_OUTERMOST: Final = "_redislock_outermost"
#: In the request until the body begins, through whichever `__call__` Celery enters.
DUE: Final = "_redislock_due"


def call_under_lock(cls: type[Any]) -> None:
    """Make the `__call__` of this very class, the outermost one, run under the lock.

    A subclass or a mixin may have a `__call__` of its own, before or after ours, which need not
    call ours: all of it is the task's body.
    """
    inner = cls.__call__
    if hasattr(inner, _OUTERMOST):
        return

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        return _run_under_lock(self, lambda: inner(self, *args, **kwargs), args, kwargs)

    setattr(__call__, _OUTERMOST, inner)
    cls.__call__ = __call__


def has_own_call(cls: type[Any]) -> bool:
    """Whether the class or a base has a `__call__` that is neither ours nor Celery's. It may await
    the body.
    """
    mro = cls.__mro__
    calls = (vars(base).get("__call__", LockedTask.__call__) for base in mro[: mro.index(Task)])
    inner = (getattr(call, _OUTERMOST, call) for call in calls)
    ours = ("celery_redislock.", "celery.app.")
    return not all((getattr(call, "__module__", None) or "").startswith(ours) for call in inner)


def next_call(task: LockedTask) -> Callable[..., Any]:
    """What our `__call__` runs: that of the next base that has one, else the task's `run`.

    Celery's own `__call__` would push a second request.
    """
    cls = type(task)
    mro = cls.__mro__
    for base in mro[mro.index(LockedTask) + 1 :]:
        if "__call__" in vars(base):
            if base is Task:
                break
            return vars(base)["__call__"].__get__(task, cls)  # type: ignore[no-any-return]
    return task.run  # type: ignore[no-any-return]


def _run_under_lock(task: LockedTask, body: Callable[[], Any], args: Any, kwargs: Any) -> Any:
    """What the outermost `__call__` does."""
    request = task.request
    if request.called_directly or LEASE in request.__dict__:
        return body()  # a plain call, from outside of a task or from within its body
    run = _run_of(request)
    request.__dict__.update({LEASE: None, DUE: True})
    if run is None and request.is_eager:
        return _run_eagerly(task, request, body, args, kwargs)
    if run is None:
        return body()  # our tracer took no lock for it
    try:
        return run.call(body, request)
    except BaseException as exc:
        raise exc.with_traceback(_below_ours(exc.__traceback__))  # noqa: B904  it is the same


def _run_of(request: Any) -> Run | None:
    """The run of this request, if our tracer has begun it. Returned only once."""
    mark = (request.properties or {}).get(KEY)
    return mark.pop(RUN, None) if isinstance(mark, dict) else None


def _run_eagerly(
    task: LockedTask, request: Any, body: Callable[[], Any], args: Any, kwargs: Any
) -> Any:
    task._refuse_if_misconfigured()
    if not task._takes_lock(is_eager=True):
        return body()
    from .deeds import Ends  # only what runs tasks needs these
    from .run import Run

    def go(run: Run) -> Any:
        if isinstance(run.course, Ends):
            raise run.course.error
        return run.call(body, request)

    try:
        return Run(task, request.__dict__).live(args, kwargs, go, request)
    except BaseException as exc:
        raise exc.with_traceback(_below_ours(exc.__traceback__))  # noqa: B904  it is the same


def _below_ours(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of this package at its beginning.

    They tell a reader nothing, and each adds some kilobytes to what a pool process sends of an
    exception: above 64, which is all that the pipe holds, Celery's cold shutdown may hang.
    """
    while traceback is not None and traceback.tb_next is not None:
        package = str(traceback.tb_frame.f_globals.get("__package__"))
        if package.partition(".")[0] != "celery_redislock":
            break
        traceback = traceback.tb_next
    return traceback
