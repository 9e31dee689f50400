"""`RedisLock`: the lock outside tasks, between threads, processes and greenlets."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from celery_redislock import LockConflict, LockLost, RedisLock
from tests.support.interrupts import Interrupt, each_place, interrupted
from tests.support.servers import RedisServer
from tests.support.waiting import eventually, never

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


HOLDS = """
lock = RedisLock(url, name, ttl={ttl})
lock.acquire()
say("holds")
while not lock.lost:
    time.sleep(0.02)
say("lost")
say(["release", lock.release()])
"""


def losses(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "LOST" in text]


def test_a_release_that_was_interrupted_and_is_repeated_is_no_loss(proxy, label, caplog) -> None:
    mine = RedisLock(proxy.url, label, ttl=60)
    mine.acquire()
    proxy.to_client.delay = 0.5
    with interrupted(Interrupt, "release"), pytest.raises(Interrupt):
        mine.release()
    proxy.heal()
    assert mine.acquire(0), "it is free"
    assert losses(caplog) == []
    mine.release()


# -- keeping ----------------------------------------------------------------------------------


def test_a_thread_that_ends_with_the_lock_is_told_once_and_the_lock_lapses(
    lock, client, caplog
) -> None:
    mine = lock(ttl=2)
    thread = threading.Thread(target=mine.acquire, name="forgetful")
    thread.start()
    thread.join()
    told = eventually(lambda: said_by(caplog, "never released"), "it is said")
    assert mine.key in told[0]
    assert "'forgetful'" in told[0]
    assert "expires within 2 s" in told[0]
    eventually(lambda: not client.exists(mine.key), "it lapses")
    assert mine.acquire(timeout=0) is True, "another thread may take it"
    assert mine.release() is True
    assert said_by(caplog, "never released") == told


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
    eventually(lambda: pool.submit(seen_by, mine).result()[1], "it is lost")
    assert pool.submit(seen_by, mine).result() == seen_by(mine) == (fence, True, False)
    assert mine.release() is False
    assert pool.submit(seen_by, mine).result() == seen_by(mine) == (0, False, False)


def test_a_thread_that_lost_the_lock_is_not_told_the_fence_of_the_next_thread(
    lock, client, pool
) -> None:
    """With that fence its late writes would pass for the holder's."""
    mine = lock(ttl=2)
    pool.submit(mine.acquire).result()
    fence, _, _ = seen_by(mine)
    client.delete(mine.key)
    with lock():
        eventually(lambda: mine.lost, "it is lost")
    with mine:
        newer = mine.fence
        assert newer > fence
        assert pool.submit(seen_by, mine).result() == (fence, True, False)
        assert seen_by(mine) == (newer, False, True)
        with ThreadPoolExecutor(1) as third:
            assert third.submit(seen_by, mine).result() == (newer, False, True)


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


@pytest.mark.parametrize("releases", [True, False])
def test_a_reentrant_count_dies_with_the_lock(lock, client, releases) -> None:
    mine = lock(reentrant=True, ttl=2)
    for _ in range(3):
        mine.acquire()
    client.set(mine.key, "the thief's")
    eventually(lambda: mine.lost, "it is lost")
    if releases:
        assert mine.release() is False
        assert mine.release() is False
    client.delete(mine.key)

    assert mine.acquire(timeout=5) is True
    assert mine.release() is True
    assert is_free(lock)


def test_a_reentrant_lock_counts_for_each_thread(lock) -> None:
    mine = lock(reentrant=True)
    with mine, ThreadPoolExecutor(1) as other:
        assert other.submit(mine.acquire, timeout=0).result() is False
        assert other.submit(mine.release).result() is False
        assert other.submit(lambda: mine.fence).result() == mine.fence
        assert not is_free(lock)


# -- in an event loop -----------------------------------------------------------------------------


def test_in_an_event_loop_a_reentrant_lock_counts_for_each_task(lock, caplog) -> None:
    async def main() -> None:
        mine = lock(reentrant=True)

        async def other() -> None:
            began = time.monotonic()
            assert mine.acquire(timeout=60) is False
            with pytest.raises(LockConflict):
                mine.acquire()  # it would wait for ever: it blocks the holder
            with pytest.raises(LockConflict), mine:
                raise AssertionError("not reached")
            assert time.monotonic() - began < 30, "it blocks the holder, and does not wait"
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


