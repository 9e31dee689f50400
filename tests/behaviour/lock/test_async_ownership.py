"""Whose an acquisition of an `AsyncRedisLock` is: for whom the object speaks, on every Python."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
import unittest
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, NamedTuple

import pytest

from celery_redislock import AsyncAcquisition, AsyncRedisLock, LockConflict, LockLost, RedisLock
from tests.support.servers import RedisServer


@pytest.fixture
def lock(redis_server: RedisServer, label: str) -> Callable[..., AsyncRedisLock]:
    """Makes lock objects for this test's own lock."""
    return lambda **options: AsyncRedisLock(redis_server.url, label, **{"ttl": 5, **options})


@pytest.fixture
def is_free(redis_server: RedisServer, label: str) -> Callable[[], bool]:
    def look() -> bool:
        return not RedisLock(redis_server.url, label).locked()

    return look


class Seen(NamedTuple):
    """What a lock object tells the task that asks."""

    fence: int
    lost: bool
    is_sure: bool
    may_extend: bool
    released: bool


async def seen_by(lock: AsyncRedisLock | AsyncAcquisition) -> Seen:
    fence, lost, is_sure, may_extend = lock.fence, bool(lock.lost), True, True
    try:
        await lock.ensure()
    except LockLost:
        is_sure = False
    try:
        await lock.extend()
    except LockLost:
        may_extend = False
    return Seen(fence, lost, is_sure, may_extend, await lock.release())


def all_of(fence: int) -> Seen:
    return Seen(fence, lost=False, is_sure=True, may_extend=True, released=True)


NOTHING = Seen(0, lost=False, is_sure=False, may_extend=False, released=False)


# -- a table: who acquired it, what came then, and who asks ---------------------------------------


async def as_task_of_its_own(work: Coroutine[Any, Any, Any]) -> Any:
    return await asyncio.create_task(work)


async def helper(lock: AsyncRedisLock, **options: Any) -> bool:
    return await lock.acquire(**options)


async def itself(lock):
    await lock.acquire(0)
    return await seen_by(lock)


async def itself_by_wait_for(lock):
    await asyncio.wait_for(lock.acquire(), 5)
    return await seen_by(lock)


async def itself_by_a_helper(lock):
    await helper(lock)
    return await seen_by(lock)


async def a_child(lock):
    await lock.acquire()
    return await asyncio.create_task(seen_by(lock))


async def a_child_within_the_block(lock):
    async with lock:
        return (await asyncio.gather(seen_by(lock)))[0]


async def itself_after_a_try_that_was_cancelled(lock):
    await lock.acquire()
    for timeout in (0, 0.05):
        with contextlib.suppress(asyncio.TimeoutError, LockConflict):
            await asyncio.wait_for(lock.acquire(5), timeout)
    return await seen_by(lock)


async def itself_after_an_early_release_in_the_block(lock):
    async with lock:
        await lock.release()
        await lock.acquire()
        return await seen_by(lock)


async def one_that_acquires_while_its_parent_waits(lock):
    async def child():
        async with lock:
            return await seen_by(lock)

    return await asyncio.create_task(child())


HOLDERS = [
    itself, itself_by_wait_for, itself_by_a_helper, a_child, a_child_within_the_block,
    itself_after_a_try_that_was_cancelled, itself_after_an_early_release_in_the_block,
    one_that_acquires_while_its_parent_waits,
]  # fmt: skip


@pytest.mark.parametrize("asks", HOLDERS, ids=lambda each: each.__name__)
def test_the_object_speaks_for(asks, lock, is_free, caplog):
    async def main():
        shared = lock()
        seen = await asks(shared)
        assert seen.fence > 0
        assert seen == all_of(seen.fence)
        assert is_free()
        assert await seen_by(shared) == NOTHING

    asyncio.run(main())
    assert not caplog.records


