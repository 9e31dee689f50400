"""The lock servers of an event loop: connections that end while nobody uses them, hosts that are
looked up, and what is given back in an outage.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
import redis
import redis.asyncio as aio
import uvloop

from celery_redislock import AsyncRedisLock, LockUnavailable, RedisLock
from celery_redislock.protocol.calls import Release, settle
from celery_redislock.protocol.keys import lock_keys
from celery_redislock.servers import async_node
from celery_redislock.servers.async_server import LISTENING
from celery_redislock.servers.threads import release_in_background, threads
from celery_redislock.servers.wire import Wire, Wires
from tests.support.clusters import ClusterSet, url_of_quorum
from tests.support.servers import Proxy, RedisServer, SentinelServer, free_port
from tests.support.tls import Certificate

#: So many ask at a time, so that so many connections are left behind. With TLS fewer: where others
#: have the cores, sixteen handshakes in one thread take longer than one of them may.
BURST = 16
TLS_BURST = 4
#: Seconds. For a third of it one asks again, which is much more than a late machine needs.
TTL = 30.0


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    return uvloop.run if request.param == "uvloop" else asyncio.run


@pytest.fixture
def persistent(certificate: Certificate) -> Iterator[RedisServer]:
    """A server of this test's own, with TLS too, that keeps its locks when it restarts."""
    tls_port = free_port()
    arguments = ("--tls-port", str(tls_port), *certificate.arguments("no"))
    with RedisServer(*arguments, persistent=True) as server:
        server.tls_port = tls_port
        yield server


async def burst(url: str, label: str, ttl: float = TTL) -> None:
    """Use as many connections at a time as a loop has."""
    count = TLS_BURST if url.startswith("rediss") else BURST
    locks = [AsyncRedisLock(url, f"{label}-burst-{n}", ttl=ttl) for n in range(count)]
    # A server that has restarted gives no lock for a third of the ttl.
    assert all(await asyncio.gather(*(each.acquire(20) for each in locks)))
    assert all(await asyncio.gather(*(each.release() for each in locks)))


async def soon(condition: Callable[[], Any], what: str, timeout: float = 20.0) -> None:
    give_up = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < give_up, f"not in {timeout} s: {what}"
        await asyncio.sleep(0.01)


def sockets_to(*ports: int) -> list[str]:
    """The states of this process's connections to these ports."""
    found = psutil.Process().net_connections("tcp")
    return [each.status for each in found if each.raddr and each.raddr.port in ports]


# -- connections that have ended while nobody used them -------------------------------------------


def kills(server: RedisServer) -> None:
    with server.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)


def restarts(server: RedisServer) -> None:
    server.restart()


@pytest.mark.parametrize(
    ("run", "cuts", "tls"),
    [("uvloop", kills, True), ("asyncio", restarts, False)],
    indirect=["run"],
)
def test_connections_that_the_server_has_closed_cost_nothing(
    run, persistent, certificate, label, cuts, tls
) -> None:
    url = persistent.url
    if tls:
        url = f"rediss://localhost:{persistent.tls_port}?ssl_ca_certs={certificate.path}"

    noticed = itertools.cycle([False, True])

    async def breaks() -> None:
        if next(noticed):
            await asyncio.to_thread(cuts, persistent)
        else:
            cuts(persistent)  # the loop stands still meanwhile
        with persistent.client() as client:
            client.config_set("timeout", 0)

    ttl = 15.0 if cuts is restarts else TTL

    async def main() -> None:
        names = f"{label}-held", f"{label}-other"
        # A server that has just started may be held off, if it was late at first.
        held, other = (AsyncRedisLock(url, name, ttl=ttl, timeout=20) for name in names)
        async with held:
            await burst(url, label, ttl)
            await breaks()
            assert await held.extend()
            await burst(url, label, ttl)
            await breaks()
            await held.ensure()
        with persistent.client() as client:
            assert not client.exists(held.key), "it was released"
        await burst(url, label, ttl)
        await breaks()
        assert await other.acquire(20)
        await burst(url, label, ttl)
        await breaks()
        assert await other.release()

    run(main())


@pytest.mark.parametrize("how", ["cut_off", "forget"])
def test_connections_that_a_proxy_has_dropped_cost_nothing(run, own_redis, label, how) -> None:
    with Proxy(own_redis.port) as proxy:

        def breaks() -> None:
            getattr(proxy, how)()
            proxy.reconnect()

        async def main() -> None:
            held = AsyncRedisLock(proxy.url, label, ttl=TTL)
            for _ in range(3):
                await burst(proxy.url, label)
                breaks()
                assert await held.acquire(0)
                breaks()
                assert await held.extend()
                breaks()
                assert await held.release()
            blocking = RedisLock(proxy.url, label, ttl=TTL)
            breaks()
            assert blocking.acquire(0)
            breaks()
            assert blocking.extend()
            breaks()
            assert blocking.release()

        run(main())


