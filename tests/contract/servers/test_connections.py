"""Connections to lock servers of every kind: by URL, and like the client that a user has."""

from __future__ import annotations

import contextlib
import gc
import ssl
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.backoff import ExponentialBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from celery_redislock import AsyncRedisLock, ConfigError, LockUnavailable, RedisLock
from celery_redislock.protocol import calls
from celery_redislock.protocol.claims import EXTENDED, Acquired, Busy
from celery_redislock.servers.connections import PoolFactory, pools_like
from celery_redislock.servers.node import Node
from celery_redislock.servers.urls import source_from_url
from tests.contract.claims import extended, extension, make_claim, outcomes, taken
from tests.support.servers import RedisServer, SentinelServer, SentinelSet, free_port
from tests.support.tls import Certificate
from tests.support.waiting import eventually


def use(pools: PoolFactory, on: redis.Redis) -> None:
    """Take a lock, keep it and give it back; `on` is another way to the same server."""
    store = Node(pools)
    try:
        # The ttl sets the timeouts: with this one a late machine has a second to answer.
        claim = make_claim(uuid.uuid4().hex, ttl=12)
        reply = taken(store.run(calls.acquire(claim)))
        assert on.exists(claim.keys.lock)
        assert isinstance(store.run(calls.acquire(make_claim(claim.keys.name, ttl=12))), Busy)
        assert outcomes(extended(store, extension(claim, reply))) == [EXTENDED]
        taken(
            store.block(calls.acquire(claim, "woken"), claim.keys.wake, 0.01)
        )  # asks again for what it has
        assert store.run(calls.settle(claim)).ours
        assert not on.exists(claim.keys.lock)
    finally:
        store.close()


# -- plain servers ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server with a socket, users, and a password for the default one."""
    socket = tmp_path_factory.mktemp("socket") / "redis.sock"
    with RedisServer("--unixsocket", str(socket)) as server, server.client() as client:
        client.acl_setuser(
            "worker", enabled=True, passwords="+p@ss/w:rd", keys=["*"], commands=["+@all"]
        )
        client.acl_setuser(
            "silent", enabled=True, passwords="+secret", keys=["*"], commands=["+@all", "-info"]
        )
        client.config_set("requirepass", "p@ss/w:rd")
        server.socket = socket  # type: ignore[attr-defined]
        yield server


