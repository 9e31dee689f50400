"""`SingletonTask`, the base class: options, keys and where a call is locked. Celery glue only."""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from celery import Task, _state
from celery.result import AsyncResult, EagerResult
from celery.utils.imports import instantiate, symbol_by_name
from kombu import serialization

from ..app.delivery import KEY, VERSION
from ..app.names import KeyMaker
from ..app.options import OPTIONS, UNSET, LockOptions, refuse_unknown_options, resolve
from ..app.settings import AppLocks, NoServer, app_locks
from ..app.signatures import is_async
from ..core import stand_in
from ..core.claims import new_token
from ..core.holders import Holder
from ..core.keys import LockKeys, lock_keys
from ..core.lease import Lease, logger
from ..core.log import fields
from ..errors import ConfigError
from .ends import LEASE, UNLOCKED, Skipped, Unlocked
from .reserve import publish_reserved
from .run import Run
from .tracer import TracerAttribute, run_of

_KEY_MAKER: Final = "_redislock_key_maker"
#: Marks the `__call__` that takes the lock.
_OUTERMOST: Final = "_redislock_outermost"
#: In the request while the body is due, whoever's `__call__` comes to it.
_DUE: Final = "_redislock_due"
#: What Celery's `apply_async` takes after the task's own arguments.
_POSITIONAL: Final = ("task_id", "producer", "link", "link_error", "shadow")


