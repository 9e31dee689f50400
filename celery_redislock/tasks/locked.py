"""What every step knows of a locked task: its options, and which lock a call gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from celery import Task
from kombu import serialization

from ..app.internals import check_arguments, without_models
from ..app.labels import LabelMaker
from ..app.names import KeyMaker
from ..app.options import LockOptions
from ..app.settings import AppLocks, NoServer, app_locks
from ..core import stand_in
from ..core.holders import Holder
from ..core.keys import LockKeys, lock_keys
from ..errors import ConfigError
from .ends import LEASE, UNLOCKED, Unlocked

if TYPE_CHECKING:
    from ..core.lease import Lease


class LockedTask(Task):
    """A task with a lock for each of its calls. `SingletonTask` adds where it is taken.

    Attributes:
        lock_options: the options, resolved; None while the task is not bound, or not locked.
        runs_in_children: whether processes of this worker's pool hold the task's locks. Set in
            its main process.
        acks_after_body: whether a message is acknowledged only after its task has run even
            without `acks_late`, since one loop does both.
        hears_acks: whether this worker's broker is known never to deliver a message again that
            was acknowledged on the connection on which it came.
        worker_consumer: this worker's consumer. Set in its main process.
    """

    abstract = True

    lock_options: LockOptions = None  # type: ignore[assignment]
    runs_in_children = False
    acks_after_body = False
    hears_acks = False
    worker_consumer: Any = None
    _redislock_error: ConfigError | None = None
    _redislock_key_maker: KeyMaker
    _redislock_label_maker: LabelMaker | None = None

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
            name: str = self._redislock_key_maker.name(args, kwargs)
        except TypeError:
            check_arguments(self, args, kwargs)
            raise
        return name

    def lock_key_for(self, *args: Any, **kwargs: Any) -> str:
        """The whole key in Redis of the lock for this call.

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
            from ..app.outcomes import Outcome, Whose, tell  # most programs tell nothing

            whose = Whose(keys.lock, self)
            text = "redislock: %s was broken; it was held by %s"
            tell(Outcome.BROKEN, whose, text, keys.lock, holder, holder=holder)
        return holder is not None

    def keys_of_call(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], serializer: str | None = None
    ) -> LockKeys:
        """The keys of the lock for arguments as a caller gives them.

        Args:
            args: the call's arguments.
            kwargs: the call's keyword arguments.
            serializer: the message's, if it is not the task's.

        Raises:
            ConfigError: the task's options are wrong.
            TypeError: the arguments do not fit the task's signature.
        """
        return self.lock_keys_for(*self._as_sent(args, kwargs, serializer))

    def label_of_call(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], serializer: str | None = None
    ) -> str | None:
        """The label of the lock for arguments as a caller gives them. See `keys_of_call`."""
        if self._redislock_label_maker is None:
            return None
        return self.label_for(*self._as_sent(args, kwargs, serializer))

    def label_for(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """The label of the lock for arguments as they arrive at a worker; None if it has none."""
        maker = self._redislock_label_maker
        return None if maker is None else maker.label(args, kwargs)

    def arguments_of_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that go into the lock's name, for a call as a caller gives it.

        Raises:
            ConfigError: the task's options are wrong.
            TypeError: the arguments do not fit the task's signature.
        """
        arguments: dict[str, Any] = self._redislock_key_maker.arguments(
            *self._as_sent(args, kwargs)
        )
        return arguments

    def _as_sent(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], serializer: str | None = None
    ) -> Any:
        """The arguments as they arrive at a worker."""
        self._refuse_if_misconfigured()
        serializer = serializer or self.serializer
        if serializer != "pickle":
            args, kwargs = without_models(self, args, kwargs)
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

    # -- whether a run takes it -----------------------------------------------------------

    def _takes_lock(self, is_eager: bool) -> bool:
        """Whether a run takes the lock, or is refused because options or settings are wrong."""
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
