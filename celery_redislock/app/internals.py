"""Every private name of Celery, kombu and billiard that this package uses, each with the reason.

If a release of Celery renames one, only this module must change. The rest of the package calls the
functions here, and uses no such name itself. tests/unit/app/test_internals.py checks that, lists
what our classes override, and checks that the installed Celery has all of it.

A name is private if it begins with an underscore, or if Celery's documentation does not say what
others may do with it. Public modules of Celery are imported where they are used. What only workers
need is imported here by the function that needs it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final

# The stack of running tasks. `send_task` makes the task on top the parent of what it sends, and has
# no option against that. Without the stack, a task that is published again would be its own child,
# and log lines and receivers of a conflict would not know their task.
# Called for each app when it is complete. Without it `redislock_tasks` would not protect the tasks
# of a process that is not a worker, such as one that calls them eagerly.
from celery._state import _task_stack, connect_on_app_finalize

# The names of Celery's own settings. Without them a misspelt one of ours would not be found.
from celery.app.defaults import DEFAULTS

from ..protocol.signatures import own_signature

CELERYS_SETTINGS: Final = DEFAULTS
on_app_complete: Final = connect_on_app_finalize


# -- the task that runs here ------------------------------------------------------------------


# Classes: an interrupted generator would end at any time, and pop what somebody else has pushed.


class outside_of_tasks:  # noqa: N801  a context manager
    """Hide the running task: `send_task` would make it the parent of what it sends."""

    def __enter__(self) -> None:
        self._task = _task_stack.pop() if len(_task_stack) else None

    def __exit__(self, *exc_info: object) -> None:
        if self._task is not None:
            _task_stack.push(self._task)


class as_running:  # noqa: N801  a context manager
    """Make this the running task, with this request, before Celery's tracer does: receivers,
    policies and log lines need it.
    """

    def __init__(self, task: Any, request: Any = None) -> None:
        self._task, self._request = task, request
        requests = task.request_stack
        self._before = (_task_stack, [*_task_stack.stack]), (requests, [*requests.stack])

    def __enter__(self) -> None:
        _task_stack.push(self._task)
        self._task.request_stack.push(self._request)

    def __exit__(self, *exc_info: object) -> None:
        self._task.request_stack.pop()
        _task_stack.pop()

    def restore(self) -> None:
        """Make the same task current as when this object was made. A time limit may come at any
        bytecode, so a `with` statement that changes it may never be left, or never be entered. Safe
        to repeat.
        """
        for stack, before in self._before:
            if stack.stack != before:
                while len(stack):
                    stack.pop()
                for each in before:
                    stack.push(each)


def running_task() -> Any:
    """The running task itself, or None: `celery.current_task` is a proxy, and slower."""
    return _task_stack.top


# -- apps and their tasks ---------------------------------------------------------------------


def real_app(app: Any) -> Any:
    """The app itself: `current_app` is a proxy, which cannot be the key of an app's data."""
    resolve = getattr(app, "_get_current_object", None)
    return app if resolve is None else resolve()


def is_nobodys_app(app: Any) -> bool:
    """Whether this is Celery's default app, which nobody configured: Celery makes it if code asks
    for the current app and there is none, and binds every shared task to it.
    """
    from celery import _state

    return app is _state.default_app and app.main == "default"


def app_named(name: str) -> Any:
    """The app that `celery -A` means by this name: Celery does not find it for completions."""
    from celery.app.utils import find_app

    return find_app(name)


def hide_setting(pattern: str) -> None:
    """Have Celery mask the settings whose names match wherever it shows them: `report`, `inspect
    conf`, and Flower, which asks for the latter. The values stay as they are.
    """
    from celery.app import utils

    # All of a URL is masked: a password may be in several places of it.
    hidden = utils.HIDDEN_SETTINGS
    utils.HIDDEN_SETTINGS = re.compile(f"{hidden.pattern}|{pattern}", hidden.flags)


#: Where an app's settings keep what to call when some of ours have changed.
_TELLS: Final = "_redislock_tells"


@functools.cache
def _telling(base: Any) -> type[Any]:
    """A class of settings that tell when some of ours are changed. Celery's own tell nobody."""

    class Settings(base):
        def _redislock_change(self, names: Iterable[Any], change: Callable[[], Any]) -> Any:
            tell = self.__dict__.get(_TELLS)
            if tell is None or not any("redislock_" in str(name).lower() for name in names):
                return change()
            before = dict(self.changes)
            try:
                changed = change()
                tell()
            except BaseException:
                self.changes.clear()
                self.changes.update(before)
                with contextlib.suppress(Exception):
                    tell()
                raise
            return changed

        def __setitem__(self, key: Any, value: Any) -> None:
            self._redislock_change([key], partial(super().__setitem__, key, value))

        def __delitem__(self, key: Any) -> None:
            self._redislock_change([key], partial(super().__delitem__, key))

        def pop(self, key: Any, *default: Any) -> Any:
            return self._redislock_change([key], partial(super().pop, key, *default))

        def clear(self) -> None:
            self._redislock_change([*self.changes], super().clear)

        def update(self, *args: Any, **kwargs: Any) -> Any:
            new = dict(*args, **kwargs)
            return self._redislock_change(new, partial(super().update, new))

    return Settings