@pytest.mark.parametrize("by_task", [False, True])
def test_in_an_event_loop_tasks_do_not_share_what_their_thread_acquired(lock, by_task) -> None:
    """Nor what a task left that has ended: two would be inside at once."""
    mine = lock(reentrant=True)

    async def left() -> None:
        assert mine.acquire(0)

    async def work() -> bool:
        with pytest.raises(LockConflict):
            mine.acquire()
        return mine.acquire(0)

    async def main() -> list[bool]:
        if by_task:
            await asyncio.create_task(left())
        return await asyncio.gather(work(), work())

    if not by_task:
        mine.acquire()
    assert asyncio.run(main()) == [False, False]
    assert mine.release() is True
    assert is_free(lock)


def test_in_an_event_loop_it_is_said_once_that_the_lock_blocks(lock, caplog) -> None:
    async def main() -> None:
        for _ in range(2):
            with lock():
                pass

    for _ in range(2):
        asyncio.run(main())
    (told, _) = said_by(caplog, "AsyncRedisLock")  # once for each loop
    assert "may block the event loop" in told


# -- waiting ----------------------------------------------------------------------------------


WAITER = """
client.incr("ready:" + name)
while not client.exists(f"go:{name}:{number}"):
    time.sleep(0.005)
with RedisLock(url, name, ttl=60):
    client.rpush("order:" + name, number)
"""


def test_processes_that_wait_are_served_in_the_order_in_which_they_came(
    lock, script, client, label
) -> None:
    """While all are blocked: one that looks again, after five seconds, goes to the end."""
    for number in range(6):
        script(f"number = {number}\n{WAITER}")
    eventually(lambda: client.get(f"ready:{label}") == "6", "all are ready")
    holder = lock(ttl=60)
    holder.acquire()
    for number in range(6):
        client.set(f"go:{label}:{number}", 1)
        eventually(
            lambda blocked=number + 1: client.info("clients")["blocked_clients"] == blocked,
            "it waits",
        )
    holder.release()
    eventually(lambda: client.llen(f"order:{label}") == 6, "all are served")
    assert client.lrange(f"order:{label}", 0, -1) == list("012345")


# -- the four ways of failing, and the five clients, of Redis in Action, 6.2.2 ----------------


def test_failure_1_a_holder_that_took_too_long_knows_it_and_frees_nobody_elses_lock(
    lock, script
) -> None:
    slow = script(HOLDS.format(ttl=1))
    slow.says("holds")
    slow.signal(signal.SIGSTOP)
    other = lock(ttl=5)
    assert other.acquire(timeout=30) is True
    slow.signal(signal.SIGCONT)
    slow.says("lost")
    slow.says(["release", False])
    assert other.lost is False
    assert other.holder().pid == os.getpid()
    assert other.release() is True


def test_failure_2_a_crashed_holder_is_named_and_its_lock_goes_to_who_waits(lock, script) -> None:
    crashing = script(HOLDS.format(ttl=1.5))
    crashing.says("holds")
    holder = lock().holder()
    assert (holder.pid, holder.node) == (crashing.pid, socket.gethostname())

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lock(ttl=60).acquire, timeout=20)
        never(waiting.done, "two hold it", 0.3)
        crashing.signal(signal.SIGKILL)
        crashing.popen.wait()
        assert lock().acquire(timeout=0) is False
        assert lock().holder().ttl <= 3
        assert waiting.result() is True


def test_failure_3_of_many_that_try_when_a_lock_lapses_one_gets_it(lock, client) -> None:
    for _ in range(2):
        lapsing = lock(ttl=0.2, heartbeat=False)
        lapsing.acquire()
        waiting = [lock(ttl=5) for _ in range(8)]
        with ThreadPoolExecutor(8) as pool:
            taken = list(pool.map(lambda each: each.acquire(timeout=2), waiting))
        assert sum(taken) == 1
        client.delete(lapsing.key)


