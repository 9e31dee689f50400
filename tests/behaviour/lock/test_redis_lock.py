"""`RedisLock`: the lock outside tasks, between threads, processes and greenlets."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import itertools
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from celery_redislock import ConfigError, LockConflict, LockLost, LockUnavailable, RedisLock
from celery_redislock.lock.held import GONE
from celery_redislock.servers.scripts import sha_of
from tests.support.clusters import url_of_quorum
from tests.support.interrupts import CutShort, cut_short_at, interrupted
from tests.support.lateness import elapsed
from tests.support.servers import Proxy, RedisServer
from tests.support.waiting import eventually, never, within

ROOT = Path(__file__).parents[3]


@pytest.fixture
def lock(redis_server: RedisServer, label: str) -> Callable[..., RedisLock]:
    """Makes lock objects for this test's own lock."""

    def make(**options: Any) -> RedisLock:
        return RedisLock(redis_server.url, label, **{"ttl": 5, **options})

    return make


def is_free(lock: Callable[..., RedisLock]) -> bool:
    other = lock()
    return other.acquire(timeout=0) and other.release()


class Script:
    """Python code in a process of its own, given the server's URL and the lock's name."""

    PRELUDE = """
import contextlib, gc, json, os, signal, sys, threading, time
import redis
from celery_redislock import LockLost, LockUnavailable, RedisLock
url, name = sys.argv[1:3]
client = redis.Redis.from_url(url, decode_responses=True)
def say(what): client.rpush("said:" + name, json.dumps([os.getpid(), what]))
"""

    def __init__(self, server: RedisServer, name: str, code: str, prelude: str = "") -> None:
        self._client = server.client()
        self._name = name
        self.popen = subprocess.Popen(
            [sys.executable, "-c", f"{prelude}\n{self.PRELUDE}\n{code}", server.url, name],
            cwd=ROOT,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self.popen.pid

    def said(self) -> list[Any]:
        lines = map(json.loads, self._client.lrange(f"said:{self._name}", 0, -1))
        return [what for pid, what in lines if pid == self.pid]

    def says(self, what: Any, timeout: float = 30.0) -> None:
        eventually(lambda: what in self.said() or self._ended(what), f"it says {what!r}", timeout)

    def _ended(self, what: Any) -> None:
        if self.popen.poll() not in (None, 0) and what not in self.said():
            raise AssertionError(f"the script ended with {self.popen.returncode}")

    def signal(self, signum: int) -> None:
        self.popen.send_signal(signum)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.popen.wait()
        self._client.close()


@pytest.fixture
def script(redis_server: RedisServer, label: str) -> Iterator[Callable[..., Script]]:
    """Starts scripts that want this test's lock."""
    started: list[Script] = []

    def start(code: str, **options: Any) -> Script:
        started.append(Script(options.pop("server", redis_server), label, code, **options))
        return started[-1]

    yield start
    for each in started:
        each.close()


HOLDS = """
lock = RedisLock(url, name, ttl={ttl})
lock.acquire()
say("holds")
while not lock.lost:
    time.sleep(0.02)
say("lost")
say(["release", lock.release()])
"""


# -- taking and giving back -------------------------------------------------------------------


def test_a_lock_is_taken_once_and_given_back_once(lock) -> None:
    mine, other = lock(), lock()
    assert mine.acquire() is True
    assert other.acquire(timeout=0) is False
    assert mine.release() is True
    assert mine.release() is False
    assert other.acquire(timeout=0) is True
    assert mine.release() is False
    assert other.release() is True


def test_trying_once_does_not_wait(lock) -> None:
    with lock():
        got = []
        assert within(0.5, lambda: got.append(lock(ttl=60).acquire(timeout=0)))
        assert not any(got)


def test_waiting_ends_with_its_timeout(lock) -> None:
    with lock(ttl=60):
        started = time.monotonic()
        assert lock(ttl=60).acquire(timeout=0.3) is False
        assert time.monotonic() - started >= 0.3
        assert elapsed(started) < 2


def test_a_with_statement_holds_the_lock_and_frees_it_whatever_happens(lock) -> None:
    with lock() as mine:
        assert mine.fence > 0
        assert not is_free(lock)
    assert is_free(lock)
    with pytest.raises(ZeroDivisionError), lock():
        1 / 0  # noqa: B018
    assert is_free(lock)


def test_a_with_statement_that_does_not_get_the_lock_names_who_has_it(lock) -> None:
    with lock() as mine, pytest.raises(LockConflict) as caught, lock(timeout=0.1):
        pytest.fail("it ran beside the holder")
    assert caught.value.key == mine.key
    assert caught.value.holder.pid == os.getpid()
    assert caught.value.holder.node == socket.gethostname()


def test_the_holder_is_told_to_who_asks(lock) -> None:
    assert lock().holder() is None
    with lock() as mine:
        holder = lock().holder()
        assert (holder.fence, holder.pid, holder.task) == (mine.fence, os.getpid(), None)
        assert 4 < holder.ttl <= 5
        assert "RedisLock on" in str(holder)


def test_a_fence_is_there_while_the_lock_is_and_rises(lock) -> None:
    mine = lock()
    assert mine.fence == 0
    fences = []
    for _ in range(3):
        with mine:
            fences.append(mine.fence)
        assert mine.fence == 0
    assert fences == sorted(set(fences))


def test_who_holds_nothing_has_lost_nothing_and_can_ensure_nothing(lock) -> None:
    mine = lock()
    assert mine.lost is False
    for operation in (mine.ensure, mine.extend):
        with pytest.raises(LockLost) as caught:
            operation()
        assert caught.value.key == mine.key


def test_an_extension_gives_the_whole_ttl_again(lock, client) -> None:
    with lock(heartbeat=False) as mine:
        client.pexpire(mine.key, 2000)
        assert mine.extend() is True
        assert client.pttl(mine.key) > 4000
        mine.ensure()


@pytest.mark.parametrize("timeout", [-1, "5", True, float("nan"), [1]])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(lock, timeout) -> None:
    with pytest.raises(ConfigError, match="timeout="):
        lock().acquire(timeout=timeout)
    with pytest.raises(ConfigError, match="timeout="):
        lock(timeout=timeout)


@pytest.mark.parametrize("name", ["", None, 5, b"bytes"])
def test_a_name_that_is_no_text_is_refused(redis_server, name) -> None:
    with pytest.raises(ConfigError, match="name="):
        RedisLock(redis_server.url, name)


# -- keeping ----------------------------------------------------------------------------------


def test_a_heartbeat_keeps_the_lock_beyond_its_ttl(lock, client) -> None:
    with lock(ttl=2) as mine:
        fence = mine.fence
        never(lambda: lock().acquire(timeout=0), "somebody else takes it", 3.0)
        assert client.pttl(mine.key) > 0
        assert mine.lost is False
        assert mine.fence == fence


def test_without_a_heartbeat_the_lock_lapses_and_its_holder_knows(lock) -> None:
    mine, other = lock(ttl=0.4, heartbeat=False), lock(ttl=5)
    mine.acquire()
    assert mine.lost is False
    assert other.acquire(timeout=3) is True
    assert mine.lost is True
    with pytest.raises(LockLost):
        mine.ensure()
    with pytest.raises(LockLost):
        mine.extend()
    assert mine.release() is False
    assert other.lost is False
    assert not is_free(lock)
    assert other.release() is True


def test_without_a_heartbeat_extending_in_time_keeps_the_lock(lock) -> None:
    with lock(ttl=2, heartbeat=False) as mine:
        until = time.monotonic() + 3
        while time.monotonic() < until:
            assert mine.extend() is True
            assert lock().acquire(timeout=0) is False
            time.sleep(0.05)


def test_a_lock_that_somebody_deleted_is_taken_again(lock, client, caplog) -> None:
    with lock(ttl=3) as mine:
        client.delete(mine.key)
        eventually(lambda: client.exists(mine.key), "it is taken again", 5)
        assert mine.lost is False
        assert mine.holder().fence == mine.fence
        said = "vanished from the server and was acquired again"
        eventually(lambda: said in caplog.text, "it is said", 5)


def test_a_lock_that_a_thief_took_is_lost_and_the_thief_keeps_it(lock, client, caplog) -> None:
    mine = lock(ttl=3)
    mine.acquire()
    client.set(mine.key, "the thief's")
    eventually(lambda: mine.lost, "the next heartbeat tells its holder", 2)
    with pytest.raises(LockLost) as caught:
        mine.ensure()
    assert caught.value.key == mine.key
    assert caught.value.holder.pid == os.getpid()
    assert caught.value.reason == GONE
    assert mine.release() is False
    assert client.get(mine.key) == "the thief's"
    (said,) = eventually(
        lambda: [record for record in caplog.records if record.levelno == logging.ERROR],
        "it is said", 5,
    )  # fmt: skip
    assert "LOST" in said.message
    assert mine.key in said.message


def losses(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "LOST" in text]


def test_a_loss_that_only_the_release_finds_out_is_reported(lock, client, caplog) -> None:
    mine = lock(ttl=60)
    mine.acquire()
    client.set(mine.key, "the thief's")
    assert mine.release() is False
    (line,) = losses(caplog)
    assert mine.key in line
    mine.release()
    assert len(losses(caplog)) == 1


def test_a_release_whose_reply_was_lost_is_no_loss(proxy, label, caplog) -> None:
    """The repeated one finds no lock: it was released before."""
    mine = RedisLock(proxy.url, label, ttl=60)
    mine.acquire()
    proxy.lose_replies(1)
    mine.release()
    assert proxy.lost == 1
    assert losses(caplog) == []


def test_a_release_that_was_interrupted_and_is_repeated_is_no_loss(proxy, label, caplog) -> None:
    mine = RedisLock(proxy.url, label, ttl=60)
    mine.acquire()
    proxy.to_client.delay = 0.5
    with interrupted(CutShort, "release"), pytest.raises(CutShort):
        mine.release()
    proxy.heal()
    assert mine.acquire(0), "it is free"
    assert losses(caplog) == []
    mine.release()


@pytest.mark.parametrize("gone", [1, 2, 3])
def test_a_quorum_is_sure_of_a_loss_if_a_majority_has_not_the_lock(
    three_servers, label, caplog, gone
) -> None:
    mine = RedisLock(url_of_quorum(three_servers), label, ttl=60)
    mine.acquire()
    three_servers[0].kill()  # it has the lock, and does not say so
    for server in three_servers[1:gone]:
        server.client().delete(mine.key)
    assert mine.release() is (gone == 1)
    assert len(losses(caplog)) == (gone == 3)


def test_a_lost_lock_can_be_acquired_anew(lock, client) -> None:
    mine = lock(ttl=2)
    mine.acquire()
    client.set(mine.key, "the thief's")
    eventually(lambda: mine.lost, "its holder learns it", 5)
    client.delete(mine.key)
    assert mine.acquire(timeout=5) is True
    assert mine.lost is False
    assert mine.release() is True


def test_a_lock_that_was_dropped_lapses(lock, client) -> None:
    dropped = lock(ttl=2)
    dropped.acquire()
    key = dropped.key
    never(lambda: not client.exists(key), "it lapses while it is there", 3.0)
    del dropped
    gc.collect()
    eventually(lambda: not client.exists(key), "it lapses", 5)


def test_a_lock_whose_thread_ended_lapses(lock, client) -> None:
    mine = lock(ttl=0.5)
    thread = threading.Thread(target=mine.acquire)
    thread.start()
    thread.join()
    eventually(lambda: not client.exists(mine.key), "it lapses", 5)


def test_a_thread_that_ends_with_the_lock_is_told_once_and_the_lock_lapses(
    lock, client, caplog
) -> None:
    mine = lock(ttl=2)
    thread = threading.Thread(target=mine.acquire, name="forgetful")
    thread.start()
    thread.join()
    told = eventually(lambda: said_by(caplog, "never released"), "it is said", 5)
    assert mine.key in told[0]
    assert "'forgetful'" in told[0]
    assert "expires within 2 s" in told[0]
    eventually(lambda: not client.exists(mine.key), "it lapses", 5)
    assert mine.acquire(timeout=0) is True, "another thread may take it"
    assert mine.release() is True
    assert said_by(caplog, "never released") == told


def test_who_gives_back_or_loses_the_lock_is_not_said_to_have_kept_it(lock, client, caplog) -> None:
    def work(mine: RedisLock, thief: str = "") -> None:
        mine.acquire()
        if thief:
            client.set(mine.key, thief)
            eventually(lambda: mine.lost, "it is lost", 5)
        else:
            mine.release()

    for arguments in ((lock(ttl=1),), (lock(ttl=1), "the thief's")):
        thread = threading.Thread(target=work, args=arguments)
        thread.start()
        thread.join()
    del arguments
    gc.collect()
    never(lambda: said_by(caplog, "never released"), "it is said", 0.5)


# -- threads ----------------------------------------------------------------------------------


def said_by(caplog: pytest.LogCaptureFixture, what: str) -> list[str]:
    """The warnings of the package that say this."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "celery_redislock"
        and record.levelno == logging.WARNING
        and what in record.getMessage()
    ]


def test_a_release_in_another_thread_frees_nothing_and_says_whose_the_lock_is(lock, caplog) -> None:
    mine = lock()
    with ThreadPoolExecutor(1, "owner") as owner, ThreadPoolExecutor(1, "other") as other:
        assert owner.submit(mine.acquire).result() is True
        for _ in range(3):
            assert other.submit(mine.release).result() is False
        (told,) = said_by(caplog, "did not release")
        assert mine.key in told
        assert "'owner_0'" in told
        assert "'other_0'" in told
        assert "the same thread" in told
        assert not is_free(lock)
        assert owner.submit(mine.release).result() is True
        assert is_free(lock)
        # The next acquisition is told of anew.
        assert owner.submit(mine.acquire).result() is True
        assert other.submit(mine.release).result() is False
        assert len(said_by(caplog, "did not release")) == 2
        assert owner.submit(mine.release).result() is True


def test_a_release_of_what_no_thread_of_this_process_holds_says_nothing(
    lock, client, caplog
) -> None:
    mine, others = lock(ttl=2), lock()
    assert mine.release() is False
    with others:
        assert mine.release() is False
    mine.acquire()
    mine.release()
    assert mine.release() is False
    with ThreadPoolExecutor(1) as owner:
        owner.submit(mine.acquire).result()
        client.set(mine.key, "the thief's")
        eventually(lambda: owner.submit(lambda: mine.lost).result(), "it is lost", 5)
        assert mine.release() is False
        owner.submit(mine.release).result()
        assert mine.release() is False
    client.delete(mine.key)
    assert not said_by(caplog, "did not release")


def test_a_forked_child_is_not_told_of_its_parents_thread(script) -> None:
    forking = script(
        """
import logging
logging.basicConfig(handlers=[logging.Handler()])
logging.getLogger().handlers[0].emit = lambda record: say(record.getMessage())
lock = RedisLock(url, name, ttl=5)
thread = threading.Thread(target=lambda: (lock.acquire(), held.set(), go.wait(), lock.release()))
held, go = threading.Event(), threading.Event()
thread.start()
held.wait()
pid = os.fork()
if not pid:
    lock.release()
    del lock
    gc.collect()
    os._exit(0)
os.waitpid(pid, 0)
client.rpush("said:" + name, json.dumps([os.getpid(), "waited"]))
go.set()
thread.join()
say("done")
"""
    )
    forking.says("done")
    assert forking.said() == ["waited", "done"]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """One more thread, beside the test's own."""
    with ThreadPoolExecutor(1, "other") as other:
        yield other


def seen_by(lock: RedisLock) -> tuple[int, bool, bool]:
    """What a lock says in this thread: its fence, whether it is lost, whether it can be ensured."""
    is_sure = False
    with contextlib.suppress(LockLost):
        lock.ensure()
        is_sure = True
    return lock.fence, lock.lost, is_sure


def test_fence_lost_and_ensure_say_the_same_in_every_thread(lock, client, pool) -> None:
    mine = lock(ttl=2)
    for _ in range(2):
        with mine:
            fence = mine.fence
            assert pool.submit(seen_by, mine).result() == seen_by(mine) == (fence, False, True)
        assert pool.submit(seen_by, mine).result() == seen_by(mine) == (0, False, False)
    mine.acquire()
    fence = mine.fence
    client.set(mine.key, "the thief's")
    eventually(lambda: pool.submit(seen_by, mine).result()[1], "it is lost", 5)
    assert pool.submit(seen_by, mine).result() == seen_by(mine) == (fence, True, False)
    assert mine.release() is False
    assert pool.submit(seen_by, mine).result() == seen_by(mine) == (0, False, False)


def test_of_threads_that_acquire_one_after_another_each_is_told_the_holders_fence(
    lock, pool
) -> None:
    mine = lock()
    for holds, looks in ((pool.submit, call), (call, pool.submit)):
        holds(mine.acquire).result()
        assert looks(seen_by, mine).result() == holds(seen_by, mine).result()
        assert looks(seen_by, mine).result()[0] > 0
        holds(mine.release).result()


def call(function: Callable[..., Any], *args: Any) -> Future[Any]:
    """Call it in this thread, as an executor of another thread would."""
    done: Future[Any] = Future()
    done.set_result(function(*args))
    return done


def test_a_thread_that_lost_the_lock_is_not_told_the_fence_of_the_next_thread(
    lock, client, pool
) -> None:
    """With that fence its late writes would pass for the holder's."""
    mine = lock(ttl=2)
    pool.submit(mine.acquire).result()
    fence, _, _ = seen_by(mine)
    client.delete(mine.key)
    with lock():
        eventually(lambda: mine.lost, "it is lost", 5)
    with mine:
        newer = mine.fence
        assert newer > fence
        assert pool.submit(seen_by, mine).result() == (fence, True, False)
        assert seen_by(mine) == (newer, False, True)
        with ThreadPoolExecutor(1) as third:
            assert third.submit(seen_by, mine).result() == (newer, False, True)


def test_a_lock_whose_thread_ended_is_told_by_its_right_and_not_kept_alive(lock, client) -> None:
    mine = lock(ttl=0.6)
    thread = threading.Thread(target=mine.acquire)
    thread.start()
    thread.join()
    fence = mine.fence
    assert fence > 0
    eventually(lambda: not client.exists(mine.key), "it lapses", 5)
    eventually(lambda: seen_by(mine) == (fence, True, False), "it is lost", 5)
    mine.acquire()
    assert seen_by(mine) == (mine.fence, False, True)
    assert mine.fence > fence
    mine.release()


def test_another_thread_may_extend_the_lock_and_never_revives_it(lock, client, pool) -> None:
    mine = lock(ttl=2, heartbeat=False)
    mine.acquire()
    time.sleep(0.2)
    before = client.pttl(mine.key)
    assert pool.submit(mine.extend).result() is True
    assert client.pttl(mine.key) > before
    client.delete(mine.key)
    with pytest.raises(LockLost):
        pool.submit(mine.extend).result()
    assert not client.exists(mine.key)
    assert mine.lost
    assert mine.release() is False


def test_in_a_forked_child_no_thread_claims_the_parents_lock(script) -> None:
    forking = script(
        """
from concurrent.futures import Future, ThreadPoolExecutor
lock = RedisLock(url, name, ttl=5)
with ThreadPoolExecutor(1) as other:
    other.submit(lock.acquire).result()
    pid = os.fork()
    if not pid:
        claims = lock.fence or lock.lost
        try:
            lock.ensure()
        except LockLost:
            os._exit(1 if claims else 7)
    _, status = os.waitpid(pid, 0)
    say([os.waitstatus_to_exitcode(status), lock.fence > 0])
    other.submit(lock.release).result()
"""
    )
    forking.says([7, True])


def test_asyncio_to_thread_cannot_release_in_another_thread_what_it_acquired(lock, caplog) -> None:
    """Its pool's threads live on: the lock is kept until the pool ends, and that is said."""
    mine = lock(ttl=2)

    async def wrong() -> list[Any]:
        # Both calls run at once, so they are in two threads.
        both = threading.Barrier(2, timeout=20)

        def acquire() -> bool:
            taken = mine.acquire()
            both.wait()
            both.wait()
            return taken

        def release() -> bool:
            both.wait()
            try:
                return mine.release()
            finally:
                both.wait()

        done = await asyncio.gather(asyncio.to_thread(acquire), asyncio.to_thread(release))
        await asyncio.to_thread(never, lambda: is_free(lock), "it lapses, its thread lives", 3.0)
        return done

    assert asyncio.run(wrong()) == [True, False]
    (told,) = said_by(caplog, "did not release")
    assert told.count("'asyncio_") == 2
    # The pool has ended, and its threads.
    eventually(lambda: is_free(lock), "it lapses", 10)
    eventually(lambda: said_by(caplog, "never released"), "that is said", 5)


def test_asyncio_holds_the_lock_in_an_executor_of_one_thread(lock, caplog) -> None:
    mine = lock()

    async def right() -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as thread:
            assert await loop.run_in_executor(thread, mine.acquire)
            assert not is_free(lock)
            assert await loop.run_in_executor(thread, mine.release)

    asyncio.run(right())
    assert is_free(lock)
    assert not caplog.records


def test_a_reentrant_lock_is_given_back_as_often_as_it_was_taken(lock) -> None:
    mine = lock(reentrant=True)
    with mine:
        fence = mine.fence
        with mine:
            assert mine.acquire(timeout=0) is True
            assert mine.fence == fence
            assert mine.release() is True
            assert not is_free(lock)
        assert not is_free(lock)
    assert is_free(lock)
    assert mine.release() is False


def test_a_reentrant_lock_counts_for_each_thread(lock) -> None:
    mine = lock(reentrant=True)
    with mine, ThreadPoolExecutor(1) as other:
        assert other.submit(mine.acquire, timeout=0).result() is False
        assert other.submit(mine.release).result() is False
        assert other.submit(lambda: mine.fence).result() == mine.fence
        assert not is_free(lock)


def test_a_reentrant_count_dies_with_the_lock(lock, client) -> None:
    mine = lock(reentrant=True, ttl=2)
    for _ in range(3):
        mine.acquire()
    client.set(mine.key, "the thief's")
    eventually(lambda: mine.lost, "it is lost", 5)
    assert mine.release() is False
    assert mine.release() is False
    client.delete(mine.key)
    assert mine.acquire(timeout=0) is True
    assert mine.release() is True
    assert is_free(lock)


def test_taking_a_lost_reentrant_lock_again_starts_the_count_anew(lock, client) -> None:
    mine = lock(reentrant=True, ttl=2)
    mine.acquire()
    mine.acquire()
    client.set(mine.key, "the thief's")
    eventually(lambda: mine.lost, "it is lost", 5)
    client.delete(mine.key)
    assert mine.acquire(timeout=5) is True
    assert mine.release() is True
    assert is_free(lock)


def test_a_thread_that_would_wait_for_itself_for_ever_is_refused(lock) -> None:
    with lock() as mine:
        with pytest.raises(LockConflict) as caught:
            mine.acquire()
        assert caught.value.holder.pid == os.getpid()
        assert mine.acquire(timeout=0) is False
        assert mine.acquire(timeout=0.1) is False
        assert mine.lost is False
    assert is_free(lock)


# -- in an event loop -----------------------------------------------------------------------------


def test_in_an_event_loop_a_reentrant_lock_counts_for_each_task(lock, caplog) -> None:
    async def main() -> None:
        mine = lock(reentrant=True)

        async def other() -> None:
            began = time.monotonic()
            assert mine.acquire(timeout=5) is False
            with pytest.raises(LockConflict):
                mine.acquire()  # it would wait for ever: it blocks the holder
            with pytest.raises(LockConflict), mine:
                raise AssertionError("not reached")
            assert elapsed(began) < 3
            assert mine.release() is False
            assert mine.fence == fence

        with mine:
            fence = mine.fence
            with mine:
                await asyncio.gather(other(), other())
            assert not is_free(lock)
        assert is_free(lock)
        await asyncio.gather(*map(alone, [mine] * 3))

    async def alone(mine: RedisLock) -> None:
        with mine, mine:
            assert mine.fence > 0

    asyncio.run(main())
    (told,) = said_by(caplog, "did not release")
    assert "the task 'Task-" in told


def test_in_an_event_loop_what_an_ended_task_left_is_its_threads(lock) -> None:
    """As in the cells of a notebook."""

    async def main() -> None:
        mine = lock()

        async def take() -> bool:
            return mine.acquire(0)

        assert await asyncio.create_task(take())
        assert mine.fence > 0
        assert mine.release() is True
        assert is_free(lock)

    asyncio.run(main())


def test_in_an_event_loop_it_is_said_once_that_the_lock_blocks(lock, caplog) -> None:
    async def main() -> None:
        for _ in range(2):
            with lock():
                pass

    for _ in range(2):
        asyncio.run(main())
    (told, _) = said_by(caplog, "AsyncRedisLock")  # once for each loop
    assert "may block the event loop" in told


def test_outside_of_an_event_loop_nothing_is_said(lock, caplog) -> None:
    async def main() -> None:
        assert await asyncio.to_thread(lambda: lock().acquire(1))
        assert not lock().acquire(timeout=0)

    asyncio.run(main())
    with lock(timeout=20):
        pass
    assert not said_by(caplog, "AsyncRedisLock")


# -- a loss, an expiry, an outage -----------------------------------------------------------------


@pytest.mark.parametrize("body_fails", [False, True])
def test_a_block_that_lost_the_lock_says_so_at_its_end(lock, client, body_fails) -> None:
    mine = lock(ttl=60)

    def body() -> None:
        client.delete(mine.key)
        if body_fails:
            raise KeyError

    with pytest.raises(KeyError if body_fails else LockLost), mine:
        body()
    with pytest.raises(KeyError if body_fails else LockLost):
        mine(body)()
    with mine:
        client.delete(mine.key)
        assert mine.release() is False  # who releases it is told by that
    assert is_free(lock)


def test_without_a_heartbeat_its_own_thread_waits_until_it_expires(lock) -> None:
    mine = lock(ttl=1, heartbeat=False)
    assert mine.acquire()
    fence = mine.fence
    assert mine.acquire(timeout=0) is False
    assert mine.acquire() is True
    assert mine.fence > fence
    assert mine.release() is True
    assert mine.fence == 0
    assert is_free(lock)


def test_who_waits_for_ever_is_told_of_an_outage(own_redis, label) -> None:
    held, waits = (RedisLock(own_redis.url, label, ttl=3) for _ in range(2))
    assert held.acquire(0)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(waits.acquire)
        own_redis.kill()
        with pytest.raises(LockUnavailable):
            waiting.result(30)


def test_threads_that_share_one_object_exclude_each_other(lock) -> None:
    shared = lock(ttl=10)
    inside: list[int] = []
    most = []

    def work(number: int) -> None:
        for _ in range(10):
            with shared:
                inside.append(number)
                most.append(len(inside))
                time.sleep(0.002)
                inside.remove(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert len(most) == 40
    assert max(most) == 1


# -- waiting ----------------------------------------------------------------------------------


def test_a_release_wakes_who_waits(lock) -> None:
    holder, waiter = lock(ttl=60), lock(ttl=60)
    holder.acquire()
    taken_at = []

    def wait() -> None:
        waiter.acquire()
        taken_at.append(time.monotonic())
        waiter.release()

    thread = threading.Thread(target=wait)
    thread.start()
    never(lambda: taken_at, "two hold it", 0.3)
    released_at = time.monotonic()
    holder.release()
    thread.join(10)
    # By polling it would be seconds: a waiter looks by itself every ttl / 3.
    assert elapsed(released_at, taken_at[0]) < 8


def test_all_who_wait_get_the_lock_in_the_end(lock) -> None:
    order = []

    def work(number: int) -> None:
        with lock(ttl=60, timeout=30):
            order.append(number)
            time.sleep(0.01)

    started = time.monotonic()
    with ThreadPoolExecutor(8) as pool, lock(ttl=60):
        waiting = [pool.submit(work, number) for number in range(8)]
        never(lambda: order, "two hold it", 0.2)
    for each in waiting:
        each.result()  # raises what it raised
    assert sorted(order) == list(range(8))
    assert elapsed(started) < 10


def test_a_waiter_that_died_keeps_nobody_else_waiting(lock, script, client) -> None:
    holder, other = lock(ttl=60), lock(ttl=60)
    holder.acquire()
    dead = script("lock = RedisLock(url, name, ttl=60)\nsay('waits')\nlock.acquire()")
    dead.says("waits")
    eventually(lambda: client.info("clients")["blocked_clients"], "it waits in the server")
    dead.signal(signal.SIGKILL)
    dead.popen.wait()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.acquire, timeout=20)
        time.sleep(0.1)
        started = time.monotonic()
        holder.release()
        assert waiting.result() is True
    assert elapsed(started) < 8  # by itself it looks again after 20


def test_who_waits_for_a_foreign_value_gets_the_lock_once_that_is_gone(lock, client) -> None:
    waiter = lock(ttl=60)
    client.set(waiter.key, "not ours, and nobody will be woken")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waiter.acquire, timeout=20)
        never(waiting.done, "it is taken over", 0.2)
        client.delete(waiter.key)
        started = time.monotonic()
        assert waiting.result() is True
    assert elapsed(started) < 8


