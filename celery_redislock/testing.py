"""For tests of code that uses this library: its locks without a Redis server.

The store in memory is fakeredis under the library's own scripts, so the rules are the very same.
It belongs to this process: the worker must run in it, in the solo or threads pool. With pytest, the
fixtures `redislock_memory`, `held_lock` and `lose_lock` need no import.

    def test_a_second_sync_of_an_account_is_skipped(redislock_memory, held_lock):
        held_lock(sync, 5)
        assert_skipped(sync.apply((5,)))
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import redis

from .core import holders, stand_in
from .core.claims import Acquired, Busy, Claim, Done, new_token, to_ms
from .core.clock import clock
from .core.connections import pools_like
from .core.heartbeat import heartbeat
from .core.holders import Holder
from .core.keys import LockKeys
from .core.lease import Lease
from .core.redis_lock import RedisLock
from .core.server import Server
from .core.store import Store
from .errors import ConfigError, TaskSkipped
from .signals import ConflictDetails, lock_conflict
from .tasks.task import current_lock
from .tasks.turns import follow

try:
    import lupa as _lupa  # noqa: F401  without it fakeredis knows no scripts
    from fakeredis import FakeRedis, FakeServer
except ImportError as exc:
    raise ImportError(
        "celery_redislock.testing needs fakeredis with Lua: pip install 'celery-redislock[testing]'"
    ) from exc

__all__ = [
    "HeldLock",
    "MemoryLocks",
    "assert_free",
    "assert_locked",
    "assert_skipped",
    "hold_lock",
    "lose_lock",
    "memory_locks",
]

T = TypeVar("T")

#: Seconds within which a holder in this process learns that its lock is gone. It takes a
#: millisecond, on a machine that is not busy with something else.
_SOON: Final = 10.0


class _MemoryServer(Server):
    def persist(self, call: Callable[..., T], ttl: float, *arguments: Any) -> T:
        return call(ttl, *arguments)  # nobody repairs this server while one waits


class MemoryStore(Store):
    """A store on a Redis server that is nothing but a part of this process."""

    def __init__(self) -> None:
        self._memory = FakeServer()
        self._pid = os.getpid()
        #: A client of that server.
        self.client = self.new_client()
        pools = pools_like(self.client)
        # Not the store's own hook: this server never comes back as another one.
        super().__init__(
            lambda timeout, on_connect: pools(timeout, self._on_connect), _MemoryServer
        )

    def new_client(self, decode_responses: bool = True) -> redis.Redis:
        """Another client of that server."""
        client: redis.Redis = FakeRedis(server=self._memory, decode_responses=decode_responses)
        return client

    def _on_connect(self, connection: Any) -> None:
        if os.getpid() != self._pid:
            raise ConfigError(
                "celery_redislock.testing: the locks are in the memory of another process; run the"
                " worker in the tests' own, in the solo or threads pool"
            )
        connection.on_connect()

    @contextlib.contextmanager
    def unreachable(self) -> Iterator[None]:
        """Every operation meets a server that does not answer."""
        self._memory.connected = False
        try:
            yield
        finally:
            self._memory.connected = True


class MemoryLocks:
    """The locks in memory. What the fixture `redislock_memory` gives.

    Attributes:
        client: a `redis.Redis` client that looks into the memory.
        conflicts: the `ConflictDetails` of every duplicate since the start, in their order.
    """

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.client = store.client
        self.conflicts: list[ConflictDetails] = []

    def outcomes(self, task: Any = None) -> list[str]:
        """What duplicates ended in, in their order: "skipped", "deferred", and so on.

        Args:
            task: only this task's; None for all.
        """
        name = None if task is None else task.name
        return [each.outcome for each in self.conflicts if name in (None, each.task)]

    def waiting(self, task: Any, *args: Any, **kwargs: Any) -> int:
        """How many wait in the waiting room of the lock for this call."""
        return int(self.client.llen(task.keys_of_call(args, kwargs).room))

    @contextlib.contextmanager
    def unreachable(self) -> Iterator[None]:
        """While this lasts nobody can reach the locks, as if Redis were away."""
        with self._store.unreachable():
            yield

    def _note(self, sender: Any, details: ConflictDetails, **kwargs: Any) -> None:
        self.conflicts.append(details)


@contextlib.contextmanager
def memory_locks(eager: bool = True) -> Iterator[MemoryLocks]:
    """While this lasts, every lock of this process is in memory: of all apps, and `RedisLock`s.

    It begins without any lock. One within another stands in for that, until it ends.

    Args:
        eager: `.apply()` and `task_always_eager` take locks, too, whatever `redislock_eager` says.
    """
    before = stand_in.current
    store = MemoryStore()
    locks = MemoryLocks(store)
    stand_in.current = stand_in.StandIn(store, eager)
    # Celery 5.5 takes the methods of two objects for the same receiver.
    lock_conflict.connect(locks._note, weak=False, dispatch_uid=id(locks))
    try:
        yield locks
    finally:
        lock_conflict.disconnect(dispatch_uid=id(locks))
        stand_in.current = before


# -- what others do ---------------------------------------------------------------------------


class HeldLock:
    """A lock that somebody else holds: the test. As a context, until its end.

    Attributes:
        key: its whole key in Redis.
    """

    def __init__(self, app: Any, keys: LockKeys) -> None:
        self._app = app
        self._leases: list[Lease] = []
        self.key = keys.lock

    def take(self, lease: Lease) -> Acquired | Busy | Done:
        """Hold one permit of it."""
        self._leases.append(lease)
        return lease.take()

    @property
    def lost(self) -> bool:
        """Whether it was taken away."""
        return any(lease.lost for lease in self._leases)

    def release(self) -> None:
        """Give it back: who waits is woken, and the waiting room's first has its turn."""
        for lease in self._leases:
            settled = lease.settle(publishes=self._app is not None)
            if settled is not None and self._app is not None:
                follow(self._app, lease.claim.keys, lease.ttl, settled)

    def __enter__(self) -> HeldLock:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()