class Holder:
    """Another task, which holds the lock."""

    def __init__(self, lock: AsyncRedisLock) -> None:
        self._lock = lock

    async def acquire(self) -> None:
        self._goes_on, ready = asyncio.Event(), asyncio.get_running_loop().create_future()

        async def hold() -> None:
            async with self._lock as held:
                ready.set_result(held)
                await self._goes_on.wait()

        self._task = asyncio.create_task(hold())
        await asyncio.wait({self._task, ready}, return_when=asyncio.FIRST_COMPLETED)
        self.held = ready.result()

    async def release(self) -> None:
        self._goes_on.set()
        await self._task


async def a_sibling(lock, other):
    return await seen_by(lock)


async def one_that_waited_in_vain(lock, other):
    for timeout in (0.05, 0):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(lock.acquire(), timeout)
    return await seen_by(lock)


async def a_child_that_outlives_the_acquisition(lock, other):
    await other.release()
    goes_on = asyncio.Event()

    async def child():
        await goes_on.wait()
        return await seen_by(lock)

    async with lock:
        asks = asyncio.create_task(child())
    await other.acquire()
    goes_on.set()
    return await asks


async def one_whose_helper_acquired_it_in_a_task(lock, other):
    """That task has ended, so nobody can release it, and it expires."""
    await other.release()
    assert await asyncio.create_task(helper(lock))
    gc.collect()
    await other.acquire()
    return await seen_by(lock)


OTHERS = [
    a_sibling, one_that_waited_in_vain, a_child_that_outlives_the_acquisition,
    one_whose_helper_acquired_it_in_a_task,
]  # fmt: skip


@pytest.mark.parametrize("asks", OTHERS, ids=lambda each: each.__name__)
def test_the_object_does_not_speak_for_another_task_to(asks, lock, is_free, caplog):
    async def main():
        shared = lock(ttl=2)
        other = Holder(shared)
        await asyncio.create_task(other.acquire())
        with caplog.at_level(logging.WARNING):
            assert await asyncio.create_task(asks(shared, other)) == NOTHING
        assert not is_free()
        fence = other.held.fence
        assert fence > 0
        assert await seen_by(other.held) == all_of(fence)
        assert is_free()
        await other.release()
        (told,) = [text for text in caplog.messages if "did not release" in text]
        assert shared.key in told

    asyncio.run(main())


# -- children ---------------------------------------------------------------------------------


def test_a_child_that_was_refused_does_not_speak_for_its_parent(lock, is_free):
    async def main():
        shared = lock()

        async def child():
            assert shared.fence > 0
            assert not await shared.acquire(0)
            assert await asyncio.create_task(seen_by(shared)) == NOTHING
            return await seen_by(shared)

        async with shared as held:
            assert await asyncio.gather(child(), child()) == [NOTHING, NOTHING]
            assert shared.fence == held.fence > 0
            assert not is_free()
        assert is_free()

    asyncio.run(main())


def test_a_child_does_not_speak_for_what_its_parent_acquires_later(lock):
    async def main():
        shared, ask = lock(), asyncio.Event()

        async def child():
            await ask.wait()
            return await seen_by(shared)

        before = asyncio.create_task(child())
        await shared.acquire()
        within = asyncio.create_task(child())
        await asyncio.sleep(0)
        await shared.release()
        await shared.acquire()
        ask.set()
        assert await asyncio.gather(before, within) == [NOTHING, NOTHING]
        assert await shared.release() is True

    asyncio.run(main())


def test_children_may_use_and_release_what_their_parent_acquired(lock, is_free):
    async def main():
        shared = lock()
        async with shared as held:
            await asyncio.gather(shared.ensure(), shared.extend(), held.ensure(), held.extend())
            fence = shared.fence
            assert await asyncio.to_thread(lambda: shared.fence) == fence
            told = asyncio.create_task(shared.lost.wait())
            await asyncio.sleep(0)
            assert await asyncio.gather(shared.release(), shared.release()) == [True, False]
            assert await told is False
            assert is_free()

    asyncio.run(main())


def test_who_lost_it_keeps_its_fence_while_the_next_one_has_another(lock, redis_server):
    async def main():
        shared = lock(heartbeat=False, ttl=3)
        with pytest.raises(LockLost):
            async with shared as first:
                other = Holder(shared)
                await asyncio.create_task(other.acquire())
                assert shared.fence == first.fence < other.held.fence
                assert shared.lost
                with pytest.raises(LockLost):
                    await shared.ensure()
        other_fence = other.held.fence
        assert other_fence
        await other.release()

    asyncio.run(main())