# -- the four ways of failing, and the five clients, of Redis in Action, 6.2.2 ----------------


def test_failure_1_a_holder_that_took_too_long_knows_it_and_frees_nobody_elses_lock(
    lock, script
) -> None:
    slow = script(HOLDS.format(ttl=1))
    slow.says("holds")
    slow.signal(signal.SIGSTOP)
    other = lock(ttl=5)
    assert other.acquire(timeout=10) is True
    slow.signal(signal.SIGCONT)
    slow.says("lost")
    slow.says(["release", False])
    assert other.lost is False
    assert other.holder().pid == os.getpid()
    assert other.release() is True


def test_failure_1_also_if_nobody_took_the_lock_meanwhile(lock, script, client) -> None:
    slow = script(HOLDS.format(ttl=1))
    slow.says("holds")
    slow.signal(signal.SIGSTOP)
    eventually(lambda: not client.exists(lock().key), "it lapses")
    slow.signal(signal.SIGCONT)
    slow.says("lost")
    assert not client.exists(lock().key)


def test_failure_1_also_if_only_its_heartbeat_could_know(lock, script, client, label) -> None:
    slow = script(
        """
lock = RedisLock(url, name, ttl=1)
lock.acquire()
say("holds")
while not client.exists("resumed:" + name):
    time.sleep(0.02)
time.sleep(0.3)  # by now the heartbeat has done what it does
say({"key": client.exists(lock.key), "lost": lock.lost})
"""
    )
    slow.says("holds")
    slow.signal(signal.SIGSTOP)
    eventually(lambda: not client.exists(lock().key), "it lapses")
    client.set(f"resumed:{label}", 1)
    slow.signal(signal.SIGCONT)
    slow.says({"key": 0, "lost": True})


