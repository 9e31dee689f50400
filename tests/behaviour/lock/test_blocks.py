"""What `with` took, its end gives back in whatever thread: frameworks run the halves of a generator
in any threads of a pool, and what else there is to do meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI
from fastapi.responses import StreamingResponse

from celery_redislock import LockConflict, LockLost, RedisLock
from tests.support.waiting import eventually, never


@pytest.fixture
def lock(redis_server, label) -> Callable[..., RedisLock]:
    """Makes lock objects for this test's own lock."""

    def make(**options: Any) -> RedisLock:
        return RedisLock(redis_server.url, label, **{"ttl": 5, **options})

    return make


@pytest.fixture
def threads() -> Iterator[list[ThreadPoolExecutor]]:
    """Three threads, which live on."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(ThreadPoolExecutor(1, f"thread{each}")) for each in range(3)]


def of_request(thread: ThreadPoolExecutor, step: Callable[..., Any], *args: Any) -> Any:
    """Take a step of a request in this thread, as frameworks do: in a copy of a context."""
    return thread.submit(contextvars.copy_context().run, step, *args).result(60)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the package warned of."""
    return [
        each.getMessage()
        for each in caplog.records
        if each.name == "celery_redislock" and each.levelno >= logging.WARNING
    ]


# -- the halves of a block in two threads ------------------------------------------------------


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_block_that_ends_in_another_thread_frees_its_lock(
    lock, threads, caplog, reentrant
) -> None:
    mine = lock(reentrant=reentrant)
    for _ in range(3):
        of_request(threads[0], mine.__enter__)
        assert mine.fence > 0
        assert lock().locked()
        of_request(threads[1], mine.__exit__, None, None, None)
        assert not lock().locked()
        assert mine.fence == 0
    assert warnings(caplog) == []


def test_a_block_keeps_its_lock_when_the_thread_ends_that_began_it(lock, caplog) -> None:
    """A pool ends threads that were idle for some seconds."""
    mine = lock(ttl=3)
    thread = threading.Thread(target=mine.__enter__)
    thread.start()
    thread.join()

    never(lambda: not lock().locked() or mine.lost, "it lapses", 3.3)

    mine.__exit__(None, None, None)
    assert not lock().locked()
    assert warnings(caplog) == []


def test_a_block_that_lost_its_lock_does_not_free_the_next_ones(lock, client, threads) -> None:
    mine = lock(ttl=2)
    of_request(threads[0], mine.__enter__)
    client.set(mine.key, "the thief's")
    eventually(lambda: mine.lost, "it is lost")
    client.delete(mine.key)
    of_request(threads[1], mine.__enter__)  # the next one
    with pytest.raises(LockLost):
        of_request(threads[2], mine.__exit__, None, None, None)
    assert lock().locked()
    of_request(threads[2], mine.__exit__, None, None, None)
    assert not lock().locked()


def test_a_lock_that_one_thread_takes_and_another_gives_back_is_not_kept(lock, threads) -> None:
    mine = lock()
    for _ in range(5):
        threads[0].submit(mine.__enter__).result(60)  # in the thread's own context
        threads[1].submit(mine.__exit__, None, None, None).result(60)
    gc.collect()
    leases = [
        each for each in gc.get_objects() if type(each).__name__ == "Lease" and each.key == mine.key
    ]
    assert len(leases) <= 2
    context = threads[0].submit(contextvars.copy_context).result(60)
    assert all(len(value) <= 1 for var, value in context.items() if var.name == "redislock_entered")


# -- other requests in the same thread ---------------------------------------------------------


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("timeout", [20, None])
def test_another_request_in_the_thread_waits_for_the_end_in_another_one(
    lock, threads, reentrant, timeout
) -> None:
    """It is not inside too, as a reentrant lock's own would be, and it is no deadlock."""
    mine = lock(reentrant=reentrant, timeout=timeout)
    of_request(threads[0], mine.__enter__)
    fence = mine.fence
    waiting = threads[0].submit(contextvars.copy_context().run, mine.__enter__)
    never(waiting.done, "two are inside", 0.5)
    of_request(threads[1], mine.__exit__, None, None, None)
    waiting.result(60)
    assert mine.fence > fence
    of_request(threads[1], mine.__exit__, None, None, None)
    assert not lock().locked()


def test_a_block_in_a_block_in_one_thread_is_reentrant_or_a_deadlock_that_is_told(lock) -> None:
    def inner(mine: RedisLock) -> int:
        with mine:
            return mine.fence

    with (mine := lock(reentrant=True)):
        # Also in a generator's block, and in a context that was copied within.
        assert contextvars.copy_context().run(inner, mine) == mine.fence
        with contextlib.contextmanager(lambda: (yield from generator(mine)))():
            assert inner(mine) == mine.fence
    with (mine := lock(timeout=None)), pytest.raises(LockConflict):
        inner(mine)
    assert not lock().locked()


def generator(mine: RedisLock) -> Iterator[None]:
    with mine:
        yield


# -- FastAPI -----------------------------------------------------------------------------------


REQUESTS = 12


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_dependency_of_fastapi_that_yields_in_a_block(lock, caplog, is_shared, reentrant) -> None:
    shared, inside, most = lock(reentrant=reentrant, timeout=30), [], []

    def locked() -> Iterator[RedisLock]:
        with shared if is_shared else lock(reentrant=reentrant, timeout=30) as held:
            yield held

    api = FastAPI()

    @api.get("/")
    def work(held: RedisLock = Depends(locked)) -> int:  # noqa: B008  FastAPI's way
        inside.append(1)
        most.append(len(inside))
        held.ensure()
        inside.pop()
        return held.fence

    @api.get("/stream")
    def stream() -> StreamingResponse:
        def parts() -> Iterator[str]:
            with shared if is_shared else lock(reentrant=reentrant, timeout=30):
                for part in "abc":
                    inside.append(1)
                    most.append(len(inside))
                    yield part
                    inside.pop()

        return StreamingResponse(parts())

    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=api)
        async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
            asked = [client.get(path, timeout=60) for path in ("/", "/stream") * (REQUESTS // 2)]
            return await asyncio.gather(*asked)

    answers = asyncio.run(ask())
    assert [each.status_code for each in answers] == [200] * REQUESTS
    fences = [each.json() for each in answers[::2]]
    assert len({*fences}) == len(fences)
    assert max(most) == 1
    assert not lock().locked()
    assert warnings(caplog) == []
