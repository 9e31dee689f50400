"""For tests of code that uses locks: locks in memory, without a Redis server.

The memory is fakeredis with this package's own scripts, so the same rules apply. It belongs to
this process: a worker must run in this process too, in the solo or threads pool. With pytest, the
fixtures `redislock_memory`, `held_lock` and `lose_lock` need no import.

    def test_a_second_sync_of_an_account_is_skipped(redislock_memory, held_lock):
        held_lock(sync, 5)
        assert_skipped(sync.apply((5,)))
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from time import sleep  # a test may replace `time.sleep` by something that calls `lose_lock`
from typing import Any, Final, TypeVar

import redis
from celery.backends.redis import RedisBackend
from celery.result import EagerResult
from celery.signals import worker_init

from ..app.internals import apps_so_far, sends_to
from ..errors import ConfigError, LockUnavailable, TaskSkipped
from ..lock.heartbeat import heartbeat
from ..lock.lease import Lease
from ..lock.named import NamedLock
from ..protocol import checks, holders
from ..protocol.calls import Release, break_lock, holder_of
from ..protocol.claims import Acquired, Busy, Claim, Done, to_ms
from ..protocol.clock import clock
from ..protocol.exchange import Call
from ..protocol.holders import Holder
from ..protocol.keys import LockKeys
from ..protocol.rooms import server_time
from ..protocol.tokens import new_token
from ..servers import stand_in
from ..servers.connections import pools_like
from ..servers.node import Node
from ..servers.server import Server
from ..signals import ConflictDetails, lock_conflict
from ..tasks.current import current_lock
from ..tasks.protect import calls_of, protect_all
from ..tasks.room import follow_up
from .travel import Travel

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

#: The most seconds until a holder in this process learns that its lock is gone.
_SOON: Final = 10.0
#: Seconds between two looks of a waiter in the memory, and until it asks again in any case.
_LOOK_EVERY: Final = 0.01
_ASK_AGAIN: Final = 0.5
#: What a test may have forgotten.
_FORGOT: Final = "the test does not use the fixture redislock_memory, or memory_locks()"

_T = TypeVar("_T")


class MemoryServer(Node):
    """A Redis server in the memory of this process."""

    def __init__(self) -> None:
        self.memory = FakeServer()
        self._pid = os.getpid()
        #: Who waits for each list, the first in front.
        self._lines: dict[str, list[object]] = {}
        #: A client of this server.
        self.client = self.new_client()
        pools = pools_like(self.client)
        # Our hook replaces the one of `Node`, which watches for restarts: this server has none.
        super().__init__(lambda timeout, on_connect: pools(timeout, self._on_connect))

    def new_client(self, decode_responses: bool = True) -> redis.Redis:
        client: redis.Redis = FakeRedis(server=self.memory, decode_responses=decode_responses)
        return client

    def _on_connect(self, connection: Any) -> None:
        if os.getpid() != self._pid:
            raise ConfigError(
                "celery_redislock.testing: the locks are in the memory of another process; run the"
                " worker in the test's process, in the solo or threads pool"
            )
        connection.on_connect()

    def block(self, call: Call[_T], wake: str, seconds: float) -> _T:
        """See `Server.block`. A waiter asks again soon: another release may take what wakes it."""
        line, me, failure = self._lines.setdefault(wake, []), object(), None
        line.append(me)
        try:
            give_up = clock() + min(seconds, _ASK_AGAIN)
            while clock() < give_up:
                if line[0] is me and self.replies([("LPOP", wake)])[0] is not None:
                    break
                sleep(_LOOK_EVERY)
        except LockUnavailable as exc:
            failure = exc
        finally:
            line.remove(me)
        answer = self.run(call, once=True)
        if failure is not None and isinstance(answer, Busy):
            raise failure
        return answer

    def may_answer_later(self, failure: LockUnavailable) -> bool:
        return False  # another try would not make this server reachable


class MemoryLocks:
    """The locks in memory: the value of the fixture `redislock_memory`.

    Attributes:
        client: a `redis.Redis` client for the memory.
        conflicts: the `ConflictDetails` of every duplicate since the start, in order.
    """

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self.client = server.client
        self.conflicts: list[ConflictDetails] = []
        self._travel = Travel(server, self.client)

    def outcomes(self, task: Any = None) -> list[str]:
        """The outcomes of all duplicates, in order: "skipped", "deferred", and so on.

        Args:
            task: only duplicates of this task; None for all tasks.
        """
        name = None if task is None else task.name
        return [each.outcome for each in self.conflicts if name in (None, each.task)]

    def waiting(self, task: Any, *args: Any, **kwargs: Any) -> int:
        """The number of tasks in the waiting room of the lock for this call."""
        return int(self.client.llen(task.keys_of_call(args, kwargs).room))

    @contextlib.contextmanager
    def unreachable(self) -> Iterator[None]:
        """A context in which the locks cannot be reached, as if Redis were down."""
        self._server.memory.connected = False
        try:
            yield
        finally:
            self._server.memory.connected = True

    def advance(self, seconds: float | timedelta) -> None:
        """Let time pass at once: for locks that expire, cool-downs, `max_wait` and `expires`.

        Locks that this process holds are kept, as by the heartbeat; without a heartbeat they
        expire. Messages with a countdown that a worker in this process receives are due sooner, of
        other tasks too. Threads that wait, and a worker, notice within some seconds.

        Args:
            seconds: how many, or a timedelta.

        Raises:
            ConfigError: they are negative, or no number.
        """
        self._travel.advance(checks.checked("advance", "seconds", seconds, checks.SECONDS))

    def _note(self, sender: Any, details: ConflictDetails, **kwargs: Any) -> None:
        self.conflicts.append(details)


@contextlib.contextmanager
def memory_locks(eager: bool = True) -> Iterator[MemoryLocks]:
    """A context in which every lock of this process is in memory: of all apps, and of `RedisLock`.

    The memory is empty at the start. An inner context hides the outer one until the inner one ends.

    Args:
        eager: True: `.apply()` and `task_always_eager` take locks. False: only if
            `redislock_eager` is True.
    """
    for app in apps_so_far():
        protect_all(app)  # which a worker does at its start
    before = stand_in.current
    server = MemoryServer()
    locks = MemoryLocks(server)
    stand_in.current = stand_in.StandIn(server, eager)
    # With the uid, as Celery 5.5 takes methods of two objects for the same receiver.
    lock_conflict.connect(locks._note, weak=False, dispatch_uid=id(locks))
    worker_init.connect(_refuse_dead_backend)
    worker_init.connect(_refuse_other_broker)
    try:
        yield locks
    finally:
        lock_conflict.disconnect(dispatch_uid=id(locks))
        stand_in.current = before
        locks._travel.end(is_last=before is None)


def _refuse_dead_backend(sender: Any, **kwargs: Any) -> None:
    """Refuse a worker that could not store results: Celery would try for 20 s."""
    backend = sender.app.backend
    if stand_in.current is None or not isinstance(backend, RedisBackend):
        return
    try:
        Node(pools_like(backend.client)).ask(server_time(""))
    except LockUnavailable as exc:
        # Celery only logs a receiver's ordinary errors.
        raise SystemExit(
            f"celery_redislock.testing: the result backend {backend.as_uri()} does not answer, so"
            " no test could get a result; replace it as well as the broker, before the app is"
            f" used: app.conf.update(broker_url='memory://', result_backend='cache+memory://')"
            f" ({exc.reason})"
        ) from exc


def _refuse_other_broker(sender: Any, **kwargs: Any) -> None:
    """Refuse a worker that its app does not send to: Celery keeps an app's connections."""
    app = sender.app
    if stand_in.current is None or (before := sends_to(app)) is None:
        return
    now = app.connection_for_write().as_uri()
    if before != now:
        raise SystemExit(
            f"celery_redislock.testing: the app {app.main} sends to {before}, which was its broker"
            f" when it first sent, and its broker is {now} now; replace the broker before the app"
            " is used, in a conftest.py, or use another app"
        )