def test_failure_2_a_crashed_holder_is_named_and_its_lock_lapses(lock, script) -> None:
    crashing = script(HOLDS.format(ttl=3))
    crashing.says("holds")
    holder = lock().holder()
    assert (holder.pid, holder.node) == (crashing.pid, socket.gethostname())
    crashing.signal(signal.SIGKILL)
    crashing.popen.wait()
    assert lock().acquire(timeout=0) is False
    assert lock().holder().ttl <= 3
    started = time.monotonic()
    waiter = lock(ttl=60)
    assert waiter.acquire(timeout=20) is True
    assert elapsed(started) < 10
    waiter.release()


def test_failure_3_of_many_that_try_when_a_lock_lapses_one_gets_it(lock, client) -> None:
    for _ in range(2):
        lapsing = lock(ttl=0.2, heartbeat=False)
        lapsing.acquire()
        waiting = [lock(ttl=5) for _ in range(8)]
        with ThreadPoolExecutor(8) as pool:
            taken = list(pool.map(lambda each: each.acquire(timeout=0.6), waiting))
        assert sum(taken) == 1
        client.delete(lapsing.key)


CLIENT = """
lock = RedisLock(url, name, ttl=5, timeout=30)
client.incr("ready:" + name)
while not client.exists("go:" + name):
    time.sleep(0.005)
mine = overlaps = 0
until = time.monotonic() + 4
while time.monotonic() < until:
    with lock:
        if client.incr("inside:" + name) != 1:
            overlaps += 1
        count = int(client.get("count:" + name) or 0)
        client.rpush("order:" + name, os.getpid())
        client.set("count:" + name, count + 1)
        client.decr("inside:" + name)
    mine += 1
say([mine, overlaps])
"""


