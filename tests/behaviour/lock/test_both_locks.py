"""What `RedisLock` and `AsyncRedisLock` both promise."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import socket
import time
from typing import Any

import pytest

from celery_redislock import ConfigError, LockConflict, LockLost, LockUnavailable

from .kinds import KINDS, OfThreads, both


@pytest.fixture(params=KINDS)
def lock(request: pytest.FixtureRequest, redis_server: Any, label: str) -> OfThreads:
    """Makes lock objects for this test's own lock."""
    return KINDS[request.param](redis_server.url, label)


def losses(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "LOST" in text]


# -- taking and giving back -------------------------------------------------------------------


@both
async def test_a_lock_is_taken_once_and_given_back_once(lock):
    mine, other = lock(), lock()

    assert await mine.acquire() is True
    assert await other.acquire(timeout=0) is False
    assert await mine.release() is True
    assert await mine.release() is False
    assert await other.acquire(timeout=0) is True
    assert await mine.release() is False
    assert await other.release() is True


@both
async def test_trying_once_does_not_wait_and_waiting_ends_with_its_timeout(lock):
    async with lock(ttl=60):
        began = time.monotonic()
        assert await lock(ttl=60).acquire(timeout=0) is False
        assert await lock(ttl=60).acquire(timeout=0.3) is False
        # By itself a waiter would look again after a third of the ttl.
        assert 0.3 <= time.monotonic() - began < 15


@both
async def test_a_with_statement_holds_the_lock_and_frees_it_whatever_happens(lock):
    for error in (None, ZeroDivisionError):
        with pytest.raises(error) if error else contextlib.nullcontext():
            async with lock() as held:
                assert held.fence > 0
                assert await lock().locked()
                if error:
                    raise error
        assert not await lock().locked()


@both
async def test_a_with_statement_that_does_not_get_the_lock_names_who_has_it(lock):
    async with lock() as mine:
        for timeout in (0, 0.1):
            with pytest.raises(LockConflict) as caught:
                async with lock(timeout=timeout):
                    pytest.fail("it ran beside the holder")
            assert caught.value.key == mine.key
            assert caught.value.holder.pid == os.getpid()
            assert caught.value.holder.node == socket.gethostname()


@both
async def test_the_holder_is_told_to_who_asks(lock):
    assert await lock().holder() is None
    async with lock(ttl=60) as mine:
        holder = await lock().holder()
        assert (holder.fence, holder.pid, holder.task) == (mine.fence, os.getpid(), None)
        assert 30 < holder.ttl <= 60
        assert "RedisLock on" in str(holder)


@both
async def test_a_fence_is_there_while_the_lock_is_and_rises_for_both_kinds(lock):
    mine, fences = lock(), []
    others = [kind(lock.source, lock.name) for kind in KINDS.values()]
    for each in (mine, mine, mine):
        assert each.fence == 0
        async with each:
            fences.append(each.fence)
    if type(lock) is OfThreads:
        for kind in others:

            async def take(kind: OfThreads = kind) -> None:
                async with kind() as held:
                    fences.append(held.fence)

            kind.run(take())
    assert fences == sorted(set(fences))


@both
async def test_who_holds_nothing_has_lost_nothing_and_can_ensure_nothing(lock):
    mine = lock()
    for _ in ("never held", "released"):
        assert mine.fence == 0
        assert not mine.lost
        assert await mine.release() is False
        for operation in (mine.ensure, mine.extend):
            with pytest.raises(LockLost) as caught:
                await operation()
            assert caught.value.key == mine.key
        async with mine:
            await mine.ensure()


@both
async def test_who_holds_it_does_not_wait_for_itself(lock):
    mine = lock()
    async with mine:
        with pytest.raises(LockConflict) as caught:
            await mine.acquire()
        assert caught.value.holder.pid == os.getpid()
        assert await mine.acquire(timeout=0) is False
        assert await mine.acquire(timeout=0.1) is False
        await mine.ensure()
    assert not await lock().locked()


@both
async def test_without_a_heartbeat_who_holds_it_waits_until_it_expires(lock):
    mine = lock(ttl=3, heartbeat=False)
    assert await mine.acquire()
    fence = mine.fence

    assert await mine.acquire() is True
    assert mine.fence > fence
    assert await mine.release() is True
    assert mine.fence == 0
    assert not await lock().locked()


