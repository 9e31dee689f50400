"""A hold reaches all buckets of every kind of lock server."""

from __future__ import annotations

import pytest

from celery_redislock.protocol import calls, holds
from celery_redislock.protocol.claims import Acquired
from celery_redislock.protocol.keys import in_all_buckets, lock_keys
from celery_redislock.servers.factory import server_at
from celery_redislock.servers.server import Server
from celery_redislock.servers.urls import source_from_url
from tests.contract.claims import busy, make_claim
from tests.support.clusters import url_of_quorum

TTL = 12.0


def hold_and_end(store: Server, label: str) -> None:
    glob, keys = f"{label}*", in_all_buckets("redislock", "holds")
    hold = [holds.hold(key, TTL, None, glob, 60, "anna", "why") for key in keys]
    assert {each.target for each in store.run_all(hold, ttl=TTL)} == {f"lock {glob}"}
    claims = [make_claim(f"{label}{number}") for number in range(8)]
    try:
        for claim in claims:
            met = busy(store.run(calls.acquire(claim))).holder
            assert met is not None
            assert (met.on_hold, met.node, met.description) == (True, "anna", "why")
        assert isinstance(store.run(calls.acquire(make_claim(f"other-{label}"))), Acquired)
    finally:
        store.run_all([holds.end(key, TTL, None, glob) for key in keys], ttl=TTL)
    for claim in claims:
        keys_of = lock_keys("redislock", claim.keys.name, 1)
        store.run(calls.free_of_hold(keys_of, TTL, holds.opening_of(None, glob)))
        assert isinstance(store.run(calls.acquire(claim)), Acquired)
        assert store.run(calls.settle(claim)).ours


def test_a_hold_is_in_all_buckets_until_it_is_ended(store: Server, label: str) -> None:
    hold_and_end(store, label)


@pytest.mark.parametrize("away", [None, 0, 2])
def test_a_hold_is_in_a_majority_of_independent_servers(three_servers, label, away) -> None:
    store = server_at(source_from_url(url_of_quorum(three_servers)))
    if away is not None:
        three_servers[away].kill()
    try:
        hold_and_end(store, label)
    finally:
        store.close()
