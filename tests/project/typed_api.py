"""What type checkers are to know of the public surface. Checked, and never run: see test_typing.py.

Each line that ends in "ignore" must be an error: one that is not needed is an error, too.
"""

# ruff: noqa: B018

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from celery import Celery, current_app, shared_task
from celery.result import AsyncResult
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp
from typing_extensions import assert_never, assert_type
from valkey import Valkey, ValkeyCluster

from celery_redislock import (
    NO_RESULT,
    AsyncAcquisition,
    AsyncRedisLock,
    Coalesce,
    Conflict,
    Decision,
    Defer,
    Holder,
    LockConflict,
    LockLost,
    NoResult,
    Policy,
    Queue,
    RedisLock,
    Replace,
    SingletonTask,
    Skip,
    TaskSkipped,
    ToDefer,
    ToFail,
    ToPark,
    ToReplace,
    ToSkip,
    ToWait,
    Wait,
    current_lock,
    lock_conflict,
    lock_lost,
    prometheus,
)
from celery_redislock.compat.celery_once import AlreadyQueued, QueueOnce
from celery_redislock.compat.celery_singleton import DuplicateTaskError, Singleton, clear_locks
from celery_redislock.django import LockAdminMixin, LockedTask, locks_page, transaction_lock
from celery_redislock.operations import Found, break_locks, drop_waiting, list_locks
from celery_redislock.signals import ConflictDetails, LostDetails
from celery_redislock.testing import (
    HeldLock,
    MemoryLocks,
    assert_locked,
    assert_skipped,
    hold_lock,
    memory_locks,
)
from celery_redislock.web import asgi_app

app = Celery("typed")

# -- tasks ------------------------------------------------------------------------------------


@app.task(
    base=SingletonTask,
    bind=True,
    lock_key=["account_id"],
    lock_ttl=30,
    on_conflict=Defer(delay=5),
)
def sync(self: SingletonTask, account_id: int, force: bool = False) -> int:
    assert_type(self.lock.fence, int)
    assert_type(self.lock.lost, bool)
    assert_type(self.lock.key, str | None)
    self.lock.ensure()
    self.lock.fense  # type: ignore[union-attr]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    return self.lock.fence


@app.task(base=SingletonTask, on_conflict="wait")
def report(month: str) -> str:
    return month


@shared_task(base=SingletonTask, bind=True)
def shared(self: SingletonTask) -> bool:
    return self.lock.lost


@app.task(base=QueueOnce, once={"keys": ["a"]})
def queued_once(a: int) -> int:
    return a


@app.task(base=Singleton, unique_on="a")
def single(a: int) -> int:
    return a


class Told(Singleton):
    abstract = True

    def on_duplicate(self, existing_task_id: str | None) -> str:
        return existing_task_id or ""


def changed_an_import() -> None:
    assert_type(queued_once.apply_async((5,), once={"graceful": True}), AsyncResult[Any])
    assert_type(queued_once.get_key((5,)), str)
    assert_type(single.delay(5), AsyncResult[Any])
    clear_locks(app)
    try:
        queued_once.delay(5)
    except AlreadyQueued as exc:
        assert_type(exc.countdown, float | None)
        assert_type(exc.holder, Holder | None)
    except DuplicateTaskError as exc:
        assert_type(exc.task_id, str | None)


class Report(SingletonTask):
    name = "report"
    lock_key = "report:{month}"
    lock_ttl = 60
    on_conflict = Queue(limit=3)

    def run(self, month: str) -> str:
        return f"{month} {self.lock.fence}"


def asks() -> None:
    assert_type(sync, SingletonTask)
    assert_type(report, SingletonTask)
    assert_type(shared, SingletonTask)
    assert_type(app.register_task(Report()), Report)
    assert_type(sync.delay(5, force=True), AsyncResult[Any])
    assert_type(sync.apply_async((5,), countdown=3), AsyncResult[Any])
    assert_type(sync.lock_key_for(5), str)
    assert_type(sync.lock_holder(5, force=True), Holder | None)
    assert_type(sync.break_lock(5), bool)
    assert_type(sync.with_headers({"tenant": "a"}).lock_key_for(5), str)
    sync.lock_keys_of(5)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    sync.lock_key_for(5).fence  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