@pytest.mark.parametrize("timeout", [-1, "5", True, float("nan"), [1]])
@both
async def test_a_timeout_that_is_no_number_of_seconds_is_refused(lock, timeout):
    with pytest.raises(ConfigError, match="timeout="):
        await lock().acquire(timeout=timeout)
    with pytest.raises(ConfigError, match="timeout="):
        lock(timeout=timeout)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        *(({"name": name}, "name=") for name in ("", None, 5, b"bytes")),
        *(({key: value}, "RedisLock") for key, value in {"ttl": 0, "label": ""}.items()),
        ({"history": -1}, "RedisLock"),
        ({"prefix": ""}, "prefix"),
    ],
    ids=repr,
)
def test_a_wrong_argument_is_refused_and_named(lock, wrong, says):
    with pytest.raises(ConfigError, match=says):
        lock(**wrong)


# -- keeping, losing --------------------------------------------------------------------------


@both
async def test_a_heartbeat_keeps_the_lock_beyond_its_ttl(lock, client):
    async with lock(ttl=3) as mine:
        fence = mine.fence
        await lock.never(lambda: not client.exists(mine.key), "it lapses", 3.5)
        assert await lock().acquire(timeout=0) is False
        assert (bool(mine.lost), mine.fence) == (False, fence)


@both
async def test_without_a_heartbeat_the_lock_lapses_and_its_holder_knows(lock):
    mine, other = lock(ttl=3, heartbeat=False), lock(ttl=5)
    await mine.acquire()

    assert await other.acquire(timeout=10) is True
    assert mine.lost
    for operation in (mine.ensure, mine.extend):
        with pytest.raises(LockLost):
            await operation()
    assert await mine.release() is False
    assert not other.lost
    assert await other.release() is True


@both
async def test_an_extension_gives_the_whole_ttl_again(lock, client):
    async with lock(ttl=60, heartbeat=False) as mine:
        client.pexpire(mine.key, 20_000)
        assert await mine.extend() is True
        assert client.pttl(mine.key) > 30_000
        await mine.ensure()


@both
async def test_a_lock_that_somebody_deleted_is_taken_again(lock, client, caplog):
    mine = lock(ttl=3)
    async with mine:
        client.delete(mine.key)
        await lock.until(lambda: client.exists(mine.key), "it is taken again")
        assert not mine.lost
        assert (await mine.holder()).fence == mine.fence
        said = "vanished from the server and was acquired again"
        await lock.until(lambda: said in caplog.text, "it is said")


@both
async def test_a_lock_that_a_thief_took_is_lost_and_the_thief_keeps_it(lock, client, caplog):
    mine = lock(ttl=2)
    await mine.acquire()
    fence = mine.fence
    client.set(mine.key, "the thief's")

    await lock.until(lambda: mine.lost, "the next heartbeat tells its holder")
    assert mine.fence == fence
    with pytest.raises(LockLost) as caught:
        await mine.ensure()
    assert caught.value.key == mine.key
    assert caught.value.holder.pid == os.getpid()
    assert await mine.release() is False
    assert client.get(mine.key) == "the thief's"
    (said,) = await lock.until(lambda: losses(caplog), "it is said")
    assert mine.key in said
    assert caught.value.reason in said

    client.delete(mine.key)
    assert await mine.acquire(timeout=5) is True, "it can be acquired anew"
    assert not mine.lost
    assert await mine.release() is True


@both
async def test_a_loss_that_only_the_release_finds_out_is_reported_once(lock, client, caplog):
    mine = lock(ttl=60)
    await mine.acquire()
    client.set(mine.key, "the thief's")

    assert await mine.release() is False
    assert await mine.release() is False
    (line,) = losses(caplog)
    assert mine.key in line


@both
async def test_a_release_whose_reply_was_lost_is_no_loss(lock, proxy, caplog):
    """The repeated one finds no lock: it was released before."""
    mine = lock.at(proxy.url)(ttl=60)
    await mine.acquire()
    proxy.lose_replies(1)

    await mine.release()
    assert proxy.lost == 1
    assert losses(caplog) == []
    assert not await lock().locked()


@pytest.mark.parametrize("body_fails", [False, True])
@both
async def test_a_block_that_lost_the_lock_says_so_at_its_end(lock, client, body_fails):
    mine = lock(ttl=60)

    async def body() -> None:
        client.delete(mine.key)
        if body_fails:
            raise KeyError

    async def block() -> None:
        async with mine:
            await body()

    for work in (block, lock(ttl=60)(body)):
        with pytest.raises(KeyError if body_fails else LockLost):
            await work()


