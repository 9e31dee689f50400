"""The tools of the tests: a fault that does nothing would prove everything."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
import redis
from kombu import Connection
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_redislock import LockLost, RedisLock
from tests.support.clusters import ClusterSet
from tests.support.servers import PATIENT, Proxy, RedisServer, SentinelSet
from tests.support.waiting import eventually, never
from tests.support.workers import ROOT, is_running, state_of

LOST = (redis.ConnectionError, redis.TimeoutError)


def hasty(port: int, timeout: float = 0.2) -> redis.Redis:
    """A client with one connection that tries nothing twice."""
    return redis.Redis(
        port=port,
        decode_responses=True,
        single_connection_client=True,
        socket_timeout=timeout,
        retry=Retry(NoBackoff(), 0),
    )


@pytest.fixture
def through(proxy: Proxy) -> Iterator[redis.Redis]:
    """A client that goes through the proxy."""
    with hasty(proxy.port, 20) as client:
        assert client.ping()
        yield client


def seconds(call: Callable[[], object]) -> float:
    started = time.monotonic()
    call()
    return time.monotonic() - started


# -- the proxy --------------------------------------------------------------------------------


def test_a_proxy_leads_to_the_server_counts_requests_and_passes_on_large_ones(
    proxy, through, client, label
):
    before, value = proxy.requests, "x" * 5_000_000
    for number in range(5):
        through.rpush(label, number)
    assert client.lrange(label, 0, -1) == list("01234")
    assert proxy.requests == before + 5
    through.set(f"{label}2", value, ex=60)
    assert through.get(f"{label}2") == value


def test_what_is_cut_off_is_refused_until_it_is_reconnected(proxy, through):
    proxy.cut_off()
    for _ in range(3):
        with pytest.raises(LOST):
            through.ping()
    proxy.reconnect()
    assert through.ping()


def test_a_request_on_a_blocked_way_is_executed_later_also_after_its_client_is_gone(
    proxy, through, client, label
):
    proxy.to_server.block()
    through.connection.send_command("SET", label, "late", "EX", 60)
    through.close()
    with pytest.raises(redis.TimeoutError), hasty(proxy.port) as another:
        another.ping()
    never(lambda: client.exists(label), "it went through", 0.2)
    proxy.to_server.unblock()
    eventually(lambda: client.get(label) == "late", "the request of before is executed")


def test_a_reply_on_a_blocked_or_slow_way_is_held_back(proxy, through, client, label):
    proxy.to_client.block()
    through.connection.send_command("SET", label, "executed", "EX", 60)
    eventually(lambda: client.get(label) == "executed", "the request is executed")
    assert not through.connection.can_read(0.2)
    proxy.to_client.unblock()
    assert through.connection.read_response() == "OK"
    proxy.to_client.delay = 0.5
    assert seconds(through.ping) >= 0.5


def test_a_lost_reply_is_that_of_a_command_that_was_executed(proxy, through, client, label):
    proxy.lose_replies(1)
    with pytest.raises(LOST):
        through.incr(label)
    assert proxy.lost == 1
    assert through.incr(label) == 2

    proxy.lose_replies(to=b"INCR")
    for _ in range(3):
        with pytest.raises(LOST):
            through.incr(label)
        assert through.get(label) == client.get(label)
    proxy.heal()
    assert through.incr(label) == 6
    assert proxy.lost == 4


def test_a_proxy_stands_in_front_of_rabbitmq(rabbitmq, label):
    def connect(stack: contextlib.ExitStack) -> Connection:
        return stack.enter_context(Connection(proxy.in_front_of(rabbitmq.url), heartbeat=0))

    with Proxy(rabbitmq.port) as proxy, contextlib.ExitStack() as stack:
        connection = connect(stack)
        queue = connection.SimpleQueue(label)
        queue.put("one")
        message = queue.get(timeout=20)
        assert message.payload == "one"
        proxy.cut_off()
        with pytest.raises(connection.connection_errors):
            message.ack()
            connection.drain_events(timeout=20)
        proxy.reconnect()
        proxy.to_client.delay = 0.2
        again = connect(stack)
        assert seconds(again.connect) > 0.2


# -- a server's faults ------------------------------------------------------------------------


def test_a_persistent_server_keeps_its_data_and_their_expiry_until_it_is_emptied():
    with RedisServer(persistent=True) as server:
        client = server.client()
        client.set("key", "value", px=60_000)
        server.restart()
        assert client.get("key") == "value"
        assert 30_000 < client.pttl("key") <= 60_000
        server.restart_empty()
        assert client.dbsize() == 0
        client.set("key", "after")
        server.restart()
        assert client.get("key") == "after"


def test_locks_are_evicted_and_then_there_is_room_again(own_redis):
    client = own_redis.client()
    client.set("redislock:{1}:fence", "5")
    assert own_redis.evict("volatile-ttl", timeout=0.3) == [], "nothing of it may go"
    for number in range(20):
        client.set(f"redislock:{{1}}:lock:{number}", "held", px=60_000)

    evicted = own_redis.evict("volatile-ttl")

    assert evicted
    assert not client.exists(*evicted)
    assert client.get("redislock:{1}:fence") == "5"
    assert client.set("more", "x" * 100_000)
    assert not client.keys("filling:*")


def test_a_lock_lapses_early_if_the_clock_steps_forward(own_redis, label):
    mine, other = (RedisLock(own_redis.url, label, ttl=60, heartbeat=False) for _ in range(2))
    assert mine.acquire(timeout=0)
    own_redis.step_clock(61)
    assert other.acquire(timeout=0)
    with pytest.raises(LockLost):
        mine.extend()
    assert other.fence > mine.fence


def test_fences_go_on_rising_if_the_clock_steps_back(own_redis, label):
    mine = RedisLock(own_redis.url, label, ttl=6)
    assert mine.acquire(timeout=0)
    fence = mine.fence
    mine.release()
    own_redis.step_clock(-3600)
    assert mine.acquire(timeout=0)
    assert mine.fence > fence + 3_500_000_000
    mine.release()


# -- failover ---------------------------------------------------------------------------------


@pytest.fixture
def sentinels() -> Iterator[SentinelSet]:
    with SentinelSet() as sentinels:
        yield sentinels


def test_a_failover_keeps_what_was_replicated_and_a_kill_loses_the_last_writes(sentinels, label):
    """The sentinels are patient before and after: if they replaced a master that is only late, what
    is written there would be lost.
    """
    with RedisLock(
        sentinels.url, label, ttl=60, transport_options=sentinels.transport_options
    ) as lock:
        eventually(lambda: sentinels.replica.client().exists(lock.key), "it is replicated")
        sentinels.failover()
        sentinels.mend()
        assert sentinels.client().exists(lock.key)

    old = sentinels.master
    sentinels.client().set(label, "kept")
    eventually(lambda: sentinels.replica.client().exists(label), "it is replicated")
    sentinels.cut_replication()
    sentinels.client().set(f"{label}2", "to be lost")
    assert {each.down_after(sentinels.NAME) for each in sentinels.sentinels} == {PATIENT}

    sentinels.kill_master()

    assert sentinels.master is not old
    assert sentinels.client().get(label) == "kept"
    assert sentinels.client().get(f"{label}2") is None
    sentinels.mend()
    assert sentinels.in_step()
    assert {each.down_after(sentinels.NAME) for each in sentinels.sentinels} == {PATIENT}


def test_a_clusters_node_that_is_cut_off_is_replaced_and_follows_when_it_is_back(label):
    with ClusterSet() as servers:
        key = f"{label}:kept"
        old = servers.primary_of(key)
        with old.client() as client:
            client.set(key, "value")
            client.wait(1, 5000)
        with servers.cut_off_primary_of(key):
            new = servers.primary_of(key)
            assert new is not old
            with servers.onlooker(1.0) as client:
                assert client.get(key) == "value"
                assert client.mget([key]) == ["value"]
                assert list(client.scan_iter(f"{label}:*", count=10)) == [key]
        assert servers.primary_of(key) is new
        assert servers.replica_of(new) is old


# -- workers ----------------------------------------------------------------------------------


def test_a_worker_that_celery_lets_hang_in_a_cold_shutdown_is_killed(start_worker, sender, queue):
    worker = start_worker(queues=queue, concurrency=1)
    (child,) = worker.children()
    os.kill(child, signal.SIGSTOP)
    sender.send_task("plain", ["x" * 2_000_000], queue=queue)  # more than the pipe to it holds
    eventually(lambda: "received" in worker.log(), "half the job is written")
    eventually(lambda: state_of(child) == "T", "it stands")
    # Of two signals, the second comes while the first one's handler waits: mostly, Celery hangs.
    os.kill(worker.pid, signal.SIGQUIT)
    eventually(lambda: "Hitting Ctrl+C again" in worker.log(), "it ends")
    os.kill(child, signal.SIGCONT)
    worker.end_cold(timeout=2)
    assert not is_running(worker.pid)


# -- CI's second look -------------------------------------------------------------------------

AGAIN = """
import pathlib, pytest

@pytest.mark.parametrize("number", range({tests}))
def test_that_fails(number):
    runs = pathlib.Path(__file__).with_suffix(f".{{number}}")
    runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
    assert len(runs.read_text()) not in {fails}
"""


@pytest.mark.parametrize(
    ("tests", "fails", "passes", "options"),
    [
        (2, [1], True, ["-p", "xdist", "-n", "2"]),
        (3, [1], False, []),
        (1, [1, 4], False, []),
    ],
    ids=["late, side by side", "more than two", "again, at the last turn"],
)
def test_ci_looks_twice_at_one_or_two_tests_that_failed(tmp_path, tests, fails, passes, options):
    path = tmp_path / "test_again.py"
    path.write_text(AGAIN.format(tests=tests, fails=fails))
    plain = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_XDIST_WORKER": ""}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.again", *options, path.name],
        cwd=tmp_path,
        env={**os.environ, **plain, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == (0 if passes else 1), ran.stdout
    assert ran.stdout.count("FAILED ONCE") == (tests if passes else 0)
