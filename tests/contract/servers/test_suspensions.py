"""A suspension reaches all buckets of every kind of lock server."""

from __future__ import annotations

import pytest

from celery_redislock.protocol import calls
from celery_redislock.protocol.claims import Acquired
from celery_redislock.protocol.keys import in_all_buckets
from celery_redislock.protocol.suspensions import Suspension
from celery_redislock.servers.factory import server_at
from celery_redislock.servers.server import Server
from celery_redislock.servers.urls import source_from_url
from tests.contract.claims import busy, make_claim
from tests.support.clusters import url_of_quorum

TTL = 12.0


def suspend_and_resume(store: Server, label: str) -> None:
    task = f"pkg.{label}"
    what = Suspension(task=task, by="anna", why="why")

    def order(seconds: float) -> list[Suspension | None]:
        lists, rooms = (
            store.joint(in_all_buckets("redislock", kind)) for kind in ("suspended", "rooms")
        )
        made = [calls.suspend(*keys, what, seconds) for keys in zip(lists, rooms, strict=True)]
        return store.run_all(made, ttl=TTL)

    assert {each.target for each in order(60)} == {f"task {task}"}
    claims = [make_claim(f"{label}{number}", task=task) for number in range(8)]
    try:
        for claim in claims:
            met = busy(store.run(calls.acquire(claim)))
            assert met.suspension is not None
            assert (met.suspension.by, met.suspension.why) == ("anna", "why")
        assert isinstance(store.run(calls.acquire(make_claim(f"other-{label}"))), Acquired)
    finally:
        assert {each.target for each in order(0)} == {f"task {task}"}
    for claim in claims:
        assert isinstance(store.run(calls.acquire(claim)), Acquired)
        assert store.run(calls.settle(claim)).ours


def test_it_is_in_all_buckets_until_it_is_ended(store: Server, label: str) -> None:
    suspend_and_resume(store, label)


@pytest.mark.parametrize("away", [None, 0, 2])
def test_it_is_in_a_majority_of_independent_servers(three_servers, label, away) -> None:
    store = server_at(source_from_url(url_of_quorum(three_servers)))
    if away is not None:
        three_servers[away].kill()
    try:
        suspend_and_resume(store, label)
    finally:
        store.close()
