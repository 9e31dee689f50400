"""`RedisLock.of` and `AsyncRedisLock.of`: the lock of a task's call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery, shared_task

from celery_redislock import AsyncRedisLock, ConfigError, RedisLock, SingletonTask
from celery_redislock.testing import assert_free, assert_locked, assert_skipped, hold_lock

KINDS = [RedisLock, AsyncRedisLock]


@pytest.fixture
def app(redis_server) -> Iterator[Celery]:
    """An app whose eager calls take locks."""
    app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(redislock_url=redis_server.url, redislock_eager=True)
    yield app
    app.close()


@pytest.fixture
def task(app, label) -> Callable[..., Any]:
    """Makes a task of this test's own."""

    def make(**options: Any) -> Any:
        @app.task(base=SingletonTask, name=f"shop.{label}", **options)
        def sync(account_id: int, force: bool = False) -> str:
            return "synced"

        return sync

    return make


def hold(lock: Any, work: Callable[[], Any]) -> Any:
    """Do this work under the lock, in a thread of its own if that is for coroutines."""
    if isinstance(lock, RedisLock):
        with lock:
            return work()

    async def held() -> Any:
        async with lock:
            return await asyncio.to_thread(work)

    return asyncio.run(held())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "key",
    [
        {},
        {"lock_key": ["account_id"]},
        {"lock_key": "account {account_id} of {{shop}}"},
        {"lock_key": lambda account_id, force=False: f"{{account}} {account_id}"},
    ],
)
def test_it_excludes_the_tasks_run_and_is_excluded(task, kind, key) -> None:
    sync = task(**key)
    lock = kind.of(sync, 5)
    assert lock.key == sync.lock_key_for(5)

    skipped = hold(lock, lambda: assert_skipped(sync.apply((5,))))

    assert skipped.key == lock.key
    assert skipped.holder.task is None
    assert_free(sync, 5)
    assert sync.apply((5,)).get() == "synced"
    with hold_lock(sync, 5):
        taken = lock.acquire(0)
        assert (taken if isinstance(lock, RedisLock) else asyncio.run(taken)) is False


@pytest.mark.parametrize("kind", KINDS)
def test_its_arguments_are_the_calls(task, kind) -> None:
    sync = task(lock_key=["account_id"])
    for lock in (kind.of(sync, account_id=5), kind.of(sync, 5, force=True)):
        assert lock.key == sync.lock_key_for(5)
    assert kind.of(sync, 6).key != sync.lock_key_for(5)
    assert kind.of(sync, 5).key != kind(sync.app, "account:5").key


@pytest.mark.parametrize("kind", KINDS)
def test_its_options_are_the_tasks(task, kind) -> None:
    sync = task(lock_key=["account_id"], lock_ttl=7, lock_label="account {account_id}")
    lock = kind.of(sync, 5)
    holder = hold(lock, lambda: assert_locked(sync, 5))
    assert lock.ttl == 7
    assert holder.label == "account 5"
    assert 5 < holder.ttl <= 7


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [2, lambda account_id, force=False: 2])
def test_with_a_limit_it_takes_one_of_the_places(task, kind, limit) -> None:
    sync = task(lock_key=["account_id"], lock_limit=limit)
    first, second = kind.of(sync, 5), kind.of(sync, 5)

    def both() -> None:
        assert sync.apply((5,)).get() == "synced"
        hold(second, lambda: assert_skipped(sync.apply((5,))))
        assert sync.apply((5,)).get() == "synced"

    hold(first, both)
    assert_free(sync, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_with_headers_it_is_the_lock_of_calls_with_these(task, kind) -> None:
    sync = task(lock_key=["account_id"], lock_headers=["tenant"])
    of_a = sync.with_headers({"tenant": "a"})
    assert kind.of(of_a, 5).key == of_a.lock_key_for(5)
    assert kind.of(of_a, 5).key != kind.of(sync.with_headers({"tenant": "b"}), 5).key


@pytest.mark.parametrize("kind", KINDS)
def test_it_decorates_functions(task, kind) -> None:
    sync = task(lock_key="{{account}} {account_id}")

    if kind is RedisLock:

        @kind.of(sync, 5)
        def adjust() -> Any:
            return assert_skipped(sync.apply((5,))).key

        assert adjust() == sync.lock_key_for(5)
    else:

        @kind.of(sync, 5)
        async def adjust_async() -> Any:
            return await asyncio.to_thread(lambda: assert_skipped(sync.apply((5,))).key)

        assert asyncio.run(adjust_async()) == sync.lock_key_for(5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_that_redislock_tasks_names_and_a_shared_one(app, kind, label) -> None:
    @app.task(name=f"theirs.{label}")
    def theirs(account_id: int) -> str:
        return "done"

    @shared_task(base=SingletonTask, name=f"shared.{label}", lock_key=["account_id"])
    def shared(account_id: int) -> str:
        return "done"

    with pytest.raises(TypeError, match="takes no lock"):
        kind.of(theirs, 5)
    app.conf.redislock_tasks = {"theirs.*": {"lock_key": ["account_id"]}}
    assert kind.of(theirs, 5).key == theirs.lock_key_for(5)
    app.set_current()
    try:
        assert kind.of(shared, 5).key == app.tasks[f"shared.{label}"].lock_key_for(5)
    finally:
        from celery._state import _set_current_app

        _set_current_app(None)


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_refuses(task, kind) -> None:
    sync = task(lock_key=lambda account_id, force=False: None)
    with pytest.raises(ValueError, match="takes no lock"):
        kind.of(sync, 5)
    for wrong in ((), (5, True, 1)):
        with pytest.raises(TypeError, match=r"account_id|arguments"):
            kind.of(sync, *wrong)
    with pytest.raises(TypeError, match="unknown"):
        kind.of(sync, 5, unknown=1)
    for what in ("shop.sync", None, sync.s(5), SingletonTask):
        with pytest.raises(TypeError, match="is no task"):
            kind.of(what, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_with_wrong_options_says_so(kind) -> None:
    app = Celery("nowhere", broker="memory://", set_as_current=False)

    @app.task(base=SingletonTask, name="nowhere.sync", lazy=True)
    def sync(account_id: int) -> None: ...

    with pytest.raises(ConfigError, match="redislock_url"):
        kind.of(sync, 5)
    app.close()