def test_failure_4_five_clients_on_one_lock_never_hold_it_together(script, client, label) -> None:
    """The book's trial, shorter: "at least half" of the implementations let two in."""
    scripts = [script(CLIENT) for _ in range(5)]
    eventually(lambda: client.get(f"ready:{label}") == "5", "all are ready")
    client.set(f"go:{label}", 1)
    runs, overlaps = 0, 0
    for each in scripts:
        (said,) = eventually(each.said, "it has finished")
        runs += said[0]
        overlaps += said[1]
    assert overlaps == 0
    assert int(client.get(f"count:{label}")) == runs
    assert runs > 200
    order = client.lrange(f"order:{label}", 0, -1)
    passed_on = sum(one != next_one for one, next_one in itertools.pairwise(order))
    assert passed_on / (len(order) - 1) > 0.9
    assert len(set(order)) == 5


# -- processes --------------------------------------------------------------------------------


def test_a_process_that_is_killed_leaves_the_lock_to_who_waits(lock, script) -> None:
    killed = script(HOLDS.format(ttl=3))
    killed.says("holds")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lock(ttl=60).acquire, timeout=20)
        never(waiting.done, "two hold it", 0.3)
        killed.signal(signal.SIGKILL)
        started = time.monotonic()
        assert waiting.result() is True
    assert elapsed(started) < 10


