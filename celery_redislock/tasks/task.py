"""`SingletonTask`, the base class: its options, and Celery's hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from celery import Task
from celery.result import AsyncResult, EagerResult
from celery.utils.imports import instantiate, symbol_by_name

from ..app.delivery import KEY, VERSION
from ..app.internals import before_send_task, is_completing, tasks_so_far
from ..app.options import UNSET
from ..app.results import store_retry
from ..app.unknown import refuse_options_of_call
from ..errors import ConfigError
from ..protocol.tokens import new_token
from .binding import OUTERMOST, is_celerys_own, resolve_options
from .collecting import is_collecting_errors
from .current import current_lock
from .ends import LEASE, RETRIES, RUN, Skipped
from .limits import only_logged
from .locked import LockedTask

if TYPE_CHECKING:
    from .life import Life

#: Set in the request until the body begins, whichever `__call__` Celery enters.
_DUE: Final = "_redislock_due"
#: The parameters of Celery's `apply_async` after the task's own arguments.
_POSITIONAL: Final = ("task_id", "producer", "link", "link_error", "shadow")


class _TracerAttribute:
    """`__trace__` of a locked task: stored as on a plain task, so that tools can save it."""

    def __get__(self, task: Any, owner: type[Any]) -> Callable[..., Any] | None:
        if task is None:
            return None
        tracer: Callable[..., Any] | None = task.__dict__.get("__trace__")
        return tracer

    def __set__(self, task: Any, inner: Callable[..., Any] | None) -> None:
        from .tracer import around  # only what runs tasks needs it

        task.__dict__["__trace__"] = None if inner is None else around(task, inner)

    def __delete__(self, task: Any) -> None:
        try:
            del task.__dict__["__trace__"]
        except KeyError:
            raise AttributeError("__trace__") from None


class SingletonTask(LockedTask):
    """A task that runs at most once at a time per signature, on any number of workers.

        @app.task(base=SingletonTask, lock_key=["account_id"], on_conflict="defer")
        def sync(account_id, force=False): ...

    Before the body runs, the worker takes a Redis lock; a heartbeat extends it; it is released
    on every exit. The worker enforces this, whoever sent the task. A direct call takes no lock.

    Attributes:
        lock_key: which calls exclude each other. Default: those with the same arguments. A list
            of argument names; a `str.format` template over the arguments, or a callable given
            the call's own arguments, whose text is the lock's whole name. A named argument that
            a call lacks and that has no default is a TypeError, even if a decorator gives it.
            Positional arguments are those of the function that decorators wrap, in order.
        lock_headers: names of message headers, such as ["tenant"], that are part of the key. A
            template takes them as `{headers[tenant]}`. Default: none.
        lock_ttl: seconds that a lock outlives a dead holder. Default: `redislock_ttl`, 30.
        lock_max_hold: seconds after which the lock is not extended any more. Default: never.
        lock_min_hold: seconds for which the lock is held from its acquisition on, even if the body
            ends sooner; not if it failed. Default: none.
        lock_pause: seconds for which the lock stays taken after a run has ended; or a dict of these
            by "success" and "failure". Default: none. See also `self.lock.pause`.
        lock_limit: how many runs may hold the lock at once, or a callable of the call's arguments
            that returns it. Default: 1.
        on_conflict: what a duplicate does: a policy, or "skip", "defer", "wait", "queue",
            "coalesce", "debounce", "replace", "raise". Default: `redislock_on_conflict`, "skip".
        on_lock_lost: "flag" sets `self.lock.lost`; "abort" also raises `LockLost` in the body.
            Default: `redislock_on_lock_lost`, "flag".
        lock_across_retries: "release" before a retry's countdown, the default, or "hold".
        on_redis_error: what happens if the lock server cannot be reached: "defer" the task, the
            default, "run" it without a lock, or "raise" `LockUnavailable`.
        lock_scope: how long the task counts as unique: "running", the default, while it runs;
            "queued" from when it is sent until it starts; "queued+running" until it has ended.
        lock_queued_ttl: seconds after which the lock of a lost message is free again. A countdown
            is added. Default: 3600.
        on_queued_conflict: what sending a duplicate does: "existing", the default, sends nothing
            and returns the result of the task that has the lock; "raise" raises `LockConflict`;
            "publish" sends it.
        lock_label: a `str.format` template over the arguments, such as "order {order_id}": what
            the lock is called in logs, events, errors and commands, beside its key. Default: none.

    Raises:
        ConfigError: an option is unknown or wrong. Raised where the task is defined or bound; if
            that would harm other tasks, at each use instead. A worker with such a task does not
            start.
    """

    abstract = True

    lock_key: Any = UNSET
    lock_headers: Any = UNSET
    lock_ttl: Any = UNSET
    lock_max_hold: Any = UNSET
    lock_min_hold: Any = UNSET
    lock_pause: Any = UNSET
    lock_limit: Any = UNSET
    on_conflict: Any = UNSET
    on_lock_lost: Any = UNSET
    lock_across_retries: Any = UNSET
    on_redis_error: Any = UNSET
    lock_scope: Any = UNSET
    lock_queued_ttl: Any = UNSET
    on_queued_conflict: Any = UNSET
    lock_label: Any = UNSET

    __trace__: Any = _TracerAttribute()

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Check the options and the app's settings. Celery calls it when it binds the task."""
        super().on_bound(app)
        if cls.name is None or is_celerys_own(cls):
            return
        _call_under_lock(cls)
        before_send_task(app, partial(_refuse_in_send_task, app))
        try:
            cls._redislock_resolve(app)
        except ConfigError:
            if not is_collecting_errors() and not is_completing(app):
                raise

    @classmethod
    def _redislock_resolve(cls, app: Any) -> None:
        """Resolve the options by the app's settings. An error is raised, now and at each use."""
        try:
            cls._redislock_error = None
            resolve_options(cls, SingletonTask, app)
        except ConfigError as exc:
            cls._redislock_error = exc
            raise

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if self.request.__dict__.pop(_DUE, False):
            return _next_call(self)(*args, **kwargs)
        # A plain call, from outside of a task or from within its body.
        return super().__call__(*args, **kwargs)

    def apply_async(
        self, args: Any = None, kwargs: Any = None, *more: Any, **options: Any
    ) -> AsyncResult[Any]:
        """Send the task, as Celery's `apply_async`. `delay` and canvas come here too.

        Raises:
            ConfigError: the task's options are wrong, or the call has options that belong to it.
            LockConflict: it is a duplicate, and `on_queued_conflict` is "raise".
            LockUnavailable: `lock_scope` is not "running", `on_redis_error` is "raise", and the
                lock server did not answer in time. Nothing was sent.
        """
        __tracebackhide__ = True
        self._refuse_use(options)
        publish = super().apply_async
        if options.get("retries"):
            publish = partial(self._publish_retry, publish)
        if not self._reserves(options):
            if more or options.get("task_id"):
                options = {**dict(zip(_POSITIONAL, more, strict=False)), **options}
                self._name_message(options)
                more = ()
            return publish(args, kwargs, *more, **options)
        from .reserve import publish_reserved  # few tasks are unique from when they are sent

        options = {**dict(zip(_POSITIONAL, more, strict=False)), **options}
        return publish_reserved(self, publish, args or (), kwargs or {}, options, current_lock())

    def _publish_retry(self, publish: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Store RETRY, if this is the retry of what runs here, and publish. See `store_retry`."""
        __tracebackhide__ = True
        request = self.request
        noted = request.__dict__.pop(RETRIES, None)
        if noted is not None:
            # If the backend does not answer, Celery tries again once the retry is sent.
            with only_logged("redislock: could not store RETRY of %s[%s]", self.name, request.id):
                store_retry(self, request, *noted)
        return publish(*args, **options)

    @staticmethod
    def _name_message(options: dict[str, Any]) -> None:
        """Give the message an identity: a caller may send a task again under the same id."""
        if options.get("task_id") and not options.get("retries"):
            header = {"v": VERSION, "sent": new_token()}
            options["headers"] = {KEY: header, **(options.get("headers") or {})}

    def _reserves(self, options: Mapping[str, Any]) -> bool:
        """Whether a call with these options takes the lock as it is sent."""
        if self.lock_options is None or self.lock_options.lock_scope == "running":
            return False
        # Celery 5.7 sends a dead process's task again with our header, which names its reservation.
        if KEY in (options.get("headers") or ()):
            return False
        locks = self.app_locks
        return locks.enabled and (locks.eager or not self.app.conf.task_always_eager)

    def retry(
        self, args: Any = None, kwargs: Any = None, exc: Any = None, *more: Any, **options: Any
    ) -> Any:
        """Send the task's next attempt, as Celery's `retry`. Its state is RETRY before that one can
        have any.
        """
        __tracebackhide__ = True
        known = self.request.__dict__
        known[RETRIES] = exc, None
        try:
            return super().retry(args, kwargs, exc, *more, **options)
        finally:
            known.pop(RETRIES, None)

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task here and now, as Celery's `apply`. A skipped duplicate is REVOKED.

        Raises:
            ConfigError: the task's options are wrong, or the call has options that belong to it.
        """
        __tracebackhide__ = True
        self._refuse_use(kwargs)
        result = super().apply(*args, **kwargs)
        if isinstance(result, EagerResult) and isinstance(result.result, Skipped):
            return EagerResult(result.id, *result.result.args, "REVOKED", name=self.name)
        return result

    def signature(self, *args: Any, **kwargs: Any) -> Any:
        """A signature of the task, as Celery's. `s`, `si` and `retry` come here too.

        Raises:
            ConfigError: it has options that belong to the task.
        """
        made = super().signature(*args, **kwargs)
        if made.options:
            refuse_options_of_call(self.name, made.options)
        return made

    subtask = signature

    def start_strategy(self, app: Any, consumer: Any, **kwargs: Any) -> Any:
        """Prepare the task where Celery calls this: in the main process, which mints the tokens."""
        if self.lock_options is not None and self.app_locks.enabled:
            # By name, as Celery does: only workers need what that module imports.
            symbol_by_name("celery_redislock.worker.request:prepare")(self, consumer)
        return instantiate(self.Strategy, self, app, consumer, **kwargs)


def _refuse_in_send_task(app: Any, name: str, options: Mapping[str, Any]) -> None:
    tasks = tasks_so_far(app)
    if name not in tasks:  # no `get`: Celery takes a registry without one, too
        return
    task = tasks[name]
    # With our header it is a message that is published again.
    if isinstance(task, SingletonTask) and KEY not in (options.get("headers") or ()):
        task._refuse_use(options)


# -- what Celery's call of a task does: the body runs under the lock -------------------------


def _call_under_lock(cls: type[Any]) -> None:
    """Make the outermost `__call__`, that of this very class, run under the lock: a subclass or a
    mixin may have one of its own, which need not call ours, and all of it is the body.
    """
    inner = cls.__call__
    if hasattr(inner, OUTERMOST):
        return

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        __tracebackhide__ = True
        return _run_under_lock(self, inner, args, kwargs)

    setattr(__call__, OUTERMOST, inner)
    cls.__call__ = __call__


def _next_call(task: LockedTask) -> Callable[..., Any]:
    """What our `__call__` runs: the `__call__` of the next base that has one, else `run`, as
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


def _run_under_lock(task: LockedTask, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What the outermost `__call__` does: it calls `inner`, the next one."""
    __tracebackhide__ = True
    request = task.request
    known = request.__dict__
    if request.called_directly or LEASE in known:
        # A plain call, from outside of a task or from within its body.
        return inner(task, *args, **kwargs)
    run = _run_identity(request)
    known[LEASE] = None
    if inner is SingletonTask.__call__:
        body = partial(_next_call(task), *args, **kwargs)
    else:
        known[_DUE] = True
        body = partial(inner, task, *args, **kwargs)
    if run is None and request.is_eager:
        return _run_eagerly(task, request, body, args, kwargs)
    if run is None:
        return body()  # our tracer took no lock for it
    try:
        return run.call(body, request)
    except BaseException as exc:
        raise exc.with_traceback(_below_ours(exc.__traceback__))  # noqa: B904  it is the same


def _run_identity(request: Any) -> Life | None:
    """The run that our tracer has begun for this request, if any. Returned only once."""
    stamped = (request.properties or {}).get(KEY)
    return stamped.pop(RUN, None) if isinstance(stamped, dict) else None


def _run_eagerly(
    task: LockedTask, request: Any, body: Callable[[], Any], args: Any, kwargs: Any
) -> Any:
    __tracebackhide__ = True
    task._refuse_if_misconfigured()
    if not task._takes_lock(task.app_locks, is_eager=True):
        return body()
    from .life import Life
    from .state import Ends  # only what runs tasks needs these

    def go(run: Life) -> Any:
        __tracebackhide__ = True
        if isinstance(run.course, Ends):
            raise run.course.error
        return run.call(body, request)

    try:
        return Life(task, request.__dict__).live(args, kwargs, go, request)
    except BaseException as exc:
        raise exc.with_traceback(_below_ours(exc.__traceback__))  # noqa: B904  it is the same


def _below_ours(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback without our frames at its beginning, of which each adds some kilobytes to an
    exception that a pool process sends: above 64, all that the pipe holds, a cold shutdown may
    hang.
    """
    while traceback is not None and traceback.tb_next is not None:
        package = str(traceback.tb_frame.f_globals.get("__package__"))
        if package.partition(".")[0] != "celery_redislock":
            break
        traceback = traceback.tb_next
    return traceback


def locked_tasks(app: Any) -> list[SingletonTask]:
    """The app's tasks that take locks, in the order of their names."""
    tasks = (task for _, task in sorted(app.tasks.items()))
    return [task for task in tasks if isinstance(task, SingletonTask) and task.lock_options]
