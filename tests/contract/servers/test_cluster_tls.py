"""Locks in a real Redis Cluster whose nodes speak TLS, with each other and with us."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.cluster import ClusterNode

from celery_redislock import LockUnavailable, RedisLock
from celery_redislock.app.settings import app_locks
from celery_redislock.protocol import calls
from celery_redislock.protocol.claims import EXTENDED, Claim
from celery_redislock.protocol.keys import lock_keys
from celery_redislock.servers.cluster import Cluster
from celery_redislock.servers.factory import server_at
from celery_redislock.servers.urls import source_from_url
from celery_redislock.testing import hold_lock
from tests.contract.claims import busy, extended, extension, make_claim, outcomes, taken
from tests.contract.servers.test_cluster import names_on
from tests.support.clusters import ClusterSet
from tests.support.looking import make_app, run
from tests.support.tls import Certificate
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def secure(certificate: Certificate) -> Iterator[ClusterSet]:
    with ClusterSet(tls=certificate.arguments("no")) as servers:
        yield servers


@pytest.fixture
def own(secure: ClusterSet) -> Iterator[ClusterSet]:
    """It is mended after each test."""
    yield secure
    secure.mend()


def store_at(url: str, options: dict[str, Any]) -> Cluster:
    store = server_at(source_from_url(url, options))
    assert isinstance(store, Cluster)
    return store


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("", {"ssl_ca_certs": "{ca}"}),
        ("", {"ssl_ca_certs": "{ca}", "ssl_cert_reqs": "CERT_REQUIRED"}),
        ("?ssl_ca_certs={ca}", {}),
        ("?ssl_cert_reqs=none", {}),
        ("", {"ssl_cert_reqs": "none"}),
    ],
)
def test_a_lock_works_in_each_node(own, certificate, label, query, options) -> None:
    ca = str(certificate.path)
    options = {name: ca if value == "{ca}" else value for name, value in options.items()}
    store = store_at(own.url + query.format(ca=ca), options)
    for name in names_on(own, label).values():
        claim = make_claim(name, ttl=12)
        reply = taken(store.run(calls.acquire(claim)))
        busy(store.run(calls.acquire(make_claim(name, ttl=12))))
        assert outcomes(extended(store, extension(claim, reply))) == [EXTENDED]
        taken(store.block(calls.acquire(claim, "woken"), claim.keys.wake, 0.01))
        with own.primary_of(claim.keys.lock).client() as client:
            assert client.exists(claim.keys.lock)
        assert store.run(calls.settle(claim)).ours
    store.close()


def test_after_a_failover_the_lock_is_kept(own, certificate, label) -> None:
    ca = {"ssl_ca_certs": str(certificate.path)}
    lock = RedisLock(own.url, label, ttl=6, transport_options=ca)
    assert lock.acquire(timeout=0)
    own.kill_primary_of(lock.key)
    lock.ensure()
    assert lock.release()


def test_locks_can_be_listed_and_the_set_up_be_examined(own, certificate, label) -> None:
    options = {"ssl_ca_certs": str(certificate.path)}
    app = make_app(own.url, label, redislock_transport_options=options)
    with contextlib.ExitStack() as held:
        locks = [held.enter_context(hold_lock(app.tasks["sync"], str(n))) for n in range(12)]
        listed = run(app, "list", "--json")
    assert {each["key"] for each in json.loads(listed.stdout)} == {each.key for each in locks}
    found = json.loads(run(app, "doctor", "--json").stdout)
    assert [each["what"] for each in found if each["check"] == "server"] == ["answers"]
    assert app_locks(app).describe_server().startswith("rediss+cluster://127.0.0.1:")
    app_locks(app).server.close()


def test_a_redis_lock_takes_a_cluster_client_with_tls(own, certificate, label) -> None:
    nodes = [ClusterNode("127.0.0.1", each.tls_port) for each in own.nodes]
    client = redis.RedisCluster(startup_nodes=nodes, ssl=True, ssl_ca_certs=str(certificate.path))
    with RedisLock(client, label, ttl=12) as lock:
        assert client.exists(lock.key)
    client.close()


def test_clients_and_nodes_show_their_certificates_where_that_is_wanted(certificate, label) -> None:
    path, key = map(str, certificate)
    with ClusterSet(primaries=1, replicas=1, tls=certificate.arguments("yes")) as servers:
        ca = {"ssl_ca_certs": path}
        shown = {**ca, "ssl_certfile": path, "ssl_keyfile": key}
        with RedisLock(servers.url, label, ttl=12, transport_options=shown) as lock:
            assert lock.key == lock_keys("redislock", label).lock
        with pytest.raises(LockUnavailable):
            RedisLock(servers.url, label, ttl=1, transport_options=ca).acquire(timeout=0)


def test_nodes_that_announce_their_names_are_asked_by_these(tmp_path, label) -> None:
    certificate = Certificate.make(tmp_path, "DNS:localhost")
    # The second one is redis-py's default since 6.0.
    options = {"ssl_ca_certs": str(certificate.path), "ssl_check_hostname": True}
    with ClusterSet(primaries=2, replicas=0, tls=certificate.arguments("no")) as servers:
        url = servers.url.replace("127.0.0.1", "localhost")
        with pytest.raises(LockUnavailable, match="IP address mismatch"):
            RedisLock(url, label, ttl=3, transport_options=options).acquire(timeout=0)
        for node in servers.nodes:
            with node.client() as client:
                try:
                    client.config_set("cluster-announce-hostname", "localhost")
                    client.config_set("cluster-preferred-endpoint-type", "hostname")
                except redis.ResponseError:
                    pytest.skip("nodes announce names as of Redis 7")
        store = store_at(url, options)
        for name in names_on(servers, label).values():
            claim = make_claim(name, ttl=12)

            def take(claim: Claim = claim) -> Any:
                # They could not be reached before, and are young: they may have forgotten locks.
                with contextlib.suppress(LockUnavailable):
                    return store.run(calls.acquire(claim))

            taken(eventually(take, "a young node gives out locks"))
            assert store.run(calls.settle(claim)).ours

        def hosts() -> set[str]:
            return {name.partition(":")[0] for name in store.primaries()}

        # A node calls another "?" until that has told its name.
        eventually(lambda: hosts() == {"localhost"}, "they know each other's names")
        store.close()
