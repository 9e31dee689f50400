"""`AsyncRedisLock`: between coroutines, loops and threads, cancelled and stalled."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import redis.asyncio as aio
import trio
import uvloop

from celery_redislock import (
    AsyncRedisLock,
    ConfigError,
    LockConflict,
    LockLost,
    LockUnavailable,
    RedisLock,
)
from celery_redislock.testing import assert_free, assert_locked, hold_lock, lose_lock, memory_locks
from tests.support.clusters import url_of_quorum
from tests.support.servers import RedisServer, SentinelSet
from tests.support.waiting import eventually, never


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    return uvloop.run if request.param == "uvloop" else asyncio.run


@pytest.fixture
def lock(redis_server: RedisServer, label: str) -> Callable[..., AsyncRedisLock]:
    """Makes lock objects for this test's own lock."""
    return lambda **options: AsyncRedisLock(redis_server.url, label, **{"ttl": 5, **options})


@pytest.fixture
def blocking(redis_server: RedisServer, label: str) -> Callable[..., RedisLock]:
    """The same, for threads."""
    return lambda **options: RedisLock(redis_server.url, label, **{"ttl": 5, **options})


async def soon(condition: Callable[[], Any], what: str, timeout: float = 10.0) -> None:
    give_up = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < give_up, f"not in {timeout} s: {what}"
        await asyncio.sleep(0.005)


class cancelled_at:
    """A coroutine that is cancelled when it waits for the so-and-so-many-th time."""

    def __init__(self, work: Coroutine[Any, Any, Any], at: int) -> None:
        self._work = work
        self._at = at
        self.waits = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._work.__await__()
        resume: Callable[[], Any] = partial(next, steps)
        while True:
            try:
                waits_for = resume()
            except StopIteration as end:
                return end.value
            if self.waits == self._at:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            self.waits += 1
            try:
                resume = partial(steps.send, (yield waits_for))
            except BaseException as exc:
                resume = partial(steps.throw, exc)


# -- what it is -----------------------------------------------------------------------------------


def test_it_excludes_threads_and_what_it_acquired_is_over_with_it(run, lock, blocking):
    async def main() -> None:
        mine = lock()
        async with mine as held:
            assert held.fence == mine.fence > 0
            assert held.key == mine.key
            assert not blocking().acquire(timeout=0)
        assert held.fence == 0
        assert not held.lost
        assert await held.release() is False
        for operation in (held.ensure, held.extend):
            with pytest.raises(LockLost):
                await operation()

    run(main())


def test_it_is_over_whatever_keeps_locks(label, redis_server, cluster, three_servers):
    async def main(source: Any, **options: Any) -> None:
        lock = AsyncRedisLock(source, label, ttl=5, timeout=0, **options)
        for _ in range(2):
            async with lock:
                assert not RedisLock(source_of_threads, label, ttl=5, **options).acquire(0.2)
            assert await lock.acquire(timeout=2)
            assert await lock.release()

    for url in (redis_server.url, cluster.url, url_of_quorum(three_servers)):
        source_of_threads = url
        asyncio.run(main(url))
    with memory_locks():
        asyncio.run(main(url))
    with SentinelSet() as sentinels:
        source_of_threads = sentinels.url
        asyncio.run(main(sentinels.url, transport_options=sentinels.transport_options))


def test_it_takes_a_client_for_asyncio(label, redis_server, cluster):
    async def of_one() -> None:
        client = aio.Redis.from_url(redis_server.url)
        async with client, AsyncRedisLock(client, label, timeout=0):
            assert not RedisLock(redis_server.url, label).acquire(0)

    async def of_a_cluster() -> None:
        async with (
            aio.RedisCluster.from_url(cluster.url.split(",")[0].replace("+cluster", "")) as client,
            AsyncRedisLock(client, label, timeout=0),
        ):
            assert not RedisLock(cluster.url, label).acquire(0)

    asyncio.run(of_one())
    asyncio.run(of_a_cluster())
    with pytest.raises(ConfigError, match="AsyncRedisLock: a source of type int is not acc"):
        AsyncRedisLock(5, label)


def test_a_user_name_password_and_database_are_used(own_redis, label):
    with own_redis.client() as client:
        client.execute_command("ACL", "SETUSER", "web", "on", ">secret", "~*", "+@all")
        url = own_redis.url.replace("redis://", "redis://web:secret@") + "/3"

        async def main() -> None:
            async with AsyncRedisLock(url, label, timeout=0) as lock:
                with own_redis.client(db=3) as other:
                    assert other.exists(lock.key)

        asyncio.run(main())


