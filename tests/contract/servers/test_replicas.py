"""Acquisitions that replicas must confirm: those of a server, behind Sentinel, in a cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from celery_redislock import LockUnavailable, RedisLock
from celery_redislock.app.settings import app_locks
from celery_redislock.errors import ConfigError
from celery_redislock.protocol import calls
from celery_redislock.protocol.claims import EXTENDED, Acquired, Busy
from celery_redislock.servers import talk
from celery_redislock.servers.factory import server_at
from celery_redislock.servers.server import Server
from celery_redislock.servers.urls import source_from_url
from tests.contract.claims import extended, extension, make_claim, outcomes, taken
from tests.support.clusters import ClusterSet
from tests.support.servers import RedisServer, SentinelSet
from tests.support.waiting import eventually
from tests.support.workers import make_app


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[RedisServer, RedisServer]]:
    """A master and its replica."""
    quick = ("--repl-diskless-sync-delay", "0")
    with RedisServer(*quick) as master, RedisServer(*quick) as replica:
        with replica.client() as client:
            client.replicaof("127.0.0.1", master.port)

        eventually(lambda: is_in_step(master), "the replica has all the data")
        yield master, replica


def is_in_step(master: RedisServer) -> bool:
    with master.client() as client:
        client.set("x", 1)
        return bool(client.wait(1, 100) == 1)


@pytest.fixture
def stopped(pair: tuple[RedisServer, RedisServer]) -> Iterator[RedisServer]:
    """The replica, which confirms nothing until `resume`."""
    pair[1].stop()
    yield pair[1]
    pair[1].resume()
    eventually(lambda: is_in_step(pair[0]), "it has caught up")


def server_of(url: str, replicas: int) -> Server:
    return server_at(source_from_url(url), replicas)


def test_a_lock_that_enough_replicas_confirm_is_taken(pair, label) -> None:
    store = server_of(pair[0].url, 1)
    claim = make_claim(label)
    held = taken(store.run(calls.acquire(claim)))
    with pair[1].client() as client:
        assert client.exists(claim.keys.lock), "the replica has it before we know"
    assert outcomes(extended(store, extension(claim, held))) == [EXTENDED]
    assert store.run(calls.settle(claim)).ours
    store.close()


def test_also_while_the_server_does_not_know_the_script(pair, label) -> None:
    store = server_of(pair[0].url, 1)
    pair[0].flush_scripts()
    taken(store.run(calls.acquire(make_claim(label))))
    pair[0].flush_scripts()
    waiter = make_claim(f"{label}-2")
    taken(store.block(calls.acquire(waiter, "woken"), waiter.keys.wake, 0.01))
    store.close()


@pytest.mark.parametrize("asks", ["once", "after a block"])
def test_without_enough_replicas_the_lock_is_unavailable_and_not_busy(pair, label, asks) -> None:
    store = server_of(pair[0].url, 2)
    claim = make_claim(label)
    with pytest.raises(LockUnavailable, match="1 of 2 replicas confirmed"):
        if asks == "once":
            store.run(calls.acquire(claim))
        else:
            store.block(calls.acquire(claim, "woken"), claim.keys.wake, 0.01)
    assert isinstance(store.run(calls.acquire(make_claim(label))), Busy), "busy is busy"
    assert store.run(calls.settle(claim)).ours
    store.close()


def test_what_is_held_is_extended_and_released_whatever_the_replicas_do(
    pair, label, stopped, monkeypatch
) -> None:
    monkeypatch.setattr(talk, "CONFIRMED_WITHIN", 20.0)
    careless, careful = server_of(pair[0].url, 0), server_of(pair[0].url, 1)
    claim = make_claim(label)
    held = taken(careless.run(calls.acquire(claim)))
    assert careful.ask(calls.holder_of(claim.keys, claim.ttl))  # it is connected
    began = time.monotonic()
    assert outcomes(extended(careful, extension(claim, held))) == [EXTENDED]
    assert careful.run(calls.settle(claim)).ours
    assert time.monotonic() - began < 10, "they do not ask the replicas"
    for each in (careless, careful):
        each.close()


def test_a_lock_that_is_not_confirmed_is_given_back(pair, label, stopped) -> None:
    with make_app({"redislock_url": pair[0].url, "redislock_min_replicas": 1}) as app:
        lock = RedisLock(app, label, ttl=3)
        with pytest.raises(LockUnavailable, match="0 of 1 replicas confirmed"):
            lock.acquire(timeout=0)
        with pair[0].client() as client:
            assert not client.exists(lock.key)
        stopped.resume()
        assert eventually(lambda: tries(lock), "the replica is back")
        assert lock.release()
        stopped.stop()


def tries(lock: RedisLock) -> bool:
    try:
        return lock.acquire(timeout=0)
    except LockUnavailable:
        return False


def test_a_waiter_goes_on_once_the_replicas_confirm_again(pair, label) -> None:
    with make_app({"redislock_url": pair[0].url, "redislock_min_replicas": 1}) as app:
        holder, waiter = RedisLock(app, label, ttl=3), RedisLock(app, label, ttl=3)
        assert holder.acquire(timeout=0)
        got = threading.Event()
        thread = threading.Thread(target=lambda: waiter.acquire(timeout=20) and got.set())
        thread.start()
        with pair[0].client() as client:
            eventually(lambda: client.info("clients")["blocked_clients"], "it sleeps")
        pair[1].stop()
        assert holder.release()
        pair[1].resume()
        assert got.wait(20)
        thread.join()


def is_taken(store: Server, name: str) -> bool:
    try:
        return isinstance(store.run(calls.acquire(make_claim(name, ttl=0.5))), Acquired)
    except LockUnavailable:
        return False
    finally:
        store.close()


@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
def test_sentinels_and_clusters_confirm_too(kind, label) -> None:
    with SentinelSet(sentinels=1) if kind == "sentinel" else ClusterSet(primaries=1) as servers:
        source = source_from_url(servers.url, servers.transport_options)
        eventually(lambda: is_taken(server_at(source, 1), f"{label}-0"), "the replica is there")
        for replicas, fits in ((1, True), (2, False)):
            store = server_at(source, replicas)
            claim = make_claim(f"{label}-{replicas}")
            if fits:
                taken(store.run(calls.acquire(claim)))
                taken(store.block(calls.acquire(claim, "woken"), claim.keys.wake, 0.01))
            else:
                with pytest.raises(LockUnavailable, match="1 of 2 replicas confirmed"):
                    store.run(calls.acquire(claim))
            store.close()


@pytest.mark.parametrize("value", [-1, 1.5, "1", True, None, 101])
def test_the_number_of_replicas_is_a_small_whole_number(make_app, value) -> None:
    with pytest.raises(ConfigError, match="redislock_min_replicas"):
        app_locks(make_app(redislock_min_replicas=value))
