"""What is said of where the locks are: enough to find the server, and no password."""

from __future__ import annotations

import pytest
import redis
from redis.sentinel import Sentinel

from celery_redislock.servers.address import address_of
from celery_redislock.servers.connections import pools_like
from celery_redislock.servers.urls import source_from_url

MASTER = {"master_name": "mymaster"}


@pytest.mark.parametrize(
    ("url", "options", "expected"),
    [
        ("redis://", {}, "redis://localhost:6379/0"),
        ("redis://user:secret@cache:6380/3", {}, "redis://cache:6380/3"),
        ("redis://secret@cache", {}, "redis://cache:6379/0"),
        ("redis://cache", {"db": 4, "password": "secret", "username": "secret"}, "redis://cache:6379/4"),
        ("redis://cache/?password=secret&db=2", {}, "redis://cache:6379/2"),
        ("redis://[::1]:6380", {}, "redis://[::1]:6380/0"),
        ("rediss://:secret@cache/1", {}, "rediss://cache:6379/1"),
        ("redis://cache", {"ssl_cert_reqs": "none"}, "rediss://cache:6379/0"),
        ("unix:///run/redis.sock", {}, "unix:///run/redis.sock?db=0"),
        ("redis+socket://:secret@/run/redis.sock?virtual_host=5", {}, "unix:///run/redis.sock?db=5"),
        (
            "sentinel://:secret@one;sentinel://two:26380/2",
            {**MASTER, "sentinel_kwargs": {"password": "secret"}},
            "sentinel://one:26379;two:26380/2 master 'mymaster'",
        ),
        (
            "sentinel://one",
            {**MASTER, "ssl_ca_certs": "/ca.pem"},
            "sentinel://one:26379/0 master 'mymaster' with TLS",
        ),
        ("redis://a\x1bhost", {}, "redis://a\\x1bhost:6379/0"),
    ],
)  # fmt: skip
def test_a_url_and_options_are_told_without_user_and_password(url, options, expected):
    assert address_of(source_from_url(url, options)) == expected


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        (redis.Redis(host="cache", db=2, password="secret"), "redis://cache:6379/2"),
        (redis.Redis(unix_socket_path="/run/redis.sock"), "unix:///run/redis.sock?db=0"),
        (
            Sentinel([("one", 26379)]).master_for("mymaster", db=1, password="secret"),
            "sentinel://one:26379/1 master 'mymaster'",
        ),
    ],
)
def test_so_is_the_server_of_a_client(client, expected):
    assert address_of(pools_like(client)) == expected