# -- sharing, order ------------------------------------------------------------------------------


def test_coroutines_that_share_it_come_one_after_another_in_order(run, lock):
    async def main() -> None:
        shared, inside, order = lock(), [], []

        async def work(number: int) -> None:
            async with shared:
                inside.append(number)
                await asyncio.sleep(0)
                assert inside == [number]
                inside.clear()
                order.append(number)

        await asyncio.gather(*map(work, range(30)))
        assert order == list(range(30))

    run(main())


@pytest.mark.parametrize("same", [True, False])
def test_hundreds_wait_on_few_connections(own_redis, label, same):
    many = 300

    async def main() -> None:
        order: list[int] = []

        async def work(number: int) -> None:
            name = label if same else f"{label}-{number}"
            async with AsyncRedisLock(own_redis.url, name, timeout=60):
                order.append(number)

        held = [RedisLock(own_redis.url, label if same else f"{label}-{n}") for n in range(many)]
        del held[1 if same else many :]
        for each in held:
            assert each.acquire(0)
        with own_redis.client() as client:

            def connections() -> int:
                return client.info("clients")["connected_clients"]

            before = connections()
            tasks = [asyncio.create_task(work(n)) for n in range(many)]
            await soon(lambda: client.keys("*:waiters:*"), "they wait")
            await asyncio.sleep(0.5)
            assert connections() - before <= (2 if same else 50)
            for each in held:
                each.release()
            await asyncio.gather(*tasks)
        assert len(order) == many
        if same:
            assert order == list(range(many))

    asyncio.run(main())


# -- cancelled ------------------------------------------------------------------------------------


def leaves_nothing(server: RedisServer, held: AsyncRedisLock) -> None:
    key = held.key
    with server.client() as client:
        eventually(lambda: not client.exists(key), f"{key} is free")
        waiters = key.replace(":lock:", ":waiters:")
        # Sooner than a dead waiter is forgotten, see `calls.WAITER_TTL`.
        eventually(lambda: not client.exists(waiters), f"nobody waits for {key}", 4)


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("timeout", [0, 5])
def test_an_acquire_that_is_cancelled_anywhere_leaves_nothing(redis_server, lock, warm, timeout):
    async def main(at: int) -> bool:
        if warm:
            async with lock():
                pass
        taken = lock()
        attempt = cancelled_at(taken.acquire(timeout=timeout), at)
        try:
            await attempt
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            assert not taken.lost
            assert taken.fence == 0
            return True
        await taken.release()
        return False

    for at in itertools.count():
        was_cut = asyncio.run(main(at))
        leaves_nothing(redis_server, lock())
        if not was_cut:
            break
    assert at >= 1


def test_a_wait_that_is_cancelled_anywhere_leaves_nothing(redis_server, lock, blocking):
    """Also while the holder releases the lock, and it may just have become ours."""

    async def main(at: int) -> bool:
        loop = asyncio.get_running_loop()
        held, taken = blocking(), lock()
        with ThreadPoolExecutor(1) as thread:  # it belongs to a thread
            await loop.run_in_executor(thread, held.acquire, 0)
            attempt = asyncio.ensure_future(as_task(cancelled_at(taken.acquire(timeout=5), at)))
            for _ in range(at % 4 * 5):
                await asyncio.sleep(0.001)
            await loop.run_in_executor(thread, held.release)
            try:
                await attempt
            except asyncio.CancelledError:
                return True
            await taken.release()
            return False

    cuts = []
    while not cuts or cuts[-1]:
        cuts.append(asyncio.run(main(len(cuts))))
        leaves_nothing(redis_server, lock())
    assert len(cuts) > 2


async def as_task(work: Awaitable[Any]) -> Any:
    return await work


def test_a_wait_that_is_over_lets_the_next_one_ask(lock, blocking):
    async def main() -> None:
        with blocking() as held:
            first = asyncio.create_task(lock().acquire())
            await asyncio.sleep(0.05)
            others = [asyncio.create_task(lock(ttl=60).acquire(timeout=50)) for _ in range(3)]
            brief = asyncio.create_task(lock().acquire(timeout=0.1))
            assert await brief is False
            others[0].cancel()
            first.cancel()
            await asyncio.wait({first, others[0]})
            held.release()
        began = time.monotonic()
        assert await asyncio.wait_for(others[1], 40)
        assert time.monotonic() - began < 15, "by itself it asks again after 20 s"
        others[2].cancel()

    asyncio.run(main())