def test_a_waiter_that_stands_still_does_not_start_with_a_right_that_has_ended(
    lock, script, client
) -> None:
    holder = lock()
    holder.acquire()
    waiter = script(
        """
lock = RedisLock(url, name, ttl=2)
lock.acquire(timeout=30)
say({"lost": lock.lost, "holds": client.get(lock.key) == lock._lease.stored})
"""
    )
    eventually(lambda: client.info("clients")["blocked_clients"], "it sleeps")
    waiter.signal(signal.SIGSTOP)
    holder.release()  # to the waiter, who does not hear of it
    other = lock()
    assert other.acquire(timeout=20)
    waiter.signal(signal.SIGCONT)
    never(waiter.said, "it believes that it has the lock", 0.5)
    other.release()
    waiter.says({"lost": False, "holds": True})


FORKS = """
lock = RedisLock(url, name, ttl=12, reentrant={reentrant})
lock.acquire()
lease = lock._lease  # what a task has as self.lock
child = os.fork()
if child == 0:
    said = {{}}
    said["lease released"] = lease.release()
    said["lost"] = lock.lost
    said["fence"] = lock.fence
    said["acquired"] = lock.acquire(timeout=0)
    said["released"] = lock.release()
    try:
        lock.extend()
    except LockLost:
        said["extended"] = False
    with RedisLock(url, name + "child", ttl=3) as own:
        time.sleep(4)  # longer than the ttl
        said["own is kept"] = bool(client.exists(own.key)) and not own.lost
    said["own is released"] = not client.exists(own.key)
    client.set("child:" + name, json.dumps(said))
    os._exit(0)
os.waitpid(child, 0)
say({{"lost": lock.lost, "fence": bool(lock.fence), "released": lock.release()}})
"""


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_forked_child_has_not_its_parents_lock_and_can_use_its_own(
    script, client, label, reentrant
) -> None:
    parent = script(FORKS.format(reentrant=reentrant))
    parent.says({"lost": False, "fence": True, "released": True})
    assert json.loads(client.get(f"child:{label}")) == {
        "lease released": None,
        "lost": False,
        "fence": 0,
        "acquired": False,
        "released": False,
        "extended": False,
        "own is kept": True,
        "own is released": True,
    }