@pytest.mark.parametrize("when", ["as soon as it is made", "at its last reply"])
def test_a_connection_that_is_made_when_its_acquire_is_cancelled_is_closed(
    run, own_redis, label, monkeypatch, when
) -> None:
    made: list[Wire] = []
    asks: list[asyncio.Task[bool]] = []
    make, hold = Wires._made, Wire.hold

    async def made_just_now(wires: Wires, timeout: float) -> Wire:
        wire = await make(wires, timeout)
        if when == "as soon as it is made":
            asks[0].cancel()
        return wire

    async def held(wire: Wire, *args: Any) -> Any:
        made.append(wire)
        result = await hold(wire, *args)
        if when == "at its last reply":
            asks[0].cancel()
        return result

    monkeypatch.setattr(Wires, "_made", made_just_now)
    monkeypatch.setattr(Wire, "hold", held)

    async def main() -> None:
        asks.append(asyncio.create_task(AsyncRedisLock(own_redis.url, label).acquire(0)))
        await asyncio.wait(asks)
        assert asks[0].cancelled()
        assert [wire.is_ours for wire in made] == [False]

    run(main())


def test_what_a_burst_opened_is_closed_later(run, own_redis, label, monkeypatch) -> None:
    monkeypatch.setattr(async_node, "IDLE_FOR", 0.3)

    async def main() -> None:
        await burst(own_redis.url, label)
        assert len(sockets_to(own_redis.port)) >= BURST
        await soon(lambda: len(sockets_to(own_redis.port)) <= 2, "nobody uses them")
        await burst(own_redis.url, label)
        own_redis.kill()
        await soon(lambda: "CLOSE_WAIT" not in sockets_to(own_redis.port), "they are closed")

    run(main())


# -- nodes that leave a cluster -------------------------------------------------------------------


def test_connections_to_a_node_that_left_the_cluster_are_closed(label) -> None:
    with ClusterSet(replicas=1) as own:
        key = lock_keys("redislock", label).lock
        port = own.primary_of(key).port
        #: Locks in this node.
        names = (f"{label}-{n}" for n in range(10_000))
        wanted = (n for n in names if own.primary_of(lock_keys("redislock", n).lock).port == port)
        there = [next(wanted) for _ in range(BURST)]

        async def main() -> None:
            locks = [AsyncRedisLock(own.url, name, ttl=12) for name in there]
            assert all(await asyncio.gather(*(each.acquire(0) for each in locks)))
            assert all(await asyncio.gather(*(each.release() for each in locks)))
            with ThreadPoolExecutor(BURST) as threads:
                together = threading.Barrier(BURST)

                def use(name: str) -> None:
                    lock = RedisLock(own.url, name, ttl=12)
                    together.wait(20)
                    with lock:
                        together.wait(20)

                await asyncio.gather(
                    *(
                        asyncio.get_running_loop().run_in_executor(threads, use, name)
                        for name in there
                    )
                )
            assert len(sockets_to(port)) >= BURST
            await asyncio.to_thread(own.kill_primary_of, key)
            for lock in locks:
                assert await lock.acquire(30)
                assert await lock.release()
            assert await asyncio.to_thread(RedisLock(own.url, there[0], ttl=12).acquire, 30)
            await soon(lambda: not sockets_to(port), "its connections are closed")

        asyncio.run(main())


# -- what nobody uses any more --------------------------------------------------------------------


def test_what_belongs_to_a_client_goes_with_it(run, own_redis, label) -> None:
    async def main() -> None:
        for n in range(20):
            client: Any = aio.Redis(port=own_redis.port)
            async with client, AsyncRedisLock(client, f"{label}-{n}", ttl=TTL):
                pass
            del client
        gc.collect()
        await soon(lambda: not sockets_to(own_redis.port), "their connections are closed")

    run(main())


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_loop_that_nobody_closes_goes_with_its_connections(own_redis, label) -> None:
    """As in `asyncio.new_event_loop().run_until_complete(...)`, once for each task of a worker."""

    async def use() -> None:
        async with AsyncRedisLock(own_redis.url, label, ttl=TTL):
            pass

    gc.collect()
    before = psutil.Process().num_fds()
    for _ in range(20):
        asyncio.new_event_loop().run_until_complete(use())
    gc.collect()
    assert psutil.Process().num_fds() < before + 20
    assert not sockets_to(own_redis.port)