def runs() -> None:
    assert_type(current_lock.fence, int)
    assert_type(current_lock.lost, bool)
    assert_type(current_lock.key, str | None)
    current_lock.ensure()
    lease = current_lock()
    if lease is not None:
        assert_type(lease.replaced_by, Holder | None)
    current_lock.fense  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


# -- policies ---------------------------------------------------------------------------------


def policies() -> list[Policy]:
    Defer(delay="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Wait(timout=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    return [
        Skip(),
        Skip(result={"any": "thing"}),
        Wait(timeout=5, then=Skip()),
        Queue(limit=3),
        Replace(),
    ]


class Log(Policy):
    def act(self, conflict: Conflict) -> Decision:
        assert_type(conflict.holder, Holder | None)
        assert_type(conflict.wait(1.0), Decision)
        conflict.run()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        return conflict.wait(1.0, then=lambda later: later.park(then=Skip()))


class Described(Policy):
    parks = True
    parks_all = False
    admits: bool = True
    replaces = True
    turns_away = False
    fails = False
    one_run = "ends the other run"
    result_if_replaced = None

    def act(self, conflict: Conflict) -> Decision:
        return conflict.replace(5)


class LastQueued(Queue):
    parks = True
    result_if_replaced = "a newer one runs"


class LastCoalesced(Coalesce):
    parks = True
    result_if_replaced = "a newer one runs"


def told(decision: Decision) -> str:
    """What a test of a policy may ask: no other value is one."""
    match decision:
        case ToSkip() | ToFail():
            return "ends"
        case ToWait() | ToPark():
            return f"waits, then {decision.then}"
        case ToReplace():
            return f"replaces, after {decision.grace}"
        case ToDefer():
            return f"comes again in {decision.countdown}"
        case _:
            assert_never(decision)


class SkipWith(Policy):
    def __init__(self, result: str | NoResult = NO_RESULT) -> None:
        self.result = result

    def act(self, conflict: Conflict) -> Decision:
        return conflict.skip(self.result)


# -- outside of tasks -------------------------------------------------------------------------


