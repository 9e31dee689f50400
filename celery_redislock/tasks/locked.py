"""What every step knows of a locked task: its options, and which lock a call takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from celery import Task
from celery.exceptions import SoftTimeLimitExceeded
from kombu import serialization

from ..app.internals import check_arguments, without_models
from ..app.options import LockOptions, limit_of_call
from ..app.settings import ATTRIBUTE, AppLocks, Elsewhere, NoServer, app_locks
from ..app.unknown import refuse_options_of_call
from ..errors import ConfigError
from ..protocol.calls import break_lock, holder_of, slots_reached
from ..protocol.holders import Holder, label_text
from ..protocol.keys import LockKeys, lock_keys, with_slots
from ..protocol.log import logger
from ..protocol.names import NO_HEADERS, KeyMaker, NoLock, WithDefaults
from ..servers import stand_in
from .ends import LEASE, UNLOCKED, Unlocked

if TYPE_CHECKING:
    from ..lock.lease import Lease


class LockedTask(Task):
    """Options and lock names of a locked task, without the hooks that take the lock."""

    abstract = True

    #: Resolved; None while the task is not bound, or not locked.
    lock_options: LockOptions = None  # type: ignore[assignment]
    #: Processes of this worker's pool hold the task's locks. The worker's main process sets this
    #: and the three below.
    runs_in_children = False
    acks_after_body = False  # also without `acks_late`, since one loop does both
    #: Its broker never redelivers what was acknowledged on the connection on which it came.
    hears_acks = False
    worker_consumer: Any = None
    _redislock_error: ConfigError | None = None
    _redislock_key_maker: KeyMaker
    _redislock_label_maker: KeyMaker | None = None
    _redislock_limit: WithDefaults
    _redislock_label_is_told = False
    _redislock_parked: tuple[str, str] = "", ""
    #: Names of options of another package, and what they come to. `compat` has such classes.
    _redislock_translates: frozenset[str] = frozenset()

    #: Called with arguments, keyword arguments and id of a call whose message has ended, and did
    #: not come with a reservation of ours.
    _redislock_clear: Callable[[Any, Any, str], None] | None = None

    @classmethod
    def _redislock_translated(cls, app: Any, given: Mapping[str, Any]) -> Mapping[str, Any]:
        return {}

    def _redislock_note_parked(self, lock_id: str, entry_id: str) -> None:
        """Note which call was put into a lock's waiting room last, or with "" that one was not: the
        next call under that lock is likely to meet it held, too.
        """
        self._redislock_parked = lock_id, entry_id

    @property
    def app_locks(self) -> AppLocks:
        """The settings and the lock server of this task's app."""
        app = self.app
        known: AppLocks | None = app.__dict__.get(ATTRIBUTE)
        return known if known is not None and known.conf is app.conf else app_locks(app)

    @property
    def lock(self) -> Lease | Unlocked:
        """The running task's lock. In a direct call, one that is never lost and has fence 0."""
        return self.request.__dict__.get(LEASE) or UNLOCKED

    def lock_name(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        headers: Mapping[str, Any] = NO_HEADERS,
    ) -> str:
        """The name of the lock for arguments as they arrive at a worker. See `KeyMaker.name`."""
        try:
            name: str = self._redislock_key_maker.name(args, kwargs, headers)
        except TypeError:
            check_arguments(self, args, kwargs)
            raise
        return name

    def lock_keys_for(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        headers: Mapping[str, Any] = NO_HEADERS,
    ) -> LockKeys:
        """The lock's keys for arguments as they arrive at a worker. Raises `NoLock`."""
        # A subclass may have a `lock_name` of its own, which takes no headers.
        more = (headers,) if self.lock_options.lock_headers else ()
        name = self.lock_name(args, kwargs, *more)
        limit = self.lock_options.lock_limit
        if not isinstance(limit, int):
            limit = limit_of_call(self.name, self._redislock_limit(args, kwargs))
        return lock_keys(self.app_locks.prefix, name, limit)

    def reaching(self, keys: LockKeys, is_meant: Callable[[bytes], bool]) -> LockKeys:
        """The lock's keys, with as many slots as it takes for all whose values are meant: a
        callable `lock_limit` may have given more for an earlier run.
        """
        options = self.lock_options
        if isinstance(options.lock_limit, int):
            return keys
        query = slots_reached(keys, options.lock_ttl, is_meant)
        return with_slots(keys, self.app_locks.server.ask(query))

    def label_for(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        headers: Mapping[str, Any] = NO_HEADERS,
    ) -> str | None:
        """The label of the lock for arguments as they arrive at a worker; None if it has none, or,
        with one warning for the task, if `lock_label` does not fit them.
        """
        if (maker := self._redislock_label_maker) is None:
            return None
        try:
            return label_text(maker.name(args, kwargs, headers))
        except SoftTimeLimitExceeded:
            raise
        except Exception as exc:  # an argument's own methods may raise anything
            if not self._redislock_label_is_told:
                self._redislock_label_is_told = True
                logger.warning(
                    "redislock: %s: lock_label=%r does not fit a call, whose lock has no label;"
                    " this is said once: %r", self.name, self.lock_options.lock_label, exc,
                )  # fmt: skip
            return None

    def as_sent(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], serializer: str | None = None
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments as they arrive at a worker, by this serializer, or else the task's."""
        app_locks(self.app)  # the options are those of the settings as they are now
        self._refuse_if_misconfigured()
        serializer = serializer or self.serializer
        if serializer != "pickle":
            args, kwargs = without_models(self, args, kwargs)
        sent = self._normalise([list(args), dict(kwargs)], serializer)
        return sent[0], sent[1]

    # -- a caller's questions -------------------------------------------------------------

    def with_headers(self, headers: Mapping[str, Any]) -> Calls:
        """The same questions about calls whose messages have these headers, as `lock_headers` needs
        them: `sync.with_headers({"tenant": "a"}).lock_holder(5)`.
        """
        return Calls(self, headers)

    def keys_of_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> LockKeys:
        """See `Calls`."""
        return Calls(self).keys_of_call(args, kwargs)

    def lock_key_for(self, *args: Any, **kwargs: Any) -> str:
        """The whole key in Redis of the lock for this call.

        Raises:
            TypeError: the arguments do not fit the task's signature.
            ValueError: the call takes no lock.
        """
        return Calls(self).lock_key_for(*args, **kwargs)

    def lock_holder(self, *args: Any, **kwargs: Any) -> Holder | None:
        """Who holds the lock for this call, or None.

        Raises:
            TypeError: the arguments do not fit the task's signature.
            LockUnavailable: the lock server did not answer in time.
        """
        return Calls(self).lock_holder(*args, **kwargs)

    def break_lock(self, *args: Any, **kwargs: Any) -> bool:
        """Take the lock for this call away from its holder, which learns that it lost it.

        Returns:
            Whether somebody held it. A value under the key that is not ours is left alone.

        Raises:
            TypeError: the arguments do not fit the task's signature.
            LockUnavailable: the lock server did not answer in time.
        """
        return Calls(self).break_lock(*args, **kwargs)

    @classmethod
    def _normalise(cls, value: Any, serializer: str | None = None) -> Any:
        """A value as the task's messages carry it."""
        serializer = serializer or cls.serializer
        content_type, encoding, data = serialization.dumps(value, serializer=serializer)
        return serialization.loads(data, content_type, encoding, force=True)

    # -- whether a run takes the lock -----------------------------------------------------

    def _takes_lock(self, locks: AppLocks, is_eager: bool) -> bool:
        """Whether a run takes the lock, or is refused because options or settings are wrong."""
        if self._redislock_error is not None:
            return True
        if self.lock_options is None or self.lock_options.lock_scope == "queued":
            return False
        return locks.enabled and (not is_eager or locks.eager)

    def _refuse_use(self, options: Mapping[str, Any]) -> None:
        """Raise what is wrong with the task's options, or with those of a call."""
        if options:
            refuse_options_of_call(self.name, options)
        if self._redislock_error is not None and not isinstance(self._redislock_error, Elsewhere):
            self._refuse_if_misconfigured()

    def _refuse_if_misconfigured(self) -> None:
        error = self._redislock_error
        if error is not None and not (isinstance(error, NoServer) and stand_in.current):
            # Without the frames of its last use, which would grow with each.
            raise error.with_traceback(None)


