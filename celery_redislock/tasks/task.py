"""`SingletonTask`, the base class: its options, and Celery's hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from celery.result import AsyncResult, EagerResult
from celery.utils.imports import instantiate, symbol_by_name

from ..app.delivery import KEY, VERSION
from ..app.options import UNSET
from ..errors import ConfigError
from ..protocol.tokens import new_token
from .binding import is_celerys_own, resolve_options
from .calling import DUE, call_under_lock, next_call
from .current import current_lock
from .ends import Skipped
from .locked import LockedTask

_TRACER: Final = "_redislock_tracer"
#: The parameters of Celery's `apply_async` after the task's own arguments.
_POSITIONAL: Final = ("task_id", "producer", "link", "link_error", "shadow")


class _TracerAttribute:
    """`__trace__` of a locked task: Celery's tracer, with ours around it."""

    def __get__(self, task: Any, owner: type[Any]) -> Callable[..., Any] | None:
        if task is None:
            return None
        found: Callable[..., Any] | None = task.__dict__.get(_TRACER)
        return found

    def __set__(self, task: Any, inner: Callable[..., Any] | None) -> None:
        from .tracer import around  # only what runs tasks needs it

        task.__dict__[_TRACER] = None if inner is None else around(task, inner)


class SingletonTask(LockedTask):
    """A task that runs at most once at a time per signature, on any number of workers.

        @app.task(base=SingletonTask, lock_key=["account_id"], on_conflict="defer")
        def sync(account_id, force=False): ...

    Before the body runs, the worker takes a Redis lock; a heartbeat extends it; it is released
    on every exit. Enforced where the work runs, whoever sent it. A direct call is a plain call.

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
            ends sooner. Default: none.
        lock_min_hold_after: "success", the default: only if the body succeeded; or "any": also
            if it failed.
        lock_limit: how many runs may hold the lock at once. Default: 1.
        on_conflict: what a duplicate does: a policy, or "skip", "defer", "wait", "queue",
            "coalesce", "replace", "raise". Default: `redislock_on_conflict`, "skip".
        on_lock_lost: "flag" sets `self.lock.lost`; "abort" also raises `LockLost` in the body.
            Default: `redislock_on_lock_lost`, "flag".
        lock_across_retries: "release" before a retry's countdown, the default, or "hold".
        on_redis_error: what happens if the lock server cannot be reached: "defer" the task, the
            default, "run" it without a lock, or "raise" `LockUnavailable`.
        lock_scope: how long the task counts as unique: "running", the default, while it runs;
            "queued" from when it is sent until it starts; "queued+running" until it has ended.
        lock_queued_ttl: seconds after which a lost message frees the lock. Its countdown is
            added. Default: 3600.
        on_queued_conflict: what sending a duplicate does: "existing", the default, sends nothing
            and returns the result of the task that has the lock; "raise" raises `LockConflict`;
            "publish" sends it.
        lock_warn_after: seconds. If a holder older than that turns a duplicate away, a WARNING
            names the holder and its age. Default: ten times `lock_ttl`.
        lock_label: a `str.format` template over the arguments, such as "order {order_id}": what
            the lock is called in logs, events, errors and commands, beside its key. Default: none.

    Raises:
        ConfigError: when the task is bound to its app, for an option that is unknown or wrong.
    """

    abstract = True

    lock_key: Any = UNSET
    lock_headers: Any = UNSET
    lock_ttl: Any = UNSET
    lock_max_hold: Any = UNSET
    lock_min_hold: Any = UNSET
    lock_min_hold_after: Any = UNSET
    lock_limit: Any = UNSET
    on_conflict: Any = UNSET
    on_lock_lost: Any = UNSET
    lock_across_retries: Any = UNSET
    on_redis_error: Any = UNSET
    lock_scope: Any = UNSET
    lock_queued_ttl: Any = UNSET
    on_queued_conflict: Any = UNSET
    lock_warn_after: Any = UNSET
    lock_label: Any = UNSET

    __trace__: Any = _TracerAttribute()

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Check the options and the app's settings. Celery calls it when it binds the task."""
        super().on_bound(app)
        if cls.name is None or is_celerys_own(cls):
            return
        call_under_lock(cls)
        try:
            cls._redislock_error = None
            resolve_options(cls, SingletonTask, app)
        except ConfigError as exc:
            # Celery keeps the task registered. It must not run as if it needed no lock.
            cls._redislock_error = exc
            raise

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.request.__dict__.pop(DUE, False):
            return next_call(self)(*args, **kwargs)
        # A plain call, from outside of a task or from within its body.
        return super().__call__(*args, **kwargs)

    def apply_async(
        self, args: Any = None, kwargs: Any = None, *more: Any, **options: Any
    ) -> AsyncResult[Any]:
        """Send the task, as Celery's `apply_async`. `delay` and canvas come here too.

        Raises:
            LockConflict: it is a duplicate, and `on_queued_conflict` is "raise".
            LockUnavailable: `lock_scope` is not "running", `on_redis_error` is "raise", and the
                lock server did not answer in time. Nothing was sent.
        """
        publish = super().apply_async
        # Celery 5.7 sends the retry of a task whose process died; what is kept for it, it says.
        if not self._reserves() or KEY in (options.get("headers") or ()):
            if more or options.get("task_id"):
                options = {**dict(zip(_POSITIONAL, more, strict=False)), **options}
                self._name_message(options)
                more = ()
            return publish(args, kwargs, *more, **options)
        from .reserve import publish_reserved  # few tasks are unique from when they are sent

        options = {**dict(zip(_POSITIONAL, more, strict=False)), **options}
        return publish_reserved(self, publish, args or (), kwargs or {}, options, current_lock())

    @staticmethod
    def _name_message(options: dict[str, Any]) -> None:
        """Give the message an identity: a caller may send a task again under the same id."""
        if options.get("task_id") and not options.get("retries"):
            header = {"v": VERSION, "sent": new_token()}
            options["headers"] = {KEY: header, **(options.get("headers") or {})}

    def _reserves(self) -> bool:
        if self.lock_options is None or self.lock_options.lock_scope == "running":
            return False
        locks = self.app_locks
        return locks.enabled and (locks.eager or not self.app.conf.task_always_eager)

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task here and now, as Celery's `apply`. A skipped duplicate is REVOKED."""
        result = super().apply(*args, **kwargs)
        if isinstance(result, EagerResult) and isinstance(result.result, Skipped):
            return EagerResult(result.id, *result.result.args, "REVOKED", name=self.name)
        return result

    def start_strategy(self, app: Any, consumer: Any, **kwargs: Any) -> Any:
        """Celery calls it in a worker's main process, which mints the tokens."""
        if self.lock_options is not None and self.app_locks.enabled:
            # By name, as Celery names its own: only workers need what it imports.
            symbol_by_name("celery_redislock.worker.strategy:prepare")(self, consumer)
        return instantiate(self.Strategy, self, app, consumer, **kwargs)