@pytest.fixture
def guarded_client(guarded: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis(port=guarded.port, password="p@ss/w:rd") as client:
        yield client


PASSWORD = {"password": "p@ss/w:rd"}


@pytest.mark.parametrize(
    ("url", "options", "db"),
    [
        ("redis://:p%40ss%2Fw%3Ard@127.0.0.1:{port}", {}, 0),
        ("redis://127.0.0.1:{port}/5", PASSWORD, 5),
        ("redis://worker:p%40ss%2Fw%3Ard@127.0.0.1:{port}/0", {}, 0),
        ("redis://127.0.0.1:{port}", {"username": "worker", "db": 6, **PASSWORD}, 6),
        ("redis://127.0.0.1:{port}?username=worker&password=p%40ss%2Fw%3Ard&db=7", {}, 7),
        ("redis://silent:secret@127.0.0.1:{port}/0", {}, 0),
        ("unix://{socket}", PASSWORD, 0),
        ("unix://:p%40ss%2Fw%3Ard@{socket}", {}, 0),
        ("unix://{socket}?password=p%40ss%2Fw%3Ard&db=8", {}, 8),
        ("redis+socket://{socket}", PASSWORD, 0),
        ("redis+socket://{socket}?virtual_host=9", PASSWORD, 9),
        ("socket://{socket}", PASSWORD, 0),
    ],
)
def test_a_lock_works_over_each_kind_of_url_in_the_database_that_it_names(
    guarded, url, options, db
) -> None:
    url = url.format(port=guarded.port, socket=guarded.socket)
    with redis.Redis(port=guarded.port, db=db, **PASSWORD) as client:
        use(source_from_url(url, options), client)


def test_a_wrong_password_is_told_without_showing_it(guarded, label) -> None:
    store = Node(source_from_url(f"redis://:wrong-one@127.0.0.1:{guarded.port}"))
    with pytest.raises(LockUnavailable) as caught:
        store.run(calls.acquire(make_claim(label, ttl=3)))
    assert "password" in str(caught.value)
    assert "wrong-one" not in str(caught.value)


class Tokens(redis.CredentialProvider):
    """Tokens that live shortly: the first of these is over when it is used."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = list(tokens)

    def get_credentials(self) -> tuple[str, str]:
        return "worker", self.tokens.pop(0)


def test_a_credential_provider_is_asked_for_each_connection_and_again_if_its_token_is_over(
    guarded, label
) -> None:
    provider = Tokens("over", "p@ss/w:rd", "p@ss/w:rd", "over", "over as well")
    url = f"redis://127.0.0.1:{guarded.port}"
    store = Node(source_from_url(url, {"credential_provider": provider}))
    claim = make_claim(label, ttl=12)
    taken(store.run(calls.acquire(claim)))
    assert len(provider.tokens) == 3, "asked twice"
    taken(store.run(calls.acquire(claim)))
    assert len(provider.tokens) == 3, "a connection that stands has its rights"
    taken(store.run(calls.acquire(claim), purpose="another"))
    assert len(provider.tokens) == 2
    with pytest.raises(LockUnavailable, match=r"WRONGPASS|invalid username"):
        store.run(calls.acquire(claim), purpose="a third", once=True)
    assert provider.tokens == []
    store.close()


def test_a_urls_options_for_other_uses_are_left_aside(redis_server, client) -> None:
    # A result backend's URL may say what suits results.
    unfit = "socket_timeout=0.00001&socket_connect_timeout=99&health_check_interval=5&retry=3"
    url = f"{redis_server.url}/0?{unfit}&decode_responses=1&client_name=ours&unheard_of=1"
    store = Node(source_from_url(url))
    claim = make_claim(uuid.uuid4().hex, ttl=6)
    taken(store.run(calls.acquire(claim)))
    assert "ours" in [each["name"] for each in client.client_list()]
    store.run(calls.settle(claim))
    store.close()
    use(source_from_url(url), client)


# -- TLS --------------------------------------------------------------------------------------


@contextlib.contextmanager
def tls_server(certificate: Certificate, clients: str) -> Iterator[RedisServer]:
    tls_port = free_port()
    arguments = ("--tls-port", str(tls_port), *certificate.arguments(clients))
    with RedisServer(*arguments) as server:
        server.tls_port = tls_port
        yield server


@pytest.fixture(scope="module")
def secure(certificate: Certificate) -> Iterator[RedisServer]:
    with tls_server(certificate, "no") as server:
        yield server


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("rediss://localhost:{port}?ssl_ca_certs={ca}", {}),
        ("rediss://127.0.0.1:{port}/0", {"ssl_ca_certs": "{ca}"}),
        ("rediss://localhost:{port}?ssl_cert_reqs=CERT_NONE", {}),
        ("rediss://localhost:{port}?ssl_cert_reqs=none", {}),
        ("rediss://localhost:{port}?ssl_cert_reqs=CERT_REQUIRED&ssl_ca_certs={ca}", {}),
        ("rediss://localhost:{port}", {"ssl_cert_reqs": ssl.CERT_NONE}),
        ("rediss://localhost:{port}", {"ssl_cert_reqs": "CERT_OPTIONAL", "ssl_ca_certs": "{ca}"}),
        # Celery turns TLS on by `broker_use_ssl` and `redis_backend_use_ssl`, whatever the URL.
        ("redis://localhost:{port}/0", {"ssl_ca_certs": "{ca}"}),
        ("redis://localhost:{port}/0?ssl_cert_reqs=none", {}),
    ],
)
def test_a_lock_works_over_tls(secure, certificate, url, options) -> None:
    ca = str(certificate[0])
    options = {name: ca if value == "{ca}" else value for name, value in options.items()}
    url = url.format(port=secure.tls_port, ca=ca)
    use(source_from_url(url, options), secure.client())


def test_a_certificate_that_nobody_known_has_signed_is_refused(secure, label) -> None:
    store = Node(source_from_url(f"rediss://localhost:{secure.tls_port}"))
    with pytest.raises(LockUnavailable, match=r"(?i)certificate"):
        store.run(calls.acquire(make_claim(label, ttl=3)))


def test_a_client_shows_its_certificate_where_the_server_wants_one(certificate) -> None:
    ca, key = (str(path) for path in certificate)
    with tls_server(certificate, "yes") as server:
        url = f"rediss://localhost:{server.tls_port}?ssl_ca_certs={ca}"
        use(source_from_url(f"{url}&ssl_certfile={ca}&ssl_keyfile={key}"), server.client())
        with pytest.raises(LockUnavailable):
            Node(source_from_url(url)).run(calls.acquire(make_claim("uncertified", ttl=3)))


# -- sentinels --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sentinel(redis_server: RedisServer, guarded: RedisServer) -> Iterator[SentinelServer]:
    """A sentinel that knows the shared server as "main" and one with passwords as "guarded"."""
    masters = {"main": redis_server.port, "guarded": guarded.port}
    with SentinelServer(masters) as sentinel:
        yield sentinel


def test_a_redis_lock_works_over_a_sentinels_url(sentinel, client, label) -> None:
    url = f"sentinel://127.0.0.1:{sentinel.port}"
    with pytest.raises(ConfigError, match="RedisLock has it in transport_options"):
        RedisLock(url, label)
    with RedisLock(url, label, ttl=3, transport_options={"master_name": "main"}) as lock:
        assert client.exists(lock.key)


def test_a_lock_works_over_several_sentinels_of_which_one_is_gone(sentinel, client) -> None:
    url = f"sentinel://127.0.0.1:{free_port()}/0;sentinel://127.0.0.1:{sentinel.port}/0"
    use(source_from_url(url, {"master_name": "main"}), client)
    url = f"sentinel://127.0.0.1:{free_port()};127.0.0.1:{sentinel.port}"
    use(source_from_url(url, {"master_name": "main"}), client)


def test_a_sentinel_url_names_database_user_and_password_of_the_master(sentinel, guarded) -> None:
    url = f"sentinel://worker:p%40ss%2Fw%3Ard@127.0.0.1:{sentinel.port}/4"
    with redis.Redis(port=guarded.port, password="p@ss/w:rd", db=4) as client:
        use(source_from_url(url, {"master_name": "guarded"}), client)
        plain = f"sentinel://127.0.0.1:{sentinel.port}"
        options = {"master_name": "guarded", "password": "p@ss/w:rd", "db": 4}
        use(source_from_url(plain, options), client)


def test_options_for_the_sentinels_do_not_undo_the_locks_timeouts(sentinel, client) -> None:
    options = {"master_name": "main", "sentinel_kwargs": {"socket_timeout": 1e-9}}
    use(source_from_url(f"sentinel://127.0.0.1:{sentinel.port}", options), client)


def test_a_master_that_the_sentinels_do_not_know_is_told(sentinel, label) -> None:
    url = f"sentinel://127.0.0.1:{sentinel.port}"
    store = Node(source_from_url(url, {"master_name": "nobody"}))
    with pytest.raises(LockUnavailable, match="nobody"):
        store.run(calls.acquire(make_claim(label, ttl=3)))


def test_a_sentinel_leads_to_a_master_with_tls(secure, certificate) -> None:
    ca = str(certificate[0])
    with SentinelServer({"secure": secure.tls_port}) as sentinel:
        options = {"master_name": "secure", "ssl_ca_certs": ca}
        url = f"sentinel://127.0.0.1:{sentinel.port}"
        use(source_from_url(url, options), secure.client())
        sentinels = Sentinel([("127.0.0.1", sentinel.port)])
        client = sentinels.master_for("secure", ssl=True, ssl_ca_certs=ca)
        use(pools_like(client), secure.client())


def test_after_a_failover_the_lock_is_kept_and_a_later_fence_is_higher(label) -> None:
    with SentinelSet(sentinels=1) as servers:
        store = Node(source_from_url(servers.url, servers.transport_options))
        claim = make_claim(label, ttl=60)
        held = taken(store.run(calls.acquire(claim)))
        replica = servers.replica.client()
        eventually(lambda: replica.exists(claim.keys.lock), "it is replicated")
        servers.kill_master()

        def is_extended() -> bool:
            with contextlib.suppress(LockUnavailable):
                return outcomes(extended(store, extension(claim, held))) == [EXTENDED]
            return False

        eventually(is_extended, "the promoted replica extends the lock")
        with pytest.raises(LockUnavailable, match="no new locks for"):
            store.run(calls.acquire(make_claim(f"{label}2", ttl=60)), hold_off=0)
        assert store.run(calls.settle(claim)).ours

        def taken_again() -> Acquired | None:
            with contextlib.suppress(LockUnavailable):  # a late sentinel knows no master for a time
                return taken(store.run(calls.acquire(make_claim(label, ttl=60))))
            return None

        assert eventually(taken_again, "the lock is free").fence > held.fence
        store.close()


# -- clients ----------------------------------------------------------------------------------


def pooled(kind: type[redis.ConnectionPool], **options: Any) -> redis.Redis:
    return redis.Redis(connection_pool=kind(**options))


#: What makes a client, given `port`, `password` and the socket's `path`.
CLIENTS: dict[str, Callable[[dict[str, Any], str], redis.Redis]] = {
    "plain": lambda at, path: redis.Redis(**at),
    "decoding": lambda at, path: redis.Redis(**at, decode_responses=True),
    "other_encoding": lambda at, path: redis.Redis(**at, encoding="latin-1", decode_responses=True),
    "resp3": lambda at, path: redis.Redis(**at, protocol=3),
    "no_timeouts": lambda at, path: redis.Redis(
        **at, socket_timeout=None, socket_connect_timeout=None
    ),
    "hasty": lambda at, path: redis.Redis(**at, socket_timeout=1e-9, socket_connect_timeout=1e-9),
    "patient": lambda at, path: redis.Redis(
        **at, retry=Retry(ExponentialBackoff(), 100), health_check_interval=1
    ),
    "retries_errors": lambda at, path: redis.Redis(**at, retry_on_error=[redis.ConnectionError]),
    "one_connection": lambda at, path: redis.Redis(
        **at, single_connection_client=True, client_name="mine"
    ),
    "user": lambda at, path: redis.Redis(**at, username="worker"),
    "unix": lambda at, path: redis.Redis(unix_socket_path=path, password=at["password"]),
    "url": lambda at, path: redis.from_url(f"redis://:p%40ss%2Fw%3Ard@127.0.0.1:{at['port']}"),
    "blocking_pool": lambda at, path: pooled(
        redis.BlockingConnectionPool, **at, max_connections=1, timeout=1
    ),
    "small_pool": lambda at, path: pooled(redis.ConnectionPool, **at, max_connections=1),
}


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_lock_works_like_the_client_that_it_is_given_and_leaves_client_and_pool_alone(
    guarded, guarded_client, label, kind
) -> None:
    at = {"port": guarded.port, "password": "p@ss/w:rd"}
    client = CLIENTS[kind](at, str(guarded.socket))
    pool = client.connection_pool
    before = dict(pool.connection_kwargs)

    use(pools_like(client), guarded_client)
    with RedisLock(client, f"{label}-größe", ttl=9) as lock:
        assert guarded_client.exists(lock.key)
        assert lock.extend() is True

    assert client.connection_pool is pool
    assert pool.connection_kwargs == before
    if kind != "hasty":  # that one never worked
        decodes = pool.connection_kwargs.get("decode_responses")
        assert client.echo("x") == ("x" if decodes else b"x")
    client.close()


def test_a_lock_outlives_the_client_that_it_was_made_from(guarded, guarded_client, label) -> None:
    client = redis.Redis(port=guarded.port, password="p@ss/w:rd")
    lock = RedisLock(client, label, ttl=3)
    client.close()
    del client
    gc.collect()
    with lock:
        assert guarded_client.exists(lock.key)


def test_a_lock_works_like_a_sentinels_client(sentinel, client, label) -> None:
    sentinels = Sentinel([("127.0.0.1", free_port()), ("127.0.0.1", sentinel.port)])
    for options in ({}, {"socket_timeout": 1e-9}, {"decode_responses": True}):
        mine = sentinels.master_for("main", **options)
        use(pools_like(mine), client)
    with RedisLock(mine, label, ttl=3) as lock:
        assert client.exists(lock.key)


def test_a_sentinels_own_timeouts_are_left_alone_and_not_used(sentinel, client) -> None:
    slow = Sentinel([("127.0.0.1", sentinel.port)], sentinel_kwargs={"socket_timeout": 1e-9})
    use(pools_like(slow.master_for("main")), client)
    assert slow.sentinel_kwargs == {"socket_timeout": 1e-9}
    assert slow.sentinels[0].connection_pool.connection_kwargs["socket_timeout"] == 1e-9


def test_a_lock_works_like_a_client_with_tls(secure, certificate) -> None:
    ca = str(certificate[0])
    for mine in (
        redis.Redis(port=secure.tls_port, ssl=True, ssl_ca_certs=ca),
        redis.Redis(port=secure.tls_port, ssl=True, ssl_cert_reqs="none"),
        redis.from_url(f"rediss://localhost:{secure.tls_port}?ssl_ca_certs={ca}"),
    ):
        use(pools_like(mine), secure.client())


@pytest.mark.parametrize("given", [None, 5, {}, redis.ConnectionPool(), redis.asyncio.Redis()])
def test_what_is_neither_client_nor_url_is_refused(given) -> None:
    with pytest.raises(ConfigError, match="must be a redis\\.Redis or redis\\.RedisCluster client"):
        RedisLock(given, "name")


@pytest.mark.parametrize("lock", [RedisLock, AsyncRedisLock])
@pytest.mark.parametrize(
    "given", [b"redis://:hidden@host", redis.ConnectionPool(password="hidden"), {"p": "hidden"}]
)
def test_what_is_refused_is_not_shown_since_it_may_have_a_password(lock, given) -> None:
    with pytest.raises(ConfigError) as refused:
        lock(given, "name")
    assert "hidden" not in str(refused.value)
    assert type(given).__name__ in str(refused.value)


def test_a_lock_from_a_url_and_one_from_a_client_are_the_same_lock(redis_server, label) -> None:
    with redis_server.client() as mine:
        by_url, by_client = RedisLock(redis_server.url, label), RedisLock(mine, label)
        with by_url:
            assert by_client.acquire(timeout=0) is False
            assert by_client.holder().fence == by_url.fence
        assert by_client.acquire(timeout=0) is True
        assert by_client.release() is True