@both
async def test_a_block_that_has_released_a_lost_lock_ends_in_peace(lock, client):
    async with lock(ttl=60) as held:
        client.delete(held.key)
        assert await held.release() is False
    assert not await lock().locked()


@both
async def test_a_lock_that_was_dropped_is_told_and_lapses(lock, client, caplog):
    dropped = lock(ttl=3)
    await dropped.acquire(0)
    key = dropped.key
    del dropped
    gc.collect()

    await lock.until(lambda: not client.exists(key), "it lapses")
    await lock.until(lambda: "never released" in caplog.text, "it is told")


# -- waiting ----------------------------------------------------------------------------------


@both
async def test_a_release_wakes_who_waits(lock, client):
    holder, waiter = lock(ttl=60), lock(ttl=60)
    await holder.acquire()
    waits = lock.beside(waiter_of(waiter))
    waiters = holder.key.replace(":lock:", ":waiters:")
    await lock.until(lambda: client.exists(waiters), "it waits")

    began = time.monotonic()
    await holder.release()
    assert await waits is True
    # By itself a waiter looks again after a third of the ttl.
    assert time.monotonic() - began < 15


async def waiter_of(lock: Any) -> bool:
    """In a thread or a task of its own: it is that one's lock."""
    return await lock.acquire(timeout=50) and await lock.release()


@both
async def test_all_who_wait_get_the_lock_in_the_end_and_never_two_at_once(lock):
    shared, inside, most = lock(ttl=60, timeout=50), [], []

    async def work(number: int) -> None:
        for own in (shared, lock(ttl=60, timeout=50)):
            async with own as held:
                inside.append(number)
                await held.ensure()
                most.append(len(inside))
                inside.remove(number)

    for end in [lock.beside(work(number)) for number in range(8)]:
        await end
    assert most == [1] * 16


@both
async def test_who_waits_for_a_foreign_value_gets_the_lock_once_that_is_gone(lock, client):
    waiter = lock(ttl=3)
    client.set(waiter.key, "not ours, and nobody will be woken")
    waits = lock.beside(waiter_of(waiter))
    await lock.never(lambda: client.get(waiter.key) != "not ours, and nobody will be woken",
                     "it is taken over", 0.2)  # fmt: skip

    client.delete(waiter.key)
    assert await waits is True


# -- outages ----------------------------------------------------------------------------------


@both
async def test_a_server_that_is_not_there_is_told_and_not_taken_for_a_held_lock(lock, own_redis):
    own_redis.kill()
    mine = lock.at(own_redis.url)(ttl=1)
    began = time.monotonic()
    for operation in (lambda: mine.acquire(timeout=0), mine.acquire, mine.__aenter__, mine.holder):
        with pytest.raises(LockUnavailable) as caught:
            await operation()
        assert caught.value.key == mine.key
        assert "ConnectionError" in caught.value.reason
    assert time.monotonic() - began < 30


@both
async def test_who_waits_for_ever_is_told_of_an_outage(lock, own_redis):
    lock = lock.at(own_redis.url)
    held, waits = lock(ttl=3), lock(ttl=3)
    assert await held.acquire(0)
    waiting = lock.beside(waits.acquire())
    with own_redis.client() as client:
        waiters = held.key.replace(":lock:", ":waiters:")
        await lock.until(lambda: client.exists(waiters), "it waits")
    own_redis.kill()
    with pytest.raises(LockUnavailable):
        await waiting


@pytest.mark.parametrize("how", ["away", "frozen", "went away"])
@both
async def test_a_lock_that_could_not_be_taken_is_not_said_to_be_kept(lock, own_redis, caplog, how):
    caplog.set_level(logging.INFO, "celery_redislock")
    mine = lock.at(own_redis.url)(ttl=2)
    if how == "went away":
        await mine.acquire()
        await mine.release()
    (own_redis.stop if how == "frozen" else own_redis.kill)()

    with contextlib.ExitStack() as stack:
        if how == "frozen":
            stack.callback(own_redis.resume)
        for timeout in (0, 0.5):
            with pytest.raises(LockUnavailable):
                await mine.acquire(timeout)
    assert not [each for each in caplog.messages if "release" in each and mine.key in each]