@pytest.mark.parametrize("at", range(6))
def test_a_release_that_is_cancelled_is_carried_out(redis_server, lock, at):
    async def main() -> None:
        held = lock()
        await held.acquire(0)
        with contextlib.suppress(asyncio.CancelledError):
            await cancelled_at(held.release(), at)
        assert held.fence == 0

    asyncio.run(main())
    leaves_nothing(redis_server, lock())


@pytest.mark.parametrize("by", ["the lock", "what it acquired"])
@pytest.mark.parametrize("ends", [False, True])
def test_a_release_whose_task_is_cancelled_before_it_runs_is_carried_out(
    redis_server, lock, by, ends
):
    async def main() -> None:
        mine = lock(ttl=60)  # not by expiring
        async with mine as held:
            releases = (mine if by == "the lock" else held).release
            if ends:
                asyncio.create_task(releases())  # noqa: RUF006  the end of `run` cancels it
                raise KeyError
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(releases(), 0)
            assert held.fence == mine.fence == 0
            await asyncio.to_thread(leaves_nothing, redis_server, lock())

    with pytest.raises(KeyError) if ends else contextlib.nullcontext():
        asyncio.run(main())
    leaves_nothing(redis_server, lock())


@pytest.mark.parametrize("ends", ["cancelled", "while it is under way"])
def test_an_extension_that_comes_late_does_not_bring_a_released_lock_back(
    redis_server, proxy, label, ends
):
    async def main() -> str:
        async with AsyncRedisLock(proxy.url, label, ttl=30) as held:
            await held.extend()
            came, goes_on = proxy.to_server.hold_back_one()
            extends = asyncio.create_task(held.extend())
            await soon(came.is_set, "it is under way")
            if ends == "cancelled":
                extends.cancel()
                await asyncio.wait({extends})
        goes_on.set()
        if ends != "cancelled":
            with pytest.raises(LockLost):
                await extends
        return held.key

    key = asyncio.run(main())
    with redis_server.client() as client:
        never(lambda: client.exists(key), "it is locked", 0.5)


def test_a_program_that_ends_at_once_leaves_nothing(redis_server, lock):
    async def forgets() -> None:
        await lock(ttl=1.5).acquire(0)  # its object is kept by nobody
        tasks = [asyncio.create_task(lock().acquire()) for _ in range(3)]
        await asyncio.sleep(0.05)
        tasks.clear()

    async def holds(held: AsyncRedisLock, ready: asyncio.Event) -> None:
        async with held:
            ready.set()
            await asyncio.sleep(60)

    async def cancels() -> None:
        ready = asyncio.Event()
        task = asyncio.create_task(holds(lock(), ready))
        await ready.wait()
        del task  # the end of `run` cancels it

    for program in (cancels, forgets):
        asyncio.run(program())
        leaves_nothing(redis_server, lock())


# -- a loop that stands still, a server that does -----------------------------------------------


def test_the_lock_outlives_a_loop_that_is_blocked(lock, blocking):
    async def main() -> None:
        async with lock(ttl=3) as held:
            time.sleep(3.5)
            assert not held.lost
            assert not blocking().acquire(0)
            await held.ensure()

    asyncio.run(main())


@pytest.mark.parametrize("where", ["acquire", "wait", "release"])
def test_a_loop_that_stands_still_meanwhile_loses_nothing(redis_server, lock, blocking, where):
    async def stall() -> None:
        await asyncio.sleep(0)  # a connection is being made
        time.sleep(2.5)

    async def main() -> None:
        held = lock(ttl=12)
        if where == "release":
            await held.acquire(0)
            ended, _ = await asyncio.gather(held.release(), stall())
            assert ended
        elif where == "acquire":
            taken, _ = await asyncio.gather(held.acquire(0), stall())
            assert taken
            await held.release()
        else:
            other = blocking()
            other.acquire(0)
            waiting = asyncio.create_task(held.acquire(10))
            await asyncio.sleep(0.1)
            other.release()
            await stall()
            assert await waiting
            await held.release()

    asyncio.run(main())
    leaves_nothing(redis_server, lock())


def test_an_outage_is_told_to_all_who_wait_at_once(own_redis, label):
    async def main() -> None:
        locks = [AsyncRedisLock(own_redis.url, label, ttl=3) for _ in range(200)]
        assert await locks[0].acquire(0)
        waiting = [asyncio.create_task(each.acquire(60)) for each in locks[1:]]
        await asyncio.sleep(0.1)
        own_redis.kill()
        told = asyncio.gather(*waiting, return_exceptions=True)
        ends = await asyncio.wait_for(told, 30)  # they would wait for 60 s
        assert {type(each) for each in ends} == {LockUnavailable}
        with pytest.raises(LockUnavailable):
            await AsyncRedisLock(own_redis.url, label, ttl=3).acquire(0)
        await asyncio.wait_for(locks[0].lost.wait(), 20)

    asyncio.run(main())