def test_a_forked_child_does_not_keep_its_dead_parents_lock(lock, script, client, label) -> None:
    parent = script(
        """
lock = RedisLock(url, name, ttl=2)
lock.acquire()
lease = lock._lease  # what a task has as self.lock
child = os.fork()
if child == 0:
    while not (lock.lost or lease.lost):
        time.sleep(0.01)
    say("lost")
    time.sleep(20)
    os._exit(0)
say("holds")
os.waitpid(child, 0)
"""
    )
    parent.says("holds")
    never(lambda: not client.exists(lock().key), "it lapses", 3.0)
    # The child knows that it has nothing to rely on, and could extend.
    eventually(lambda: client.llen(f"said:{label}") == 2, "the child knows")
    parent.signal(signal.SIGKILL)
    eventually(lambda: not client.exists(lock().key), "it lapses", 5)


def test_a_fork_that_python_does_not_notice_takes_no_lock_along(script, lock, client) -> None:
    """As uWSGI forks."""
    parent = script(
        """
import ctypes
lock = RedisLock(url, name, ttl=5)
lock.acquire()
child = ctypes.CDLL(None).fork()
if child == 0:
    os._exit(10 * bool(lock.fence) + lock.release())
say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
say(["still held", bool(client.exists(lock.key)), lock.lost])
"""
    )
    parent.says(0)
    parent.says(["still held", True, False])


def test_a_fork_in_the_middle_of_anothers_exchange_leaves_a_child_that_can_lock(script) -> None:
    parent = script(
        """
lock = RedisLock(url, name, ttl=5)
with lock:
    pass

# What another thread does for microseconds of each exchange.
pools = [each for each in gc.get_objects() if isinstance(each, redis.ConnectionPool)]
pools.remove(client.connection_pool)
held = threading.Semaphore(0)

def exchange():
    with contextlib.ExitStack() as stack:
        for pool in pools:
            stack.enter_context(pool._lock)
        held.release()
        time.sleep(60)

threading.Thread(target=exchange, daemon=True).start()
held.acquire()
child = os.fork()
if child == 0:
    signal.alarm(10)
    with lock:
        os._exit(lock.fence == 0)
say(["pools", bool(pools), "child", os.waitpid(child, 0)[1]])
"""
    )
    parent.says(["pools", True, "child", 0])