# -- other holders ----------------------------------------------------------------------------


class HeldLock:
    """A lock that the test holds. As a context manager it releases the lock at its end.

    Attributes:
        key: the lock's whole key in Redis.
    """

    def __init__(self, app: Any, keys: LockKeys) -> None:
        self._app = app
        self._leases: list[Lease] = []
        self.key = keys.lock

    def take(self, lease: Lease) -> Acquired | Busy | Done:
        """Take one of the lock's slots."""
        self._leases.append(lease)
        return lease.acquire()

    @property
    def lost(self) -> bool:
        """Whether the lock was lost."""
        return any(lease.lost for lease in self._leases)

    def release(self) -> None:
        """Release the lock. A waiter is woken, and the waiting room's first task has its turn."""
        for lease in self._leases:
            settled = lease.release(Release(publishes=self._app is not None))
            if settled is not None and self._app is not None:
                follow_up(self._app, lease.claim.keys, lease.ttl, settled)

    def __enter__(self) -> HeldLock:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()


def hold_lock(what: Any, *args: Any, **kwargs: Any) -> HeldLock:
    """Hold a lock as another run would, until it is released. With `lock_limit`, hold every slot.

    Args:
        what: the task, `task.with_headers(...)`, or a `RedisLock`.
        args: the call's arguments.
        kwargs: the call's keyword arguments.

    Raises:
        AssertionError: the lock is held already.
        TypeError: the task takes no lock.
    """
    __tracebackhide__ = True
    server, keys, ttl = _lock_of(what, args, kwargs)
    task, app, label = "", None, None
    if not isinstance(what, NamedLock):
        calls = calls_of(what)
        task, app, label = calls.task.name, calls.task.app, calls.label_of_call(args, kwargs)
    held = HeldLock(app, keys)
    for number in range(1, len(keys.slots) + 2):
        token, task_id = new_token(), f"held-by-test-{number}"
        value = holders.encode(token, ttl_ms=to_ms(ttl), task=task, task_id=task_id, label=label)
        lease = Lease(server, Claim(keys, token, ttl, value, task_id))
        reply = _ask_or_explain(partial(held.take, lease))
        if not isinstance(reply, Acquired):
            held.release()
            raise AssertionError(f"{keys.lock} is not free: {reply}")
    return held


