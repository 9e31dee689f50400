"""`async def` bodies, in classes that await them themselves, and `current_lock` in what they await.

The classes are those that people write, or find in Django's documents: asyncio.run, asgiref's
`async_to_sync`, and a loop in a thread of its own for all tasks.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from celery_redislock import LockLost, SingletonTask, current_lock
from celery_redislock.testing import assert_free, assert_locked, lose_lock, memory_locks


class ByRun(SingletonTask):
    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return asyncio.run(self.run(*args, **kwargs))


class ByAsgiref(SingletonTask):
    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return async_to_sync(self.run)(*args, **kwargs)


class InOneLoop(SingletonTask):
    """Connections of asyncio, such as a database's, can then be kept."""

    abstract = True
    loop: asyncio.AbstractEventLoop

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(self.run(*args, **kwargs), self.loop).result(20)


@pytest.fixture(autouse=True)
def locks() -> Iterator[Any]:
    with memory_locks() as locks:
        yield locks


@pytest.fixture(autouse=True)
def loop() -> Iterator[None]:
    InOneLoop.loop = loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.mark.parametrize("base", [ByRun, ByAsgiref, InOneLoop])
def test_a_body_that_its_class_awaits_runs_under_the_lock(make_app, base):
    app = make_app()

    async def further() -> tuple[Any, ...]:
        await asyncio.sleep(0)
        seen = await asyncio.to_thread(lambda: current_lock.fence)
        return current_lock.fence, seen, bool(current_lock.lost)

    @app.task(base=base, bind=True, lock_key=["account"])
    async def sync(self: Any, account: int) -> tuple[Any, ...]:
        assert_locked(self, account)
        assert current_lock().key == self.lock_key_for(account)
        assert self.apply((account,)).state == "REVOKED"
        return (current_lock.fence, *await further())

    fence, *seen = sync.apply((5,)).get()
    assert fence > 0
    assert seen == [fence, fence, False]
    assert_free(sync, 5)


def test_in_a_loop_elsewhere_the_lock_is_current_and_its_loss_is_seen(make_app):
    app = make_app()

    async def further() -> int:
        return current_lock.fence

    @app.task(base=InOneLoop)
    async def sync() -> bool:
        assert current_lock
        current_lock.ensure()
        assert await asyncio.create_task(further()) == current_lock.fence > 0
        await asyncio.to_thread(lose_lock, sync)
        with pytest.raises(LockLost):
            current_lock.ensure()
        return current_lock.lost

    assert sync.apply().get() is True


def test_a_coroutine_that_outlives_the_body_has_no_lock(make_app):
    app, ended = make_app(), threading.Event()
    seen: list[Any] = []

    async def goes_on() -> None:
        seen.append(current_lock.lost)
        await asyncio.to_thread(ended.wait, 20)
        seen.extend((bool(current_lock), current_lock.lost))
        with pytest.raises(LockLost):
            current_lock.ensure()
        seen.append("told")

    @app.task(base=InOneLoop)
    async def sync() -> None:
        tasks.append(asyncio.create_task(goes_on()))
        await asyncio.sleep(0)

    tasks: list[asyncio.Task[None]] = []
    sync.apply().get()
    ended.set()
    asyncio.run_coroutine_threadsafe(asyncio.wait_for(tasks[0], 20), InOneLoop.loop).result(20)
    assert seen == [False, False, True, "told"]
