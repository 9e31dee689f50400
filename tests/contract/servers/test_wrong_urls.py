"""A URL that names a server, but not as it is: errors, the log and `doctor` say what to look at."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator

import pytest
import redis

from celery_redislock import AsyncRedisLock, LockUnavailable, RedisLock
from tests.support.looking import make_app, run
from tests.support.servers import RedisServer, SentinelServer, free_port
from tests.support.tls import Certificate
from tests.support.waiting import eventually

#: Of the lock: the shortest timeouts.
TTL = 0.6


@pytest.fixture(scope="module")
def two_ports(certificate: Certificate) -> Iterator[dict[str, int]]:
    """The ports of one server, with TLS and without."""
    port = free_port()
    with RedisServer("--tls-port", str(port), *certificate.arguments("no")) as server:
        yield {"TLS": port, "plain": server.port}


def reasons_at(url: str) -> list[str]:
    """What a lock, one for coroutines, and `doctor` say of this URL."""

    async def take() -> None:
        await AsyncRedisLock(url, "x", TTL).acquire(timeout=0)

    with pytest.raises(LockUnavailable) as refused:
        RedisLock(url, "x", TTL).acquire(timeout=0)
    with pytest.raises(LockUnavailable) as refused_async:
        asyncio.run(take())
    with make_app(url, "wrong") as app:
        found = json.loads(run(app, "doctor", "--json").stdout)
    told = [each["what"] for each in found if each["check"] == "server"]
    return [str(refused.value), str(refused_async.value), *told]


@pytest.mark.parametrize("kind", ["", "+cluster"])
@pytest.mark.parametrize(
    ("scheme", "port", "hint"),
    [
        ("rediss", "plain", "the URL asks for TLS: does this port speak it?"),
        ("redis", "TLS", "the URL does not ask for TLS: does this port want it?"),
    ],
)
def test_only_one_side_speaks_tls(two_ports, scheme, port, hint, kind) -> None:
    reasons = reasons_at(f"{scheme}{kind}://localhost:{two_ports[port]}")
    assert len(reasons) == 3
    assert [each for each in reasons if not each.endswith(f"; {hint}")] == []


def test_a_port_that_nobody_has_is_no_matter_of_tls() -> None:
    reasons = reasons_at(f"redis://localhost:{free_port()}")
    assert [each for each in reasons if "TLS" in each] == []


def pings(client: redis.Redis) -> bool:
    with contextlib.suppress(redis.ConnectionError):
        return bool(client.ping())
    return False


def test_a_server_that_takes_no_more_clients_is_no_matter_of_tls() -> None:
    with RedisServer("--maxclients", "1") as server, redis.Redis(port=server.port) as client:
        eventually(lambda: pings(client), "the connection that saw the server begin is closed")
        with pytest.raises(LockUnavailable, match=r"max number of clients reached$"):
            RedisLock(f"redis://localhost:{server.port}", "x", TTL).acquire(timeout=0)


def test_the_sentinels_do_not_know_the_masters_name(redis_server) -> None:
    with SentinelServer({"there": redis_server.port}) as sentinel:
        hosts = f"127.0.0.1:{sentinel.port}"
        for each in reasons_at(f"redis+sentinel://{hosts}/nobody"):
            assert each.endswith(
                "No master found for 'nobody'; the sentinels watch no master of that name, or it is"
                " down"
            )
        for each in reasons_at(f"redis+sentinel://{hosts},127.0.0.1:{free_port()}/nobody"):
            assert each.endswith(
                "No master found for 'nobody'; not all sentinels answer, and those that do watch no"
                " master of that name, or it is down"
            )