# -- the heartbeat ----------------------------------------------------------------------------


class CountingProxy(Proxy):
    """A way to the server that counts what is sent there: about one each round trip."""

    sent = 0

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        proxy = self

        class Counting:
            def sendall(self, data: bytes) -> None:
                proxy.sent += sink.getpeername()[1] == proxy.target_port
                sink.sendall(data)

            def __getattr__(self, name: str) -> Any:
                return getattr(sink, name)

        super()._pump(source, Counting())  # type: ignore[arg-type]


def test_many_locks_are_kept_by_one_thread_in_one_round_trip(own_redis) -> None:
    def extensions() -> int:
        with own_redis.client() as client:
            return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])

    with CountingProxy(own_redis.port) as proxy:
        locks = [RedisLock(proxy.url, f"lock{number}", ttl=3) for number in range(50)]
        for each in locks:
            each.acquire()
        proxy.sent, before = 0, extensions()
        eventually(lambda: extensions() - before >= 150, "each is extended three times")
        # Three beats, whose 20 kB go out in a few pieces each, and the script once.
        assert proxy.sent < 30
        beating = [each for each in threading.enumerate() if each.name == "redislock-heartbeat"]
        assert len(beating) == 1
        assert not any(each.lost for each in locks)
        for each in locks:
            assert each.release() is True


class GateProxy(Proxy):
    """A way to the server on which an extension can be held back."""

    def __init__(self, target_port: int) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.held = threading.Event()
        super().__init__(target_port)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        proxy = self

        class Gate:
            def sendall(self, data: bytes) -> None:
                if sha_of("extend").encode() in data and not proxy.gate.is_set():
                    proxy.held.set()
                    proxy.gate.wait(20)
                sink.sendall(data)

            def __getattr__(self, name: str) -> Any:
                return getattr(sink, name)

        super()._pump(source, Gate())  # type: ignore[arg-type]


def test_a_heartbeat_that_is_under_way_at_a_release_does_not_bring_the_lock_back(
    redis_server, client, label
) -> None:
    with GateProxy(redis_server.port) as proxy:
        mine = RedisLock(proxy.url, label, ttl=4)
        mine.acquire()
        proxy.gate.clear()
        assert proxy.held.wait(10), "a heartbeat is under way"
        opens = threading.Timer(0.15, proxy.gate.set)
        opens.start()
        mine.release()
        opens.join()
        never(lambda: client.exists(mine.key), "it is back", 0.4)


def test_a_heartbeat_tries_ten_times_a_second_while_the_server_is_away(
    own_redis, label, caplog
) -> None:
    with RedisLock(own_redis.url, label, ttl=12) as mine:
        own_redis.kill()
        eventually(lambda: "could not extend" in caplog.text, "a heartbeat finds nobody", 10)
        own_redis.start()
        back = time.monotonic()
        with own_redis.client() as client:
            eventually(lambda: client.exists(mine.key), "it is taken again", 5)
        assert elapsed(back) < 3  # and not every four seconds
        assert mine.lost is False


def test_a_server_that_does_not_answer_for_a_while_costs_no_lock(own_redis, label) -> None:
    with RedisLock(own_redis.url, label, ttl=6) as mine:
        fence = mine.fence
        own_redis.stop()
        never(lambda: mine.lost, "it is lost before its right has ended", 3.0)
        own_redis.resume()
        with own_redis.client() as client:
            eventually(lambda: client.pttl(mine.key) > 4000, "it is extended", 5)
        assert (mine.lost, mine.fence) == (False, fence)


def test_servers_that_hang_cost_no_lock_on_another_one(own_redis, lock, client, caplog) -> None:
    with RedisServer() as other, lock(ttl=9) as mine:
        slow = [RedisLock(server.url, "slow", ttl=12) for server in (own_redis, other)]
        assert all(each.acquire() for each in slow)
        own_redis.stop()
        other.stop()
        eventually(lambda: caplog.text.count("could not extend") >= 2, "both hang", 20)

        for _ in range(2):
            eventually(lambda: client.pttl(mine.key) < 7500, "time passes")
            assert client.pttl(mine.key) > 0
            eventually(lambda: client.pttl(mine.key) > 7500, "it is extended")
        assert mine.lost is False
        own_redis.resume()
        other.resume()


def test_a_connection_that_breaks_costs_no_lock(proxy, client, label) -> None:
    with RedisLock(proxy.url, label, ttl=6) as mine:
        proxy.cut_off()
        never(lambda: mine.lost, "it is lost before its right has ended", 3.0)
        proxy.reconnect()
        eventually(lambda: client.pttl(mine.key) > 4000, "it is extended", 5)
        assert mine.lost is False


def test_who_is_cut_off_for_longer_than_the_ttl_knows_that_it_lost(
    proxy, client, lock, label
) -> None:
    mine = RedisLock(proxy.url, label, ttl=1)
    asked = time.monotonic()
    mine.acquire()
    proxy.cut_off()
    eventually(lambda: mine.lost, "it knows by its own clock", 10)
    assert time.monotonic() - asked > 0.9
    assert elapsed(asked) < 5
    other = lock()
    assert other.acquire(timeout=5) is True
    proxy.reconnect()
    never(lambda: not mine.lost, "what is lost comes back", 0.3)
    assert mine.release() is False
    assert other.release() is True


def test_of_two_who_want_it_the_holder_gets_what_a_restarted_server_forgot(
    own_redis, label
) -> None:
    mine = RedisLock(own_redis.url, label, ttl=3)
    mine.acquire()
    newcomer = RedisLock(f"{own_redis.url}?client_name=newcomer", label, ttl=3)
    assert newcomer.acquire(timeout=0) is False
    ends = threading.Event()
    got = []

    def try_on() -> None:
        while not ends.is_set() and not got:
            with contextlib.suppress(LockUnavailable):
                if newcomer.acquire(timeout=0):
                    got.append(newcomer.fence)
            ends.wait(0.001)

    thread = threading.Thread(target=try_on)
    thread.start()
    own_redis.restart_empty()
    with own_redis.client() as client:
        eventually(lambda: client.exists(mine.key), "somebody takes it", 10)
        assert json.loads(client.get(mine.key))["fence"] == mine.fence
    never(lambda: got or mine.lost, "the newcomer takes it", 1.1)
    ends.set()
    thread.join()
    assert mine.release() is True
    assert newcomer.acquire(timeout=5) is True
    newcomer.release()