def on_change_of_ours(conf: Any, callback: Callable[[], None]) -> None:
    """Call this whenever one of our settings is changed. If it raises, the change is undone."""
    if _TELLS not in conf.__dict__:
        kind: Any = type(conf)
        # Not by an assignment, which would be one of a setting.
        object.__setattr__(conf, "__class__", _telling(kind))
    conf.__dict__[_TELLS] = callback


def tasks_so_far(app: Any) -> Mapping[str, Any]:
    """The tasks that the app has by now: `app.tasks` would complete it, which may be under way."""
    tasks: Mapping[str, Any] = app._tasks
    return tasks


def is_completing(app: Any) -> bool:
    """Whether this thread completes the app, or gives a shared task to it. An error then would keep
    the tasks that come next from being registered.
    """
    # Celery holds this lock meanwhile, and tells nobody else.
    owned: bool = app._finalize_mutex._is_owned()
    return owned


#: The mark of a `send_task` of ours, and of what wraps it.
_CHECKS: Final = "_redislock_checks"


def before_send_task(app: Any, check: Callable[[str, Mapping[str, Any]], None]) -> None:
    """Call this with the task's name and the options whenever `app.send_task` is called, except by
    a task's `apply_async`. No signal can refuse a call: Celery only logs what a receiver raises.
    """
    app = real_app(app)
    before = vars(app).get("send_task")  # what a tool has put there, or a test
    if hasattr(before, _CHECKS):
        return

    @functools.wraps(app.send_task)
    def send_task(name: str, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("task_type") is None:
            check(name, kwargs)
        if before is not None:
            return before(name, *args, **kwargs)
        # By its class: what tools put there later is called too. A mock takes no instance.
        found = type(app).send_task
        bound = found.__get__(app) if hasattr(found, "__get__") else found
        return bound(name, *args, **kwargs)

    setattr(send_task, _CHECKS, True)
    app.send_task = send_task


def on_registration(app: Any, callback: Callable[[Any], None]) -> None:
    """Call this with each task that is registered from now on, before Celery binds it: no signal is
    sent at that time, and `on_after_finalize` comes later.
    """
    registry = app._tasks

    class Registry(type(registry)):  # type: ignore[misc]
        def __setitem__(self, name: str, task: Any) -> None:
            callback(task)
            super().__setitem__(name, task)

    registry.__class__ = Registry


def apps_so_far() -> list[Any]:
    from celery import _state

    return list(_state._get_active_apps())


def is_decorated(attributes: Mapping[str, Any]) -> bool:
    """Whether `@app.task` made this class: its annotations are its function's, not options."""
    return "_decorated" in attributes


def check_arguments(task: Any, args: Any, kwargs: Any) -> None:
    """Raise Celery's own `TypeError` if arguments do not fit. For a task that was written as a
    class, which Celery does not check, raise Python's.
    """
    check = getattr(task, "__header__", None) or own_signature(task.run).bind
    check(*args, **kwargs)


def without_models(task: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments as `apply_async` sends them: models become dicts if the task has
    `pydantic=True`. Else the sender would compute another lock than the worker.
    """
    dump = getattr(task, "_dump_pydantic_arguments", None)
    return (args, kwargs) if dump is None else dump(args, kwargs)


# -- messages ---------------------------------------------------------------------------------


def serializer_of(content_type: str | None) -> str | None:
    """The name of the serializer that writes this content type, to publish in it; or None."""
    # kombu's public functions give the type for a name, but not the name for a type.
    from kombu.serialization import registry

    return registry.type_to_name.get(content_type) if content_type else None


def least_countdown(app: Any) -> float:
    """The shortest countdown in seconds that the broker accepts: with quorum queues RabbitMQ itself
    delays messages, by whole seconds, and Celery raises for less than one.
    """
    from celery.utils.quorum_queues import detect_quorum_queues

    driver = app.producer_pool.connections.connection.transport.driver_type
    return 1.0 if detect_quorum_queues(app, driver)[0] else 0.0


# -- in a pool process ------------------------------------------------------------------------

#: The logger on which Celery reports how a task ended. Without it a refused duplicate would be an
#: ERROR with a traceback of ours.
TRACE_LOGGER: Final = "celery.app.trace"
#: Celery's description of an error in `Task.throws`, in the field `description` of its log line.
EXPECTED: Final = "raised expected"


def is_celerys_tracer(tracer: Any) -> bool:
    """Whether `build_tracer` made this tracer, or a tool's wrapper calls one that it made. Asyncio
    pools let Celery make another one, which runs the body in another thread, or only later.
    """
    if inspect.iscoroutinefunction(tracer):
        return False
    cells = [cell.cell_contents for cell in getattr(tracer, "__closure__", None) or ()]
    functions = [inspect.unwrap(each) for each in (tracer, *cells) if callable(each)]
    names = [(getattr(f, "__module__", ""), getattr(f, "__name__", "")) for f in functions]
    return ("celery.app.trace", "trace_task") in names


def trace_of_end(info: Any, error: BaseException, state: str) -> Any:
    """What a tracer returns for a task that an error, with this `info`, ended without its body."""
    from celery.app.trace import TraceInfo, trace_ok_t

    return trace_ok_t(info, TraceInfo(state, error), 0.0, None)


def is_pool_process() -> bool:
    """Whether this is a process of a worker's pool."""
    from billiard.process import current_process

    # Only processes that billiard started have one. The worker's own process has none.
    return current_process()._parent_pid is not None


def at_pool_process_exit(callback: Callable[[], Any]) -> None:
    """Call this when this pool process ends: such a process does not run `atexit`."""
    from billiard.util import Finalize

    Finalize(None, callback, exitpriority=10)


# -- in a worker's main process ---------------------------------------------------------------
#
# `celery.worker.state` has the requests that a worker knows. Attributes of a request say what
# became of it; its methods check them, so that each outcome is stored and reported once.


def is_active(request: Any) -> bool:
    """Whether the pool runs the request: its child, which has no other task, may be terminated."""
    from celery.worker import state

    return request in state.active_requests


def is_revoked(request: Any) -> bool:
    """Whether somebody has revoked the task by now, by its id or a stamp. Celery checks that only
    when the task is due, and until then a lock or a place would be kept for it.
    """
    from celery.worker import state

    if request.id in state.revoked:
        return True
    return any(
        stamp in state.revoked_stamps
        and _listed(request.stamps.get(stamp)) & _listed(state.revoked_stamps[stamp])
        for stamp in request.stamped_headers
    )


def _listed(value: Any) -> set[Any]:
    return set(value) if isinstance(value, list | tuple | set) else {value}


def call_in_consumer(consumer: Any, call: Callable[..., Any], *args: Any) -> None:
    """Call this in the consumer's thread, which gives tasks to children and owns the connections.
    In another thread, sending a message or ending a child could interfere with it.
    """
    consumer.call_soon(call, *args)


def times_connected(consumer: Any) -> int:
    """How often the worker has connected: what came before may have gone to another worker."""
    times: int = consumer.restart_count
    return times


def is_connected_still(consumer: Any, times: int) -> bool:
    """Whether the worker still has the connection that it had when `times_connected` was `times`.
    Celery counts a lost connection only when it has cleaned up.
    """
    connection = consumer.connection
    is_connected = connection is not None and connection.connected
    return bool(is_connected) and times_connected(consumer) == times


def worker_has_ended(worker_ref: Callable[[], Any]) -> bool:
    """Whether the worker of this weak reference has ended, or was dropped before it began. One that
    is terminated in another program, as a test's worker is, sends no `worker_shutdown`.
    """
    from celery.bootsteps import TERMINATE

    worker = worker_ref()
    if worker is None:
        return True
    return worker.blueprint is not None and worker.blueprint.state == TERMINATE


def sends_to(app: Any) -> str | None:
    """The broker to which an app has sent, without its password: the app sends there, whatever its
    settings are now. None if it has not sent.
    """
    pool = getattr(vars(app).get("amqp"), "_producer_pool", None)
    return None if pool is None else str(pool.connections.connection.as_uri())


def bring_forward(request: Any, seconds: float) -> None:
    """Make a message that was just received due so much sooner, for tests with their own clock."""
    if request.eta is not None:
        request._eta -= timedelta(seconds=seconds)


def hasten(timer: Any, seconds: float) -> None:
    """Make all that this worker's timer counts down due so much sooner. See `bring_forward`."""
    queue = timer.schedule._queue
    with getattr(timer, "mutex", contextlib.nullcontext()):
        queue[:] = [each._replace(eta=each.eta - seconds) for each in queue]


def queues_by_tag(task_consumer: Any) -> dict[str, str]:
    """The queues that kombu's consumer consumes, by the tag that a message of RabbitMQ has."""
    return {tag: queue for queue, tag in task_consumer._active_tags.items()}


def terminate_child(consumer: Any, pid: int, signum: int) -> None:
    """Send the signal to a pool process, as a revocation does. The pool replaces the process."""
    consumer.pool.terminate_job(pid, signum)


def say_ended(request: Any) -> None:
    """Tell the worker that the request has ended, or it would wait for that at shutdown."""
    from celery.worker import state

    state.task_ready(request)


def was_revoked(request: Any) -> bool:
    """Whether Celery has stored and reported that the task is revoked."""
    return bool(request._already_revoked)


def mark_revoked(request: Any) -> None:
    """Keep Celery from storing and reporting how the task ended: we have done so."""
    request._already_revoked = True


def was_cancelled(request: Any) -> bool:
    """Whether the connection was lost, and Celery has stored RETRY: the message comes again."""
    return bool(request._already_cancelled)


def context_of(request: Any) -> Any:
    """The request as a task sees it, for backends and signals."""
    return request._context


def error_of(exc_info: Any) -> BaseException:
    """The error with which a task failed, without the wrapper that a pool process puts on it."""
    from billiard.einfo import ExceptionWithTraceback

    error: Any = exc_info.exception
    return error.exc if isinstance(error, ExceptionWithTraceback) else error  # type: ignore[no-any-return]