def lose_lock(what: Any = None, *args: Any, **kwargs: Any) -> None:
    """Take a lock away from the run in this process that holds it. On return the run knows.

    Args:
        what: the task, `task.with_headers(...)`, or a `RedisLock`; None for the lock of the task
            that calls this.
        args: the call's arguments.
        kwargs: the call's keyword arguments.

    Raises:
        AssertionError: no run in this process holds it.
        LockLost: the caller is the holder, with `on_lock_lost="abort"`.
    """
    __tracebackhide__ = True
    if what is None:
        lease = current_lock()
        if lease is None:
            raise AssertionError("lose_lock: no locked task runs here; say which task's lock it is")
        server, keys, ttl = lease.server, lease.claim.keys, lease.ttl
    else:
        server, keys, ttl = _lock_of(what, args, kwargs)
    held = [
        each
        for each in heartbeat.live()
        if isinstance(each, Lease) and each.server is server and each.claim.keys == keys
    ]
    if not held:
        raise AssertionError(f"no run in this process holds {keys.lock}")
    server.run(break_lock(keys, ttl, by="lose_lock"))
    give_up = clock() + _SOON
    while not all(each.loss_is_told for each in held):
        if clock() > give_up:
            raise AssertionError(f"the heartbeat did not find out that {keys.lock} was broken")
        for each in held:
            heartbeat.beat_now(each)
        sleep(0.001)
    sleep(0.001)  # time for an abort to reach this thread


def _lock_of(what: Any, args: Any, kwargs: Any) -> tuple[Server, LockKeys, float]:
    if isinstance(what, NamedLock):
        return what._server, what._keys, what.ttl
    calls = calls_of(what)
    task = calls.task
    return task.app_locks.server, calls.keys_of_call(args, kwargs), task.lock_options.lock_ttl


# -- assertions -------------------------------------------------------------------------------


def assert_skipped(result: Any, timeout: float = 10.0) -> TaskSkipped:
    """Assert that a task was skipped or replaced as a duplicate.

    A task with `Skip(result=x)` has that result instead; see `MemoryLocks.outcomes`.

    Args:
        result: the result of `delay`, `apply_async` or `apply`.
        timeout: seconds to wait for it.

    Returns:
        The exception, with `key` and `holder`.

    Raises:
        AssertionError: the task ended otherwise.
    """
    __tracebackhide__ = True
    error = result.get(timeout=timeout, propagate=False)
    if not isinstance(error, TaskSkipped):
        says = f"{result.id} was not skipped: it is {result.state} with {error!r}"
        if isinstance(result, EagerResult) and stand_in.current is None:
            says = f"{says}. Eager calls may take no locks here: {_FORGOT}"
        raise AssertionError(says)
    return error


def assert_locked(what: Any, *args: Any, **kwargs: Any) -> Holder:
    """Assert that the lock for this call is held.

    Args:
        what: the task, `task.with_headers(...)`, or a `RedisLock`.
        args: the call's arguments.
        kwargs: the call's keyword arguments.

    Returns:
        The holder.

    Raises:
        AssertionError: the lock is free.
    """
    __tracebackhide__ = True
    holder, key = _holder_of(what, args, kwargs)
    if holder is None:
        raise AssertionError(f"{key} is not held")
    return holder


def assert_free(what: Any, *args: Any, **kwargs: Any) -> None:
    """Assert that the lock for this call is free. It takes the same arguments as `assert_locked`.

    Raises:
        AssertionError: the lock is held.
    """
    __tracebackhide__ = True
    holder, key = _holder_of(what, args, kwargs)
    if holder is not None:
        raise AssertionError(f"{key} is held by {holder}")


def _holder_of(what: Any, args: Any, kwargs: Any) -> tuple[Holder | None, str]:
    server, keys, ttl = _lock_of(what, args, kwargs)
    return _ask_or_explain(lambda: server.ask(holder_of(keys, ttl))), keys.lock


def _ask_or_explain(ask: Callable[[], _T]) -> _T:
    """The lock server's answer. Its failure says if the locks are not in memory."""
    try:
        return ask()
    except LockUnavailable as exc:
        if stand_in.current is not None:
            raise
        reason = f"{exc.reason}; the locks are not in memory: {_FORGOT}"
        raise LockUnavailable(exc.key, exc.holder, reason) from exc