@pytest.mark.parametrize("kind", [RedisLock, AsyncRedisLock])
def test_of_many_urls_only_the_last_ones_keep_connections(own_redis, label, kind) -> None:
    async def main() -> None:
        for n in range(40):
            lock: Any = kind(f"{own_redis.url}?client_name=n{n}", label, ttl=TTL)
            if kind is RedisLock:
                with lock:
                    pass
            else:
                async with lock:
                    pass
        del lock
        gc.collect()
        most = 24
        await soon(lambda: len(sockets_to(own_redis.port)) <= most, "the others are closed")

    asyncio.run(main())


# -- where a host is looked up --------------------------------------------------------------------


@contextlib.contextmanager
def full_executor() -> Iterator[None]:
    """The threads of the loop that runs are all at work."""
    executor, done = ThreadPoolExecutor(1), threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(executor)
    loop.run_in_executor(None, done.wait)
    try:
        yield
    finally:
        done.set()


def test_a_host_is_looked_up_while_the_loops_threads_are_at_work(run, own_redis, label) -> None:
    async def main() -> None:
        with full_executor():
            url = f"redis://localhost:{own_redis.port}"
            async with AsyncRedisLock(url, label, ttl=TTL, timeout=0) as lock:
                assert lock.fence
            with SentinelServer({"main": own_redis.port}) as sentinel:
                options = {"master_name": "main"}
                for host in ("localhost", "127.0.0.1"):
                    url = f"sentinel://{host}:{sentinel.port}"
                    async with AsyncRedisLock(url, label, ttl=TTL, transport_options=options):
                        pass

    run(main())


def test_a_certificate_is_for_the_host_and_not_for_its_address(
    run, persistent, certificate, label, tmp_path
) -> None:
    """The server listens on one of localhost's addresses only."""
    url = f"rediss://localhost:{persistent.tls_port}?ssl_ca_certs={certificate.path}"

    async def main() -> None:
        # A handshake that a busy machine gave up, of a server that is young: it may hold off.
        async with AsyncRedisLock(url, label, ttl=TTL, timeout=60):
            pass
        tls_port = free_port()
        elsewhere = Certificate.make(tmp_path, "DNS:elsewhere")
        arguments = ("--tls-port", str(tls_port), *elsewhere.arguments("no"))
        with RedisServer(*arguments):
            wrong = f"rediss://localhost:{tls_port}?ssl_ca_certs={elsewhere.path}"
            wrong += "&ssl_check_hostname=true"  # redis-py's default since 6.0
            # redis-py 5.0 says only the number.
            with pytest.raises(LockUnavailable, match=r"CERTIFICATE_VERIFY_FAILED|Error 1 conn"):
                await AsyncRedisLock(wrong, label, ttl=12).acquire(0)

    run(main())


def test_a_host_that_nobody_knows_is_named(label) -> None:
    async def main() -> None:
        lock = AsyncRedisLock("redis://nowhere.invalid:6379", label, ttl=30)
        with pytest.raises(LockUnavailable, match=r"known|resol"):
            await lock.acquire(0)

    asyncio.run(main())


# -- threads --------------------------------------------------------------------------------------


class Own(redis.Connection):
    """Of a kind that asyncio does not have: its servers are asked in threads."""


def client_with_own(port: int) -> redis.Redis:
    pool = redis.ConnectionPool(connection_class=Own, host="127.0.0.1", port=port)
    return redis.Redis(connection_pool=pool)


@pytest.mark.parametrize("how", ["are waited for", "were waited for"])
def test_who_waits_leaves_a_thread_for_a_release(own_redis, label, how) -> None:
    """A thread that blocks does so for five seconds, also if its coroutine was cancelled."""

    waiting = LISTENING

    async def main() -> float:
        client = client_with_own(own_redis.port)
        mine = AsyncRedisLock(client, f"{label}-mine")
        others = [AsyncRedisLock(client, f"{label}-{n}", timeout=60) for n in range(waiting)]
        await mine.acquire()
        waits = [asyncio.create_task(each.acquire()) for each in others]
        with own_redis.client() as looks:
            blocked = lambda: looks.info("clients")["blocked_clients"]  # noqa: E731
            await soon(lambda: blocked() == waiting, "they are blocked")
        if how == "were waited for":
            for each in waits:
                each.cancel()
            await asyncio.wait(waits)
            waits = [asyncio.create_task(each.acquire()) for each in others]
            await asyncio.sleep(0.1)
        began = time.monotonic()
        assert await mine.release()
        took = time.monotonic() - began
        for each in waits:
            each.cancel()
        await asyncio.wait(waits)
        return took

    holders = [RedisLock(own_redis.url, f"{label}-{n}", ttl=60) for n in range(waiting)]
    assert all(each.acquire(0) for each in holders)
    assert asyncio.run(main()) < 2
    for each in holders:
        each.release()