CLIENT = """
lock = RedisLock(url, name, ttl=5, timeout=30)
client.incr("ready:" + name)
while not client.exists("go:" + name):
    time.sleep(0.005)
mine = overlaps = 0
until = time.monotonic() + 1
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
    order = client.lrange(f"order:{label}", 0, -1)
    passed_on = sum(one != next_one for one, next_one in itertools.pairwise(order))
    assert passed_on > 0.8 * (len(order) - 1), "who releases it does not take it again at once"
    assert len(set(order)) == 5


# -- processes --------------------------------------------------------------------------------


FORKS = """
import logging
heard = []
logging.basicConfig(handlers=[logging.Handler()], level=logging.WARNING)
logging.getLogger().handlers[0].emit = lambda record: heard.append(record.getMessage())
def claims(lock):
    try:
        lock.ensure()
    except LockLost:
        return bool(lock.fence or lock.lost)
    return "ensured"
of_main = [RedisLock(url, name + str(each), ttl=12, reentrant=each) for each in (False, True)]
of_thread = RedisLock(url, name + "thread", ttl=12)
held, go = threading.Event(), threading.Event()
def hold():
    with of_thread:
        held.set()
        go.wait()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
for lock in of_main:
    lock.acquire()
child = os.fork()
if child == 0:
    locks = [*of_main, of_thread]
    said = {"claims": [claims(lock) for lock in locks]}
    said["acquired"] = [lock.acquire(timeout=0) for lock in locks]
    said["released"] = [lock.release() for lock in locks]
    try:
        of_main[0].extend()
    except LockLost:
        said["extended"] = False
    with RedisLock(url, name + "child", ttl=1) as own:
        time.sleep(1.5)  # longer than the ttl
        said["own is kept"] = bool(client.exists(own.key)) and not own.lost
    said["own is released"] = not client.exists(own.key)
    del locks, lock, of_main, of_thread
    gc.collect()
    said["heard"] = heard
    client.set("child:" + name, json.dumps(said))
    os._exit(0)
os.waitpid(child, 0)
say([bool(of_thread.fence and not of_thread.lost), *(lock.release() for lock in of_main)])
go.set()
"""


def test_a_forked_child_has_not_its_parents_locks_and_can_use_its_own(
    script, client, label
) -> None:
    """Nor is it told of the locks of its parent's threads."""
    script(FORKS).says([True, True, True])
    assert json.loads(client.get(f"child:{label}")) == {
        "claims": [False] * 3,
        "acquired": [False] * 3,
        "released": [False] * 3,
        "extended": False,
        "own is kept": True,
        "own is released": True,
        "heard": [],
    }


def test_a_forked_child_does_not_keep_its_dead_parents_lock(lock, script, client) -> None:
    parent = script(
        """
lock = RedisLock(url, name, ttl=1)
lock.acquire()
child = os.fork()
if child == 0:
    time.sleep(20)
    os._exit(0)
say("holds")
os.waitpid(child, 0)
"""
    )
    parent.says("holds")
    never(lambda: not client.exists(lock().key), "it lapses", 1.5)
    parent.signal(signal.SIGKILL)
    eventually(lambda: not client.exists(lock().key), "it lapses")


#: Forks as uWSGI does: Python's hooks do not run. It keeps the GIL, and none of the other threads
#: waits for it by then: in the child that one would wait for ever, and be woken in others' place.
FORKS_BY_C = """
import ctypes, time
def fork_by_c():
    time.sleep(0.3)
    return ctypes.PyDLL(None).fork()
"""


def test_a_fork_that_python_does_not_notice_takes_no_lock_along(script, lock, client) -> None:
    parent = script(
        """
lock = RedisLock(url, name, ttl=5)
lock.acquire()
child = fork_by_c()
if child == 0:
    os._exit(10 * bool(lock.fence) + lock.release())
say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
say(["still held", bool(client.exists(lock.key)), lock.lost])
""",
        prelude=FORKS_BY_C,
    )
    parent.says(0)
    parent.says(["still held", True, False])


