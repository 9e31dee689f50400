"""What is said of where the locks are: enough to find the server, and no password."""

from __future__ import annotations

import pytest
import redis
from redis.sentinel import Sentinel

from celery_redislock import ConfigError
from celery_redislock.servers.address import address_of
from celery_redislock.servers.connections import pools_like
from celery_redislock.servers.urls import source_from_url

MASTER = {"master_name": "mymaster"}
TWO = "sentinel://one:26379;two:26379/0 master 'mymaster'"
ONE = "sentinel://one:26379/0 master 'mymaster'"


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
        # What asks for TLS gets it.
        ("redis://cache?ssl=true", {}, "rediss://cache:6379/0"),
        ("redis://cache?ssl=false", {}, "redis://cache:6379/0"),
        ("redis://cache?ssl_ocsp_expected_cert=x", {}, "rediss://cache:6379/0"),
        ("redis+cluster://one,two?ssl=1", {}, "rediss+cluster://one:6379,two:6379"),
        ("sentinel://one;two?ssl=true", MASTER, f"{TWO} with TLS"),
        ("redis+sentinel://one,two/mymaster/0?ssl=true", {}, f"{TWO} with TLS"),
        ("redis+sentinel://one/mymaster?ssl_cert_reqs=none", {}, f"{ONE} with TLS"),
        ("redis+sentinel://one/mymaster?db=3", {}, ONE.replace("/0", "/3")),
        ("rediss+sentinel://one/my%6daster", {}, f"{ONE} with TLS"),
        ("redis+sentinel://user:secret@one,TWO:26379/mymaster/0", {}, TWO),
        # Valkey's names.
        ("valkey://:secret@cache/2", {}, "redis://cache:6379/2"),
        ("valkeys://cache", {}, "rediss://cache:6379/0"),
        ("valkeys+cluster://one,two", {}, "rediss+cluster://one:6379,two:6379"),
        ("valkey+sentinel://one/mymaster", {}, ONE),
        ("redlock://:a@one,:b@two,THREE:06379", {}, "redlock://one:6379/0,two:6379/0,three:6379/0"),
    ],
)  # fmt: skip
def test_a_url_and_options_are_told_without_user_and_password(url, options, expected):
    assert address_of(source_from_url(url, options)) == expected


@pytest.mark.parametrize(
    ("url", "options", "reason"),
    [
        ("redis://host", {"socket_timeout": 5}, "unknown option 'socket_timeout'. Accepted: "),
        ("redis://host:port", {}, "a port must be a number"),
        ("redis://host?db=five", {}, "db"),
        ("redis://host/five", {}, "database 'five' must be a number"),
        ("rediss://host?ssl_cert_reqs=sometimes", {}, "sometimes"),
        ("unix:///run/redis.sock", {"ssl_ca_certs": "/ca"}, "ssl_ca_certs"),
        ("sentinel://host", {}, "needs 'master_name'"),
        ("sentinel://host", {"master_name": ""}, "needs 'master_name'"),
        ("sentinel://host:port", {"master_name": "m"}, "a port must be a number"),
        ("sentinel://host", {"master_name": "m", "sentinel_kwargs": 5}, "must be a dict"),
        ("sentinel://host", {"master_name": "m", "sentinel_kwargs": {"hots": 5}}, "hots"),
        ("http://host", {}, "http is not accepted"),
        ("host:6379", {}, "a str that is not a URL"),
        (None, {}, "a NoneType that is not a URL"),
        ("redis+cluster://a:6379,b/1", {}, "database '1': a cluster has only database 0"),
        ("redis+cluster://a", {"db": 1}, "'db' does not fit a cluster"),
        ("redis+cluster://a", {"master_name": "x"}, "'master_name' does not fit a cluster"),
        ("redis+sentinel://a,b", {}, "needs the name that the sentinels have"),
        ("redis+sentinel://a,b/x", {"master_name": "y"}, "is not the 'x' of redislock_url"),
        ("redis+sentinel://a,b/x/y", {}, "database 'y' must be a number"),
        ("redlock://a,b", {}, "at least three different servers"),
        ("redlock://a,b,c/x", {}, "database 'x' must be a number"),
        ("redlock://a,b,c", MASTER, "'master_name' does not fit a quorum"),
        ("redlock://a,b,a", {}, "a:6379 is named twice"),
        ("redlock://a:7,b,a:07", {}, "a:7 is named twice"),
        ("redlock://a,b,a.", {}, "a:6379 is named twice"),
        ("redlock://[::1],[0:0::1],b", {}, r"\[::1\]:6379 is named twice"),
        ("redis+sentinel:///mymaster", {}, "a host is missing"),
        ("sentinel://a;;b", MASTER, "a host is missing"),
        ("redis+sentinel://a/mymaster?tls=on", {}, "unknown option 'tls'.*Accepted: .* ssl,"),
        ("redis+sentinel://a/mymaster?ssl=maybe", {}, "ssl must be true or false"),
        ("rediss+sentinel://a/mymaster?ssl=false", {}, "does not fit"),
        ("unix:///run/redis.sock?ssl=true", {}, "does not fit unix://"),
        ("redis://a?credential_provider=x", {}, "set credential_provider in"),
        ("redis+sentinel://:a@one,:b@two/mymaster", {}, "must have one user and password"),
        ("sentinel://:a@one;sentinel://:b@two", MASTER, "more than one password"),
        ("sentinel://one/1;sentinel://two/2", MASTER, "more than one db"),
    ],
)  # fmt: skip
def test_what_is_no_good_or_would_be_dropped_is_refused_at_once(url, options, reason):
    with pytest.raises(ConfigError, match=reason):
        source_from_url(url, options)


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