def test_a_server_that_hangs_is_unavailable_in_time(own_redis, label):
    async def main() -> None:
        locks = [AsyncRedisLock(own_redis.url, f"{label}{n}", ttl=3) for n in range(100)]
        own_redis.stop()
        began = time.monotonic()
        ends = await asyncio.gather(*(each.acquire(0) for each in locks), return_exceptions=True)
        assert {type(each) for each in ends} == {LockUnavailable}
        assert time.monotonic() - began < 30, "one after another it would be 100 s"
        own_redis.resume()
        async with locks[0]:
            pass

    asyncio.run(main())


# -- lost ---------------------------------------------------------------------------------------


def test_a_loss_can_be_waited_for(run, redis_server, lock):
    async def main() -> None:
        async with lock(ttl=3) as held:
            told = asyncio.create_task(held.lost.wait())
            await asyncio.sleep(0.05)
            with redis_server.client() as client:
                client.set(held.key, "somebody else's")
            assert await asyncio.wait_for(told, 30) is True
            assert held.lost
            assert await held.lost
            with pytest.raises(LockLost):
                await held.ensure()
            assert await held.release() is False
            with redis_server.client() as client:
                client.delete(held.key)

    run(main())


def test_who_waits_for_a_loss_hears_of_the_release(lock):
    async def main() -> None:
        held = lock()
        assert await held.lost.wait() is False
        await held.acquire(0)
        told = asyncio.create_task(held.lost.wait())
        await asyncio.sleep(0)
        await held.release()
        assert await asyncio.wait_for(told, 30) is False

    asyncio.run(main())


def test_without_a_heartbeat_the_loss_comes_with_the_ttl(lock):
    async def main() -> None:
        held = lock(ttl=3, heartbeat=False)
        began = time.monotonic()
        await held.acquire(0)
        assert await asyncio.wait_for(held.lost.wait(), 20)
        assert time.monotonic() - began >= 3
        assert held.lost

    asyncio.run(main())


# -- where it does not belong ---------------------------------------------------------------------


def test_trio_is_refused_clearly(lock):
    shared = lock()
    with pytest.raises(RuntimeError, match=r"needs an event loop of asyncio.*Trio"):
        trio.run(shared.acquire)


async def _block(lock: AsyncRedisLock) -> AsyncGenerator[None, None]:
    async with lock:
        yield


@pytest.mark.parametrize("what", ["the object", "the acquisition", "a block"])
def test_a_lock_whose_loop_was_closed_is_told_and_expires(lock, blocking, caplog, what):
    """Nobody can release it any more, also if somebody keeps the object."""
    shared, other = lock(ttl=3), blocking()
    block = _block(shared)
    ways = {"the object": shared.acquire, "the acquisition": shared.__aenter__}
    loop = asyncio.new_event_loop()
    kept = loop.run_until_complete(ways.get(what, block.__anext__)())
    assert other.locked()
    with caplog.at_level(logging.WARNING):
        loop.close()
        assert other.acquire(30)
        eventually(lambda: "the event loop ended" in caplog.text, "it is told")
    assert other.release()
    assert shared.fence == 0
    del kept, block
    gc.collect()
    assert caplog.text.count("never released") == 1


def test_a_lock_keeps_nothing_of_loops_that_were_closed(lock, redis_server):
    shared = lock()

    async def enters() -> None:
        await shared.__aenter__()

    with redis_server.client() as client:
        for _ in range(5):
            asyncio.run(enters())
            client.delete(shared.key)
    gc.collect()
    kept = [each for each in gc.get_objects() if type(each).__name__ == "AsyncAcquisition"]
    assert len(kept) <= 1


# -- the test kit ---------------------------------------------------------------------------------


def test_the_kit_holds_and_loses_it(redis_server, label):
    async def main() -> None:
        lock = AsyncRedisLock(redis_server.url, label, timeout=0)
        with hold_lock(lock), pytest.raises(LockConflict):
            async with lock:
                raise AssertionError("not reached")
        with pytest.raises(LockLost):
            async with lock:
                assert_locked(lock)
                lose_lock(lock)
                assert await asyncio.wait_for(lock.lost.wait(), 30)
        assert_free(lock)

    with memory_locks():
        asyncio.run(main())