@pytest.mark.parametrize("kind", ["RedisLock", "AsyncRedisLock"])
def test_a_fork_that_python_does_not_notice_keeps_its_own_locks_alive(script, kind) -> None:
    """The parent had a lock, as when a module is imported, and so a thread for its heartbeat."""
    parent = script(
        f"""
import asyncio
from celery_redislock import AsyncRedisLock
# By its name: a host is looked up in a thread of ours.
url = url.replace("127.0.0.1", "localhost")
async def by_coroutine(name, seconds):
    async with AsyncRedisLock(url, name, ttl=1) as held:
        await asyncio.sleep(seconds)
        return await asyncio.to_thread(client.exists, held.key) == 1 and not held.lost
def by_thread(name, seconds):
    with RedisLock(url, name, ttl=1) as lock:
        time.sleep(seconds)
        return client.exists(lock.key) == 1 and not lock.lost
def held_for(name, seconds):
    if {kind!r} == "RedisLock":
        return by_thread(name, seconds)
    return asyncio.run(by_coroutine(name, seconds))
assert held_for(name, 0)
child = fork_by_c()
if child == 0:
    signal.alarm(30)
    client.connection_pool.reset()
    kept = held_for(name + "child", 1.5), held_for(name + "child", 0)
    os._exit(kept != (True, True))
said = held_for(name, 1.5)
say(["child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "parent", said])
""",
        prelude=FORKS_BY_C,
    )
    parent.says(["child", 0, "parent", True])


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


def test_many_locks_are_kept_by_one_thread_in_few_round_trips(own_redis) -> None:
    locks = [RedisLock(own_redis.url, f"lock{number}", ttl=1.5) for number in range(50)]
    for each in locks:
        each.acquire()
    with own_redis.client() as client:
        polls = []

        def calls() -> int:
            polls.append(1)
            return client.info("commandstats")["cmdstat_evalsha"]["calls"]

        def reads() -> int:
            return client.info("stats")["total_reads_processed"]

        acquired, before = calls(), reads()
        eventually(lambda: calls() - acquired >= 150, "each is extended three times")
        # Of three beats, whose 20 kB come in a few pieces each.
        assert reads() - before - len(polls) < 60
    beating = [each for each in threading.enumerate() if each.name == "redislock-heartbeat"]
    assert len(beating) == 1
    assert not any(each.lost for each in locks)
    assert all(each.release() for each in locks)


def test_servers_that_hang_cost_no_lock_on_another_one(own_redis, lock, caplog) -> None:
    with RedisServer() as other, contextlib.ExitStack() as stack:
        mine = stack.enter_context(lock(ttl=1.5))
        hung = []
        for server in (own_redis, other):
            hung.append(RedisLock(server.url, "hangs", ttl=1.5))
            assert hung[-1].acquire(0)
            server.stop()
            stack.callback(server.resume)

        never(lambda: mine.lost or not mine.holder(), "it is lost", 1.8)
        assert caplog.text.count("could not extend") >= 2


def test_a_heartbeat_tries_ten_times_a_second_while_the_server_is_away(
    own_redis, label, caplog
) -> None:
    with RedisLock(own_redis.url, label, ttl=6) as mine:
        own_redis.kill()
        eventually(lambda: "could not extend" in caplog.text, "a heartbeat finds nobody")
        own_redis.start()
        with own_redis.client() as client:  # and not every five seconds
            eventually(lambda: client.exists(mine.key), "it is taken again", 4)
        assert mine.lost is False


# -- exceptions from the outside --------------------------------------------------------------


#: The code in which it is cut short.
OURS = ("celery_redislock", "redis")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_acquire_that_is_cut_short_leaves_nothing_that_a_release_does_not_free(lock) -> None:
    mine, other = lock(ttl=60), lock(ttl=60)
    for where, _ in each_place(lambda: mine.acquire(timeout=0), OURS, step=5):
        mine.release()
        assert other.acquire(timeout=0) is True, where
        other.release()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_release_that_is_cut_short_frees_the_lock_all_the_same(lock) -> None:
    mine, other = lock(ttl=60), lock(ttl=60)
    assert mine.acquire(timeout=0) is True
    for where, _ in each_place(mine.release, OURS, step=5):
        mine.release()
        assert mine.fence == 0
        assert other.acquire(timeout=0) is True, where
        other.release()
        assert mine.acquire(timeout=0) is True
    mine.release()


def test_who_is_interrupted_while_waiting_waits_no_more(lock) -> None:
    with lock(ttl=60) as holder:
        waiter = lock(ttl=60)
        with interrupted(Interrupt, "acquire"), pytest.raises(Interrupt):
            waiter.acquire()
        assert waiter.fence == 0
        assert holder.lost is False
    assert waiter.acquire(timeout=10) is True
    assert waiter.release() is True
