"""`transaction_lock`: a lock that is held until the transaction has committed or rolled back."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any, Final

import redis
from django.db import connections, transaction
from django.utils.asyncio import async_unsafe

from ..errors import ConfigError, LockLost
from ..lock.redis_lock import RedisLock
from ..lock.sources import CeleryApp
from .project import project_app

#: The attribute in which a connection keeps its `_Locks`.
_LOCKS: Final = "_redislock_locks"


@contextmanager
def transaction_lock(
    name: str,
    using: str | None = None,
    *,
    source: redis.Redis | redis.RedisCluster | str | CeleryApp | None = None,
    ttl: float | timedelta = 30,
    timeout: float | timedelta | None = 10,
    label: str | None = None,
) -> Iterator[RedisLock]:
    """Hold a `RedisLock` until the outermost transaction has committed or rolled back, or until the
    block ends if no transaction is open then. So the next holder reads what this one wrote.

        with transaction.atomic():
            with transaction_lock(f"account:{pk}") as lock:
                account = Account.objects.get(pk=pk)
                ...
        # the lock is free here, and before the callbacks of `on_commit`

    Take it before the transaction's first query: at REPEATABLE READ, MySQL's default, a transaction
    goes on to see the rows as they were then. A transaction that has the lock gets the same lock
    again. So does one of another database, in the same thread: the lock is released with the last
    of them. The blocks that Django's `TestCase` opens do not count. The lock belongs to the thread
    that took it, as a connection does.

    If the lock was lost, the block's end and the commit raise `LockLost`, and the transaction is
    rolled back.

    Args:
        name: the lock's name, as `RedisLock` takes it.
        using: the database; None for "default".
        source: what `RedisLock` takes; None for the project's Celery app.
        ttl: seconds that the lock outlives a dead holder.
        timeout: seconds to wait for the lock; None for ever.
        label: what people see instead of the key.

    Returns:
        A context manager, which gives the lock: `fence`, `lost`, `ensure()`.

    Raises:
        ConfigError: an argument is not accepted, or the project has no Celery app.
        LockConflict: the lock was not taken in time.
        LockLost: the lock was lost in the block, or before it in the same transaction.
        LockUnavailable: the lock server did not answer in time.
        SynchronousOnlyOperation: this is called in a coroutine, where Django's transactions cannot
            be used: the coroutines of a thread may share a connection.
    """
    source = project_app() if source is None else source
    if source is None:
        raise ConfigError(
            "transaction_lock: the project has no Celery app; import it in the project's"
            " __init__.py, or pass source="
        )
    locks, block = _locks_of(_connection(using)), object()
    lock = RedisLock(source, name, ttl, timeout=timeout, label=label)
    # A soft time limit may come at any bytecode.
    try:
        lock = locks.enter(lock, block)
        yield lock
        if lock.lost:
            lock.ensure()
    finally:
        try:
            locks.leave(block)
        finally:
            locks.leave(block)  # again, if it was interrupted


@async_unsafe("transaction_lock cannot be used in a coroutine; use a thread or sync_to_async.")
def _connection(using: str | None) -> Any:
    return transaction.get_connection(using)


def _locks_of(connection: Any) -> _Locks:
    # A copy of a connection, which Django makes by its class, may have none.
    locks: _Locks = vars(connection).setdefault(_LOCKS, _Locks(connection))
    return locks


class _Held:
    """A lock of this thread, and the blocks that it is used in."""

    def __init__(self, lock: RedisLock, block: object) -> None:
        self.lock = lock
        self.thread = threading.get_ident()
        self.blocks = {block}

    @property
    def is_mine(self) -> bool:
        """Whether this thread has it. A test server's threads share one connection."""
        return self.thread == threading.get_ident()

    def is_of(self, lock: RedisLock) -> bool:
        """Whether it is the same lock in Redis."""
        return self.lock.key == lock.key and self.lock._server is lock._server

    @property
    def is_over(self) -> bool:
        """Whether no block uses it, and there is nothing to release."""
        return not self.blocks and self.lock.fence == 0


def _all_held() -> list[_Held]:
    """What is held for the transactions of all connections of this thread."""
    found = [vars(connection).get(_LOCKS) for connection in connections.all(initialized_only=True)]
    return [held for locks in found if locks is not None for held in locks.held]