def outside(url: str, valkeys: ValkeyCluster) -> int:
    with RedisLock(url, "account:5", ttl=5, timeout=1) as lock:
        assert_type(lock, RedisLock)
        assert_type(lock.holder(), Holder | None)
        assert_type(lock.acquire(timeout=0), bool)
        RedisLock(url, 5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        RedisLock(5, "name")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        RedisLock(url, "name", transport_options={"master_name": "main"})
        RedisLock(Valkey(), "name")
        RedisLock(valkeys, "name")
        assert_type(RedisLock(app, "account:5", label="api: adjust").lost, bool)
        RedisLock(current_app, "account:5", prefix="shop", history=0)
        assert_type(RedisLock.of(sync, 5, force=True), RedisLock)
        assert_type(RedisLock.of(sync.with_headers({"tenant": "a"}), 5), RedisLock)
        return lock.fence


@RedisLock(app, "account:{account_id}")
def adjust(account_id: int, amount: int = 0) -> str:
    return f"{account_id}"


def key_of(account_id: int) -> str:
    return f"account:{account_id}"


@AsyncRedisLock(app, key_of)
async def adjust_soon(account_id: int) -> int:
    return account_id


async def outside_for_coroutines(url: str) -> AsyncAcquisition:
    assert_type(adjust(5), str)
    adjust("five")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(await adjust_soon(5), int)
    assert_type(AsyncRedisLock.of(sync, 5), AsyncRedisLock)
    lock = AsyncRedisLock(url, "account:5")
    async with lock as held:
        assert_type(held, AsyncAcquisition)
        assert_type(held.key, str)
        assert_type(held.fence, int)
        assert_type(await held.lost, bool)
        assert_type(await held.lost.wait(), bool)
        assert_type(bool(held.lost or lock.lost), bool)
        assert_type(await held.ensure(), None)
        assert_type(await held.extend(), bool)
        assert_type(await held.release(), bool)
    assert_type(await lock.acquire(timeout=5), bool)
    assert_type(await asyncio.wait_for(lock.acquire(), 5), bool)
    assert_type(await asyncio.wait_for(lock.release(), 5), bool)
    assert_type(await lock.holder(), Holder | None)
    return held


def errors() -> None:
    try:
        report.delay("May").get()
    except (TaskSkipped, LockConflict, LockLost) as exc:
        assert_type(exc.key, str | None)
        assert_type(exc.holder, Holder | None)
        exc.owner  # type: ignore[union-attr]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


@lock_conflict.connect
def on_conflict(sender: SingletonTask, details: ConflictDetails, **kwargs: object) -> None:
    assert_type(details.outcome, str)
    assert_type(details.holder, Holder | None)
    details.fence  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


@lock_lost.connect
def on_lost(sender: SingletonTask, details: LostDetails, **kwargs: object) -> None:
    assert_type(details.fence, int)


# -- operations -------------------------------------------------------------------------------


def operates() -> None:
    locks = list_locks(app, task="shop.*", older=3600)
    assert_type(locks, list[Found])
    assert_type(locks[0].held_for, float | None)
    assert_type(locks[0].holder, Holder | None)
    assert_type(break_locks(app, locks[:1]), list[Found])
    assert_type(break_locks(app, node="celery@web-1", by="me"), list[Found])
    assert_type(drop_waiting(app, task="*"), int)
    break_locks(app, name="x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def export(registry: CollectorRegistry) -> None:
    registry.register(prometheus.Collector(app, every=5))
    prometheus.Collector(app, often=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# -- the page ---------------------------------------------------------------------------------

page: ASGIApp = asgi_app(app, allow_break=True, token="x" * 16, allowed_hosts=["localhost"])
asgi_app(app, alow_break=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]

# -- Django -----------------------------------------------------------------------------------

staff_page: ASGIApp = locks_page(app, permission="shop.view_product", every=2)
with transaction_lock("account:5", "other", ttl=30, timeout=None, label="a") as in_transaction:
    assert_type(in_transaction, RedisLock)
with transaction_lock("account:5", source=app, timeout=timedelta(seconds=5)):
    pass
transaction_lock("account:5", name="other")  # type: ignore[misc]  # pyright: ignore[reportCallIssue]
locks_page(app, allow_break=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


@shared_task(base=LockedTask, lock_scope="queued")
def index_product(product_id: int) -> None: ...


def after_the_commit(singleton: SingletonTask) -> None:
    assert_type(index_product.delay(5), AsyncResult[Any])
    index_product.delay_on_commit(5)
    index_product.apply_async_on_commit((5,), countdown=5)
    assert_type(index_product.lock_holder(5), Holder | None)
    singleton.delay_on_commit  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


class ProductAdmin(LockAdminMixin):
    lock_task = index_product

    def lock_args(self, obj: Any) -> tuple[Any, ...]:
        return (obj.pk,)


# -- tests ------------------------------------------------------------------------------------


def test_it(
    redislock_memory: MemoryLocks,
    held_lock: Callable[..., HeldLock],
    lose_lock: Callable[..., None],
) -> None:
    lose_lock(sync, 5)
    assert_type(held_lock(sync, 5).key, str)
    assert_type(assert_skipped(sync.apply((5,))), TaskSkipped)
    assert_type(redislock_memory.outcomes(sync), list[str])


def without_pytest() -> None:
    with memory_locks() as locks, hold_lock(sync, 5) as held:
        assert_type(locks, MemoryLocks)
        assert_type(held, HeldLock)
        assert_type(assert_locked(sync, 5), Holder)
        with locks.unreachable():
            sync.apply((5,))