class Calls:
    """Questions about the locks of a task's calls, which are given as a caller gives them."""

    def __init__(self, task: LockedTask, headers: Mapping[str, Any] = NO_HEADERS) -> None:
        self.task = task
        self._headers = headers

    def keys_of_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> LockKeys:
        """The lock's keys. Raises `ConfigError`, `NoLock`, or `TypeError` for the arguments."""
        return self.task.lock_keys_for(*self._sent(args, kwargs))

    def label_of_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """The label of the lock for this call. It raises the same as `keys_of_call`."""
        return self.task.label_for(*self._sent(args, kwargs))

    def arguments_of_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments and headers from which the lock's name is made for this call."""
        sent = self._sent(args, kwargs)
        return self.task._redislock_key_maker.arguments(*sent)

    def _sent(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        sent = self.task.as_sent(args, kwargs)
        if self.task.typing:  # as Celery checks them when it sends the task
            check_arguments(self.task, args, kwargs)
        return (*sent, self._headers)

    def lock_key_for(self, *args: Any, **kwargs: Any) -> str:
        """See `LockedTask.lock_key_for`."""
        return self.keys_of_call(args, kwargs).lock

    def lock_holder(self, *args: Any, **kwargs: Any) -> Holder | None:
        """See `LockedTask.lock_holder`."""
        task = self.task
        try:
            keys = self.keys_of_call(args, kwargs)
        except NoLock:
            return None
        return task.app_locks.server.ask(holder_of(keys, task.lock_options.lock_ttl))

    def break_lock(self, *args: Any, **kwargs: Any) -> bool:
        """See `LockedTask.break_lock`."""
        try:
            keys = self.keys_of_call(args, kwargs)
        except NoLock:
            return False
        return break_keys(self.task, keys)


def break_keys(task: LockedTask, keys: LockKeys) -> bool:
    """Take the lock with these keys away from its holder. See `LockedTask.break_lock`."""
    keys = task.reaching(keys, lambda value: True)
    holder = task.app_locks.server.run(break_lock(keys, task.lock_options.lock_ttl, task=task.name))
    if holder is not None:
        from ..app.outcomes import Outcome, Whose, report  # most programs report nothing

        whose = Whose(keys.lock, task)
        text = "redislock: %s was broken; it was held by %s"
        report(Outcome.BROKEN, whose, text, keys.lock, holder, holder=holder)
    return holder is not None