class _Locks:
    """The locks that are held for the transactions of a connection. A lock that a thread takes for
    those of several connections is one, and is released with the last of them.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.held: list[_Held] = []

    def enter(self, lock: RedisLock, block: object) -> RedisLock:
        """Take this lock for a block, or return the same lock that the transaction has."""
        self.settle()
        known = [held for held in _all_held() if held.is_mine and held.is_of(lock)]
        for held in self.held:
            if held in known:
                held.blocks.add(block)
                held.lock.ensure()
                return held.lock
        lock = known[0].lock if known else lock
        # Before it is taken: whatever comes, what is taken is known here.
        self.held.append(_Held(lock, block))
        _watch(self._connection)
        if known:
            lock.ensure()
        else:
            lock._enter(lock._keys)  # no `with` block: the lock may outlive it
        return lock

    def leave(self, block: object) -> None:
        """End a block. Safe to repeat."""
        for held in self.held:
            held.blocks.discard(block)
        self.settle()

    def settle(self, has_ended: bool = False) -> None:
        """Release what no block uses, if the transaction has ended, or none is open."""
        try:
            if has_ended or not _is_in_transaction(self._connection):
                with ExitStack() as stack:  # all of them, even if one raises
                    for held in [each for each in self.held if each.is_mine and not each.blocks]:
                        if any(each.lock is held.lock for each in _all_held() if each is not held):
                            self.held.remove(held)
                        else:
                            stack.callback(held.lock.release)
        finally:
            self.held = [held for held in self.held if not held.is_over]
            if not self.held and isinstance(self._connection, _Watched):
                self._connection.__class__ = type(self._connection).__bases__[1]

    def ensure(self) -> None:
        """Raise `LockLost` if a lock is known to be lost."""
        for held in self.held:
            if held.lock.lost:
                held.lock.ensure()


# Django tells nobody that a transaction is rolled back: `on_commit` drops its callbacks. But each
# way out of a transaction leads through one of these methods of the connection. So while locks are
# held for a connection, its class is one with these methods. Django has no public hook for that.


class _Watched:
    """The methods that end a transaction, of a connection for whose transaction locks are held."""

    def commit(self: Any) -> None:
        locks = _locks_of(self)
        try:
            locks.ensure()
        except LockLost:
            # Atomic rolls back only for errors of the database.
            self.rollback()
            raise
        super().commit()  # type: ignore[misc]
        locks.settle(has_ended=True)

    def rollback(self: Any) -> None:
        super().rollback()  # type: ignore[misc]
        _locks_of(self).settle(has_ended=True)

    def close(self: Any) -> None:
        try:
            super().close()  # type: ignore[misc]
        finally:
            _locks_of(self).settle()  # a database in memory is not closed

    def set_autocommit(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            super().set_autocommit(*args, **kwargs)  # type: ignore[misc]
        finally:
            _locks_of(self).settle()

    # Within a TestCase an atomic block of the code under test ends with its savepoint. At the
    # latest it has ended when the next one begins.

    def savepoint(self: Any) -> Any:
        savepoint = super().savepoint  # type: ignore[misc]
        _locks_of(self).settle()  # and the class may be Django's again
        return savepoint()

    def savepoint_commit(self: Any, sid: Any) -> None:
        locks = _locks_of(self)
        if not _is_in_transaction(self):
            try:
                locks.ensure()
            except LockLost:
                self.savepoint_rollback(sid)
                raise
        super().savepoint_commit(sid)  # type: ignore[misc]
        locks.settle()

    def savepoint_rollback(self: Any, sid: Any) -> None:
        super().savepoint_rollback(sid)  # type: ignore[misc]
        _locks_of(self).settle()


@functools.cache
def _watched(cls: Any) -> type[Any]:
    return type(cls.__name__, (_Watched, cls), {"__module__": cls.__module__})


def _watch(connection: Any) -> None:
    if not isinstance(connection, _Watched):
        connection.__class__ = _watched(connection.__class__)


def _is_in_transaction(connection: Any) -> bool:
    """Whether the connection is in a transaction of the project's, which has not ended."""
    if connection.connection is None or connection.closed_in_transaction:
        return False
    if connection.atomic_blocks:
        return not all(block._from_testcase for block in connection.atomic_blocks)
    # While the outermost block ends; or without autocommit, where each query may begin one.
    return connection.in_atomic_block or not connection.autocommit