def test_a_test_case_releases_what_its_set_up_acquired(lock, is_free):
    """Also if the test has tried to take it. On Python 3.11 each of the three is a task."""
    shared = lock()

    class Case(unittest.IsolatedAsyncioTestCase):
        async def asyncSetUp(self) -> None:
            assert await shared.acquire(0)

        async def test(self) -> None:
            assert shared.fence > 0
            assert not await shared.acquire(0)

        async def asyncTearDown(self) -> None:
            gc.collect()
            assert shared.fence > 0
            assert await shared.release()

    result = unittest.TestResult()
    Case("test").run(result)
    assert not [*result.failures, *result.errors]
    assert is_free()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="there is no asyncio.Runner")
def test_a_runner_runs_what_is_called_outside_of_it(lock, is_free):
    """Its tasks have a context of their own, in which nobody has asked for the lock."""
    shared = lock()
    with asyncio.Runner() as runner:
        for _ in range(2):
            assert runner.run(shared.acquire(0))
            fence = shared.fence
            assert fence > 0
            assert runner.run(shared.ensure()) is None
            assert runner.run(shared.extend()) is True
            assert shared.fence == fence
            assert runner.run(shared.release()) is True
            assert is_free()


# -- blocks -------------------------------------------------------------------------------------


def test_a_block_that_another_task_leaves_releases_its_own(lock, is_free):
    """As a fixture's, or a dependency's, that ends in a task of its own."""

    async def main():
        shared = lock()

        async def fixture() -> AsyncGenerator[int, None]:
            async with shared as held:
                yield held.fence

        steps = fixture()
        assert await asyncio.create_task(as_task_of_its_own(anext(steps))) > 0
        gc.collect()
        await shared.release()
        assert not is_free()
        await asyncio.create_task(as_task_of_its_own(steps.aclose()))
        assert is_free()

    asyncio.run(main())


def test_a_block_frees_only_what_it_acquired(lock, is_free, caplog):
    async def main():
        shared = lock()
        other = Holder(shared)
        async with shared as held:
            await held.release()
            await asyncio.create_task(other.acquire())
        assert not is_free()
        async with contextlib.AsyncExitStack() as stack:
            await asyncio.create_task(other.release())
            held = await stack.enter_async_context(shared)
            await held.release()
            await shared.acquire()
        assert not is_free()  # it was acquired besides
        assert await shared.release()
        assert is_free()

    asyncio.run(main())
    assert not caplog.records


def test_in_another_loop_nobody_may_use_it(lock, is_free):
    async def main():
        shared = lock()

        async def elsewhere():
            assert shared.fence == 0
            for use in (shared.ensure, shared.extend, shared.release, shared.acquire):
                with pytest.raises(RuntimeError, match="belongs to another event loop"):
                    await use()
            for use in (held.ensure, held.extend, held.release):
                with pytest.raises(RuntimeError, match="belongs to another event loop"):
                    await use()

        async with shared as held:
            await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
            assert not is_free()
            await shared.ensure()

    asyncio.run(main())


# -- nothing is kept ------------------------------------------------------------------------------


def test_a_task_that_lives_long_keeps_nothing(lock):
    async def main():
        shared, other = lock(), Holder(lock())
        await asyncio.create_task(other.acquire())

        async def use() -> weakref.ref[Any]:
            for timeout in (0, 0.001):
                assert not await shared.acquire(0)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(shared.acquire(), timeout)
            new = lock()
            assert not await new.acquire(0)
            return weakref.ref(new)

        seen = [await use() for _ in range(3)]
        gc.collect()
        count = len(gc.get_objects())
        seen += [await use() for _ in range(50)]
        gc.collect()
        assert len(gc.get_objects()) - count < 250
        assert [each for each in seen[:-1] if each() is not None] == []
        await other.release()

    asyncio.run(main())