def hold_lock(what: Any, *args: Any, **kwargs: Any) -> HeldLock:
    """Hold a lock as another run would, until it is released. All of it, if several may.

    Args:
        what: the task, or a `RedisLock`.
        args: the call's arguments.
        kwargs: the call's keyword arguments.

    Raises:
        AssertionError: somebody holds it already.
    """
    __tracebackhide__ = True
    store, keys, ttl = _lock_of(what, args, kwargs)
    task, app = ("", None) if isinstance(what, RedisLock) else (what.name, what.app)
    held = HeldLock(app, keys)
    for number in range(1, len(keys.slots) + 2):
        token, task_id = new_token(), f"held-by-test-{number}"
        value = holders.encode(token, ttl_ms=to_ms(ttl), task=task, task_id=task_id)
        reply = held.take(Lease(store, Claim(keys, token, ttl, value, task_id)))
        if not isinstance(reply, Acquired):
            held.release()
            raise AssertionError(f"{keys.lock} is not free: {reply}")
    return held


def lose_lock(what: Any = None, *args: Any, **kwargs: Any) -> None:
    """Take a lock away from the run in this process that holds it, which has learnt it on return.

    Args:
        what: the task, or a `RedisLock`; None for the lock of the task that calls this.
        args: the call's arguments.
        kwargs: the call's keyword arguments.

    Raises:
        AssertionError: nobody in this process holds it.
        LockLost: this is the holder, and its `on_lock_lost` is "abort".
    """
    __tracebackhide__ = True
    if what is None:
        lease = current_lock()
        if lease is None:
            raise AssertionError("lose_lock: no locked task runs here; say which task's lock it is")
        store, keys, ttl = lease.store, lease.claim.keys, lease.ttl
    else:
        store, keys, ttl = _lock_of(what, args, kwargs)
    held = [each for each in heartbeat.live() if isinstance(each, Lease)]
    holders = [each for each in held if each.store is store and each.claim.keys == keys]
    if not holders:
        raise AssertionError(f"{keys.lock} is held by nobody in this process")
    store.locks.break_lock(keys, ttl)
    give_up = clock() + _SOON
    while not all(each.loss_is_told for each in holders):
        if clock() > give_up:
            raise AssertionError(f"the heartbeat did not find out that {keys.lock} was broken")
        for each in holders:
            heartbeat.beat_now(each)
        time.sleep(0.001)
    time.sleep(0.001)  # an abort is on its way to this thread


def _lock_of(what: Any, args: Any, kwargs: Any) -> tuple[Store, LockKeys, float]:
    if isinstance(what, RedisLock):
        return what._store, what._keys, what.ttl
    keys: LockKeys = what.keys_of_call(args, kwargs)
    return what.app_locks.store, keys, what.lock_options.lock_ttl


# -- assertions -------------------------------------------------------------------------------


def assert_skipped(result: Any, timeout: float = 10.0) -> TaskSkipped:
    """Assert that a task ended as a duplicate, without running.

    One that ended in `Skip(result=x)` has that result; see `MemoryLocks.outcomes`.

    Args:
        result: what `delay`, `apply_async` or `apply` gave.
        timeout: seconds to wait for it.

    Returns:
        The exception, which has `key` and `holder`.
    """
    __tracebackhide__ = True
    error = result.get(timeout=timeout, propagate=False)
    if not isinstance(error, TaskSkipped):
        raise AssertionError(f"{result.id} was not skipped: it is {result.state} with {error!r}")
    return error


def assert_locked(what: Any, *args: Any, **kwargs: Any) -> Holder:
    """Assert that somebody holds the lock for this call.

    Args:
        what: the task, or a `RedisLock`.
        args: the call's arguments.
        kwargs: the call's keyword arguments.

    Returns:
        Who holds it.
    """
    __tracebackhide__ = True
    holder, key = _holder_of(what, args, kwargs)
    if holder is None:
        raise AssertionError(f"{key} is held by nobody")
    return holder


def assert_free(what: Any, *args: Any, **kwargs: Any) -> None:
    """Assert that nobody holds the lock for this call. Takes what `assert_locked` takes."""
    __tracebackhide__ = True
    holder, key = _holder_of(what, args, kwargs)
    if holder is not None:
        raise AssertionError(f"{key} is held by {holder}")


def _holder_of(what: Any, args: Any, kwargs: Any) -> tuple[Holder | None, str]:
    store, keys, ttl = _lock_of(what, args, kwargs)
    return store.locks.holder(keys, ttl), keys.lock
