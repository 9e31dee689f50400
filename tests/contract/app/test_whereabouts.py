"""What servers of each kind tell of where they are."""

from __future__ import annotations

import pytest

from celery_redislock.app.settings import app_locks
from celery_redislock.app.whereabouts import are_together, whereabouts
from tests.support.clusters import url_of_quorum
from tests.support.servers import SentinelSet, free_port


@pytest.fixture
def tells(make_app):
    """What an app with these settings tells."""

    def tells(url, options=None, **settings):
        more = {"redislock_transport_options": options or {}}
        return whereabouts(app_locks(make_app(redislock_url=url, **more, **settings)))

    return tells


def test_one_server_is_the_same_by_each_name(redis_server, tells):
    url = redis_server.url
    one = tells(f"{url}/0")
    for other in (url.replace("127.0.0.1", "localhost"), f"{url}?db=0", f"{url}/0"):
        assert are_together(one, tells(other)), other
    for other in (f"{url}/5", f"{url}?db=5"):
        assert are_together(one, tells(other)) is False
    assert are_together(one, tells(url, {"db": 5})) is False
    assert are_together(one, tells(url, redislock_prefix="other")) is False
    in_broker = {"broker_transport_options": {"global_keyprefix": "shop-"}}
    assert are_together(one, tells(url, **in_broker)) is False
    assert are_together(tells(url, redislock_prefix="shop-redislock"), tells(url, **in_broker))


def test_no_password_is_told(own_redis, tells):
    with own_redis.client() as client:
        client.config_set("requirepass", "s3cret")
    with_password = tells(own_redis.url.replace("://", "://:s3cret@"))
    assert "s3cret" not in str(with_password)
    denied = tells(own_redis.url)  # it is refused, and tells no id
    assert (bool(with_password["ids"]), denied["ids"]) == (True, [])
    assert are_together(with_password, denied), "by its address"


def test_a_cluster_is_the_same_from_each_seed(cluster, redis_server, tells):
    scheme, _, hosts = cluster.url.partition("://")
    first, *_, last = hosts.split(",")
    one, other = tells(f"{scheme}://{first}"), tells(f"{scheme}://{last}")
    assert len(one["ids"]) > 1
    assert are_together(one, other)
    assert are_together(one, tells(redis_server.url)) is False


def test_sentinels_name_one_master(redis_server, tells):
    with SentinelSet() as servers:
        one = tells(servers.url, servers.transport_options)
        last = servers.url.rpartition(";")[2]
        assert are_together(one, tells(last, servers.transport_options))
        assert are_together(one, tells(servers.master.url)), "asked without sentinels"
        assert are_together(one, tells(servers.replica.url)) is False


def test_independent_servers_must_be_the_same_ones(three_servers, own_redis, tells):
    one = tells(url_of_quorum(three_servers))
    assert are_together(one, tells(url_of_quorum(three_servers[::-1])))
    assert are_together(one, tells(url_of_quorum([*three_servers[:2], own_redis]))) is False
    assert are_together(one, tells(three_servers[0].url)) is False


def test_a_server_that_is_away_is_told_by_its_address(tells):
    url = f"redis://127.0.0.1:{free_port()}"
    assert tells(url)["ids"] == []
    assert are_together(tells(url), tells(url))
    assert are_together(tells(url), tells(f"{url}/1")) is None