def test_a_release_that_a_frozen_server_does_not_answer_gives_up_in_time(own_redis, label) -> None:
    mine = RedisLock(own_redis.url, label, ttl=6)
    mine.acquire()
    own_redis.stop()
    started = time.monotonic()
    assert mine.release() is False
    assert elapsed(started) < 5
    own_redis.resume()
    with own_redis.client() as client:
        eventually(lambda: not client.exists(mine.key), "it lapses, as nobody extends it", 10)


def test_waiting_for_a_frozen_server_ends_soon_after_its_timeout(own_redis, label) -> None:
    holder = RedisLock(own_redis.url, label, ttl=30, heartbeat=False)
    holder.acquire()
    waiter = RedisLock(own_redis.url, label, ttl=1.5)
    with ThreadPoolExecutor(1) as pool, own_redis.client() as client:
        waiting = pool.submit(waiter.acquire, timeout=2)
        eventually(lambda: client.info("clients")["blocked_clients"], "it sleeps")
        own_redis.stop()
        started = time.monotonic()
        with pytest.raises(LockUnavailable):
            waiting.result()
        assert elapsed(started) < 6
        own_redis.resume()


def test_a_server_that_is_not_there_is_told_and_not_taken_for_a_held_lock(own_redis, label) -> None:
    own_redis.kill()
    mine = RedisLock(own_redis.url, label, ttl=1)
    for operation in (lambda: mine.acquire(timeout=0), mine.acquire, mine.__enter__, mine.holder):
        started = time.monotonic()
        with pytest.raises(LockUnavailable) as caught:
            operation()
        assert elapsed(started) < 4
        assert caught.value.key == mine.key
        assert "refused" in caught.value.reason


@pytest.mark.parametrize("how", ["away", "frozen", "went away"])
def test_a_lock_that_could_not_be_taken_is_not_said_to_be_kept(
    own_redis, label, caplog, how
) -> None:
    caplog.set_level(logging.INFO, "celery_redislock")
    mine = RedisLock(own_redis.url, label, ttl=3)
    if how == "went away":
        mine.acquire()
        mine.release()
    {"frozen": own_redis.stop}.get(how, own_redis.kill)()
    try:
        for timeout in (0, 0.5):
            with pytest.raises(LockUnavailable):
                mine.acquire(timeout)
    finally:
        if how == "frozen":
            own_redis.resume()
    assert not [r.getMessage() for r in caplog.records if "release" in r.getMessage()]


# -- exceptions from the outside --------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_acquire_that_is_cut_short_leaves_nothing_that_a_release_does_not_free(lock) -> None:
    mine, other = lock(ttl=60), lock(ttl=60)
    step, goes_on = 0, True
    while goes_on:
        step += 1
        goes_on = cut_short_at(step, lambda: mine.acquire(timeout=0))
        mine.release()
        assert other.acquire(timeout=0) is True, f"step {step}"
        other.release()
    assert step > 50


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_release_that_is_cut_short_frees_the_lock_all_the_same(lock) -> None:
    mine, other = lock(ttl=60), lock(ttl=60)
    step, goes_on = 0, True
    while goes_on:
        step += 1
        assert mine.acquire(timeout=0) is True
        goes_on = cut_short_at(step, mine.release)
        mine.release()
        assert mine.fence == 0
        assert other.acquire(timeout=0) is True, f"step {step}"
        other.release()
    assert step > 50


def test_an_extension_that_is_cut_short_does_not_bring_a_released_lock_back(
    proxy, client, label
) -> None:
    with RedisLock(proxy.url, label, ttl=60) as mine:
        mine.extend()
        came, goes_on = proxy.to_server.hold_back_one()
        with interrupted(CutShort, "extend_now"), pytest.raises(CutShort):
            mine.extend()
        assert came.is_set()
    goes_on.set()
    never(lambda: client.exists(mine.key), "it is locked", 0.5)


def test_who_is_interrupted_while_waiting_waits_no_more(lock) -> None:
    with lock(ttl=60) as holder:
        waiter = lock(ttl=60)
        with interrupted(CutShort, "block"), pytest.raises(CutShort):
            waiter.acquire()
        assert waiter.fence == 0
        assert holder.lost is False
    assert waiter.acquire(timeout=1) is True
    assert waiter.release() is True


# -- greenlets --------------------------------------------------------------------------------

GREEN = {
    "gevent": "from gevent import monkey; monkey.patch_all(); from gevent import spawn, sleep",
    "eventlet": "import eventlet; eventlet.monkey_patch(); from eventlet import spawn, sleep",
}


@pytest.fixture(params=GREEN)
def green(request: pytest.FixtureRequest) -> str:
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"no {request.param} here")
    return GREEN[request.param]


def test_a_greenlet_that_computes_for_longer_than_the_ttl_keeps_its_lock(
    script, lock, green
) -> None:
    computing = script(
        """
with RedisLock(url, name, ttl=2) as lock:
    say("computes")
    until = time.monotonic() + 3
    while time.monotonic() < until:
        sum(range(1000))
    held = client.get(lock.key)
    kept = held is not None and json.loads(held)["fence"] == lock.fence
    say({"kept": kept, "lost": lock.lost})
""",
        prelude=green,
    )
    computing.says("computes")
    never(lambda: lock().acquire(timeout=0), "somebody else takes it", 2.0)
    computing.says({"kept": True, "lost": False})
    eventually(lambda: is_free(lock), "it is released", 5)


def test_greenlets_that_share_one_object_exclude_each_other_and_wait_side_by_side(
    script, green
) -> None:
    waiting = script(
        """
shared = RedisLock(url, name, ttl=60, timeout=20)
inside, most, ticks = [], [], []
def work(number):
    for _ in range(5):
        with shared:
            inside.append(number)
            most.append(len(inside))
            sleep(0.01)
            inside.remove(number)
def tick():
    while len(most) < 20:
        ticks.append(time.monotonic())
        sleep(0.01)
workers = [spawn(work, number) for number in range(4)] + [spawn(tick)]
for worker in workers:
    worker.get() if hasattr(worker, "get") else worker.wait()
longest = max(later - earlier for earlier, later in zip(ticks, ticks[1:]))
say({"runs": len(most), "at once": max(most), "others wait": longest > 4})
""",
        prelude=green,
    )
    waiting.says({"runs": 20, "at once": 1, "others wait": False})