def test_a_hold_off_keeps_no_thread_from_a_release(own_redis, label) -> None:
    """Those who wait for its end do so without a thread."""

    async def main() -> None:
        client = client_with_own(own_redis.port)
        async with AsyncRedisLock(client, f"{label}-mine", ttl=60) as held:
            own_redis.restart_empty()
            await soon_true(held.extend, "it is taken again")
            locks = [AsyncRedisLock(client, f"{label}-{n}", ttl=60) for n in range(2 * LISTENING)]
            waits = [asyncio.create_task(each.acquire()) for each in locks]
            await asyncio.sleep(0.1)
            began = time.monotonic()
            assert await held.release()
            assert time.monotonic() - began < 10
            assert not any(each.done() for each in waits), "they wait for the end of the hold-off"
            for each in waits:
                each.cancel()
            await asyncio.wait(waits)

    asyncio.run(main())


async def soon_true(ask: Callable[[], Coroutine[Any, Any, Any]], what: str) -> None:
    for _ in range(200):
        with contextlib.suppress(LockUnavailable):
            if await ask():
                return
        await asyncio.sleep(0.05)
    raise AssertionError(what)


# -- the end of a process in an outage ------------------------------------------------------------


#: Holds them until it reads a line, and then releases all.
_HOLDS = """
import asyncio, contextlib, sys
from celery_redislock import AsyncRedisLock, LockUnavailable

async def holds(lock, ready, goes_on):
    taken = False
    while not taken:
        with contextlib.suppress(LockUnavailable):  # on a busy machine
            taken = await lock.acquire(60)
    ready.release()
    await goes_on.wait()
    await lock.release()

async def main(url, label):
    ready, goes_on = asyncio.Semaphore(0), asyncio.Event()
    locks = [AsyncRedisLock(url, f"{label}-{n}") for n in range(500)]
    tasks = [asyncio.create_task(holds(each, ready, goes_on)) for each in locks]
    for _ in tasks:
        await ready.acquire()
    print("holds", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    goes_on.set()
    await asyncio.wait(tasks)

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_process_that_holds_many_ends_soon_in_an_outage(three_servers, label) -> None:
    """Alone on its machine within five seconds; a timeout for each lock would take minutes."""
    command = [sys.executable, "-c", _HOLDS, url_of_quorum(three_servers), label]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with contextlib.ExitStack() as stack, subprocess.Popen(command, text=True, **pipes) as program:
        stack.callback(program.kill)
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "holds\n"
        for server in three_servers:
            server.stop()
            stack.callback(server.resume)
        began = time.monotonic()
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.wait(60) == 0
        assert time.monotonic() - began < 15


def test_at_the_end_a_quorum_costs_one_timeout_for_each_server(
    three_servers, label, monkeypatch
) -> None:
    """Whatever is given back then: no thread can be started, so it is done one after another."""
    locks: list[Any] = [
        RedisLock(url_of_quorum(three_servers), f"{label}-{n}", ttl=60) for n in range(100)
    ]
    calls = [settle(each._claim(each._keys), Release(publishes=False)) for each in locks]
    ended = ThreadPoolExecutor()
    ended.shutdown()
    monkeypatch.setattr(threads, "_executor", ended)
    unheard: list[LockUnavailable] = []
    for server in three_servers:
        server.stop()
    began = time.monotonic()
    release_in_background(locks[0]._server, *calls, unheard=unheard.append)
    took = time.monotonic() - began
    for server in three_servers:
        server.resume()
    assert len(unheard) == len(calls)
    assert took < 30, "one for each lock would take a minute"


def test_what_was_cancelled_in_an_outage_is_given_back_after_it(own_redis, label) -> None:
    """As long as the server is back before the tries are used up."""

    async def main() -> None:
        locks = [AsyncRedisLock(own_redis.url, f"{label}-{n}", ttl=60) for n in range(200)]
        for each in locks:  # in turn: a busy machine may not connect 200 times in a call's time
            assert await each.acquire(0)
        own_redis.stop()
        ends = [asyncio.create_task(each.release()) for each in locks]
        await asyncio.sleep(0.1)
        for each in ends:
            each.cancel()
        await asyncio.wait(ends)
        own_redis.resume()
        with own_redis.client() as client:
            free = lambda: not client.exists(*(each.key for each in locks))  # noqa: E731
            await soon(free, "all are free")

    asyncio.run(main())