class SingletonTask(Task):
    """A task that runs at most once at a time per signature, on any number of workers.

        @app.task(base=SingletonTask, lock_key=["account_id"], on_conflict="defer")
        def sync(account_id, force=False): ...

    Before the body runs, the worker takes a Redis lock; a heartbeat extends it; it is released
    on every exit. Enforced where the work runs, whoever sent it. A direct call is a plain call.

    Attributes:
        lock_key: which calls exclude each other. Default: those with the same arguments. A list
            of argument names; a `str.format` template over the arguments, or a callable given
            the call's own arguments, whose text is the lock's whole name. A named argument that
            a call lacks and that has no default is a TypeError, also if a decorator gives it.
        lock_ttl: seconds that a lock outlives a dead holder. Default: `redislock_ttl`, 30.
        lock_max_hold: seconds after which the lock is not extended any more. Default: never.
        lock_min_hold: seconds since the acquisition for which the lock stands, also if the body
            ends before. Default: none.
        lock_min_hold_after: "success", the default: not if the body failed; or "any" end.
        lock_limit: how many runs may hold the lock at once. Default: 1.
        on_conflict: what a duplicate does: a policy, or "skip", "defer", "wait", "queue",
            "coalesce", "replace", "raise". Default: `redislock_on_conflict`, "skip".
        on_lock_lost: "flag" sets `self.lock.lost`; "abort" also raises `LockLost` in the body.
            Default: `redislock_on_lock_lost`, "flag".
        lock_across_retries: "release" before a retry's countdown, the default, or "hold".
        on_redis_error: if the lock server cannot be reached: "defer" the task, the default,
            "run" it without a lock, or "raise" `LockUnavailable`.
        lock_scope: while what the task is unique: "running", the default, "queued" from when it
            is sent until it starts, or "queued+running" until it has ended.
        lock_queued_ttl: seconds, beside its countdown, after which a message that was lost frees
            the lock. Default: 3600.
        on_queued_conflict: what sending a duplicate does: "existing" sends nothing and gives the
            result of the one that stands, the default; "raise" raises `LockConflict`; "publish"
            sends it.
        lock_warn_after: seconds. A duplicate that is turned away by a holder older than that is
            a WARNING, which names the holder and its age. Default: ten times `lock_ttl`.

    Raises:
        ConfigError: when the task is bound to its app, for an option that is unknown or wrong.
    """

    abstract = True

    lock_key: Any = UNSET
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

    #: The options, resolved; None while the task is not bound, or not locked.
    lock_options: LockOptions = None  # type: ignore[assignment]
    #: Whether processes of this worker's pool hold the task's locks. Set in its main process.
    runs_in_children = False
    #: Whether a message is acknowledged only after its task has run, also without `acks_late`: by
    #: the loop that runs it.
    acks_after_body = False
    #: This worker's consumer. Set in its main process.
    worker_consumer: Any = None
    _redislock_error: ConfigError | None = None

    #: Celery's tracer of the task, with ours around it.
    __trace__: Any = TracerAttribute()

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Check the options and the app's settings. Celery calls it when it binds the task."""
        super().on_bound(app)
        if cls.name is None or _is_celerys_own(cls):
            return
        _call_under_lock(cls)
        try:
            cls._redislock_error = None
            cls._resolve_options(app)
        except ConfigError as exc:
            # Celery keeps the task registered. It must not run as if it needed no lock.
            cls._redislock_error = exc
            raise

    @classmethod
    def _resolve_options(cls, app: Any) -> None:
        where = f"task {cls.name}"
        refuse_unknown_options(where, _own_attributes(cls), _TAKEN)
        locks = app_locks(app, refresh=True)
        given = {option: _plain(inspect.getattr_static(cls, option)) for option in OPTIONS}
        cls.lock_options = resolve(where, given, locks.settings)
        function = inspect.getattr_static(cls, "run").__get__(object(), cls)
        if is_async(function):
            raise ConfigError(
                f"{where}: its body is an `async def`, which Celery does not await, so the lock"
                " would be released before the body runs; accepted is a plain function, such as"
                " one that calls asyncio.run"
            )
        key_maker = KeyMaker(cls.name, function, cls.lock_options.lock_key, cls._normalise)
        setattr(cls, _KEY_MAKER, key_maker)
        if cls.lock_options.lock_scope != "running" and not cls.typing and key_maker.binds:
            raise ConfigError(
                f"{where}: typing={cls.typing!r} contradicts"
                f" lock_scope={cls.lock_options.lock_scope!r}, which needs the real arguments where"
                " the task is sent; accepted are typing=True, or a lock_key that is a callable or"
                " has no fields"
            )
        if locks.enabled and (locks.eager or not app.conf.task_always_eager):
            cls._require_server(app, locks)

    @classmethod
    def _require_server(cls, app: Any, locks: AppLocks) -> None:
        function = _plain(inspect.getattr_static(cls, "run"))
        try:
            locks.require_server()
        except ConfigError as exc:
            if not _is_fallback(app) and function not in _at_home:
                raise
            cls._redislock_error = exc  # it must not run there as if it needed no lock
        else:
            _at_home.add(function)

    # -- the lock of a call ---------------------------------------------------------------

    @property
    def app_locks(self) -> AppLocks:
        """The settings and the lock server of this task's app."""
        return app_locks(self.app)

    @property
    def lock(self) -> Lease | Unlocked:
        """The running task's lock. In a direct call, one that is never lost and has fence 0."""
        return self.request.__dict__.get(LEASE) or UNLOCKED

    def lock_name(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The name of the lock for arguments as they arrive at a worker.

        Raises:
            TypeError: the arguments do not fit the task's signature.
            Exception: what a `lock_key` callable raises.
        """
        try:
            name: str = getattr(self, _KEY_MAKER).name(args, kwargs)
        except TypeError:
            # If they do not fit, this says it in Celery's own words.
            header = getattr(self, "__header__", None)  # a task written as a class has none
            if header is not None:
                header(*args, **kwargs)
            raise
        return name

    def lock_key_for(self, *args: Any, **kwargs: Any) -> str:
        """The whole key, as it stands in Redis, of the lock for this call.

        Raises:
            TypeError: the arguments do not fit the task's signature.
        """
        return self.keys_of_call(args, kwargs).lock

    def lock_holder(self, *args: Any, **kwargs: Any) -> Holder | None:
        """Who holds the lock for this call, or None.

        Raises:
            TypeError: the arguments do not fit the task's signature.
            LockUnavailable: the lock server did not answer in time.
        """
        keys = self.keys_of_call(args, kwargs)
        return self.app_locks.store.locks.holder(keys, self.lock_options.lock_ttl)

    def break_lock(self, *args: Any, **kwargs: Any) -> bool:
        """Take the lock for this call away from its holder, which learns that it lost it.

        Returns:
            Whether somebody held it. A value under the key that is not ours is left alone.

        Raises:
            TypeError: the arguments do not fit the task's signature.
            LockUnavailable: the lock server did not answer in time.
        """
        keys = self.keys_of_call(args, kwargs)
        holder = self.app_locks.store.locks.break_lock(keys, self.lock_options.lock_ttl)
        if holder is not None:
            logger.warning(
                "redislock: %s was broken, held by %s", keys.lock, holder,
                extra=fields("broken", keys.lock, task=self.name, holder=holder),
            )  # fmt: skip
        return holder is not None

    def keys_of_call(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], serializer: str | None = None
    ) -> LockKeys:
        """The keys of the lock for arguments as a caller gives them.

        Args:
            args: the call's arguments.
            kwargs: the call's keyword arguments.
            serializer: the one of the message, if it is not the task's.

        Raises:
            ConfigError: the task's options are wrong.
            TypeError: the arguments do not fit the task's signature.
        """
        return self.lock_keys_for(*self._as_sent(args, kwargs, serializer))

    def arguments_of_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that go into the lock's name, for a call as a caller gives it.

        Raises:
            ConfigError: the task's options are wrong.
            TypeError: the arguments do not fit the task's signature.
        """
        arguments: dict[str, Any] = getattr(self, _KEY_MAKER).arguments(
            *self._as_sent(args, kwargs)
        )
        return arguments

    def _as_sent(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], serializer: str | None = None
    ) -> Any:
        """The arguments as they arrive at a worker."""
        self._refuse_if_misconfigured()
        serializer = serializer or self.serializer
        dump = getattr(self, "_dump_pydantic_arguments", None)
        if dump is not None and serializer != "pickle":
            args, kwargs = dump(args, kwargs)
        return self._normalise([list(args), dict(kwargs)], serializer)

    def lock_keys_for(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> LockKeys:
        """The keys of the lock for arguments as they arrive at a worker. See `lock_name`."""
        name = self.lock_name(args, kwargs)
        return lock_keys(self.app_locks.prefix, name, self.lock_options.lock_limit)

    @classmethod
    def _normalise(cls, value: Any, serializer: str | None = None) -> Any:
        """A value as the task's messages carry it."""
        serializer = serializer or cls.serializer
        content_type, encoding, data = serialization.dumps(value, serializer=serializer)
        return serialization.loads(data, content_type, encoding, force=True)

    # -- Celery's hooks -------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.request.__dict__.pop(_DUE, False):
            return _next_call(type(self), self)(*args, **kwargs)
        # A plain call, from outside of a task or from within its body.
        return super().__call__(*args, **kwargs)

    def _run_under_lock(self, body: Callable[[], Any], args: Any, kwargs: Any) -> Any:
        """What a call of the task does: the outermost `__call__`, see `_call_under_lock`."""
        request = self.request
        if request.called_directly or LEASE in request.__dict__:
            return body()  # a plain call, from outside of a task or from within its body
        run = run_of(request)
        request.__dict__.update({LEASE: None, _DUE: True})
        if run is None and request.is_eager:
            return self._run_eagerly(request, body, args, kwargs)
        if run is None:
            return body()  # our tracer let it go without a lock
        try:
            return run.go(body, request)
        except BaseException as exc:
            raise exc.with_traceback(_below_ours(exc.__traceback__))  # noqa: B904  it is the same

    def _run_eagerly(self, request: Any, body: Callable[[], Any], args: Any, kwargs: Any) -> Any:
        self._refuse_if_misconfigured()
        if not self._takes_lock(is_eager=True):
            return body()
        run = Run(self, request.__dict__)
        try:
            try:
                run.begin(args, kwargs, request)
                if run.ended is not None:
                    raise run.ended
                result = run.go(body, request)
                run.completed = True
                return result
            finally:
                run.end()
        except BaseException as exc:
            raise exc.with_traceback(_below_ours(exc.__traceback__))  # noqa: B904  it is the same

    def _takes_lock(self, is_eager: bool) -> bool:
        """Whether a run takes the lock, or is refused since the options or settings are wrong."""
        if self._redislock_error is not None:
            return True
        if self.lock_options is None or self.lock_options.lock_scope == "queued":
            return False
        locks = self.app_locks
        return locks.enabled and (not is_eager or locks.eager)

    def _refuse_if_misconfigured(self) -> None:
        error = self._redislock_error
        if error is not None and not (isinstance(error, NoServer) and stand_in.current):
            raise error

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
        if not self._reserves():
            if more or options.get("task_id"):
                options = {**dict(zip(_POSITIONAL, more, strict=False)), **options}
                self._name_message(options)
                more = ()
            return publish(args, kwargs, *more, **options)
        options = {**dict(zip(_POSITIONAL, more, strict=False)), **options}
        return publish_reserved(self, publish, args or (), kwargs or {}, options, current_lock())

    @staticmethod
    def _name_message(options: dict[str, Any]) -> None:
        """Give the message an identity: a task may be sent again under an id of the caller's."""
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


#: What a task may override with a method and cannot set as an option.
_TAKEN: Final = frozenset(vars(SingletonTask)).difference(OPTIONS, dir(Task))


class _CurrentLock:
    """The lock of the task that runs in this thread, for code that has no `self`.

    Has what `self.lock` has; called, it gives the lease itself, or None.
    """

    def __call__(self) -> Lease | None:
        task = _state.get_current_task()
        return None if task is None else task.request.__dict__.get(LEASE)

    if TYPE_CHECKING:
        key: str | None
        token: str | None
        ttl: float
        fence: int
        lost: bool

        def ensure(self) -> None: ...

    else:

        def __getattr__(self, name: str) -> Any:
            return getattr(self() or UNLOCKED, name)

    def __bool__(self) -> bool:
        return self() is not None

    def __repr__(self) -> str:
        return repr(self() or UNLOCKED)


current_lock: Final = _CurrentLock()


def _below_ours(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of this package that it begins with.

    They say nothing to who reads it. And each costs some kilobytes in what a pool process sends of
    an exception: above 64, Celery's cold shutdown may hang (the pipe holds no more).
    """
    while traceback is not None and traceback.tb_next is not None:
        package = str(traceback.tb_frame.f_globals.get("__package__"))
        if package.partition(".")[0] != "celery_redislock":
            break
        traceback = traceback.tb_next
    return traceback


def _is_celerys_own(cls: type[Any]) -> bool:
    # With Celery(task_cls=SingletonTask) also chord_unlock and its like come here.
    return str(cls.name).startswith("celery.") and cls.__module__.startswith("celery.")


#: What the tasks run that some app is configured for. Celery binds every task to every other
#: app too, which may be there for something else and know no Redis; it must not fail for that.
_at_home: weakref.WeakSet[Any] = weakref.WeakSet()


def _is_fallback(app: Any) -> bool:
    # gevent's patching touches Celery's lazy names, at which Celery makes an app that nobody
    # configured, and then binds every shared task to it. Nothing runs there.
    if app is _state.default_app and app.main == "default":
        return True
    # The same goes for the one that pytest-celery has as a template for its containers.
    template = sys.modules.get("pytest_celery.vendors.worker.content.app")
    return app is getattr(template, "app", None)


def _own_attributes(cls: type[Any]) -> Iterator[tuple[str, Any]]:
    """What the task and its bases below SingletonTask set or annotate, and the bases above
    do not know.
    """
    mro = cls.__mro__
    below = mro.index(SingletonTask)
    known = {name for base in mro[below + 1 :] for name in vars(base)}
    for base in mro[:below]:
        own = dict(vars(base))
        if "_decorated" not in own:  # else the annotations are those of the task's function
            own = {**dict.fromkeys(own.get("__annotations__", ()), UNSET), **own}
        for name, value in own.items():
            if name not in known and not name.startswith(("__", "_redislock_")):
                yield name, value


def _plain(value: Any) -> Any:
    return value.__func__ if isinstance(value, staticmethod) else value


def _call_under_lock(cls: type[Any]) -> None:
    """Make the outermost `__call__` of this very class one under the lock.

    Celery calls the task, and a subclass or a mixin may have a `__call__` of its own, before ours
    or behind, which need not call ours: all of it is the task's body.
    """
    inner = cls.__call__
    if getattr(inner, _OUTERMOST, False):
        return

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        return self._run_under_lock(lambda: inner(self, *args, **kwargs), args, kwargs)

    setattr(__call__, _OUTERMOST, True)
    cls.__call__ = __call__


def _next_call(cls: type[Any], task: Task) -> Callable[..., Any]:
    """What a call runs: another base's `__call__`, if there is one, else the task's `run`.

    Celery's own `__call__` would push a second request.
    """
    mro = cls.__mro__
    for base in mro[mro.index(SingletonTask) + 1 :]:
        if "__call__" in vars(base):
            if base is Task:
                break
            return vars(base)["__call__"].__get__(task, cls)  # type: ignore[no-any-return]
    return task.run  # type: ignore[no-any-return]
