"""What all viewers of the page share: one look back, and one listener while somebody watches."""

from __future__ import annotations

import dataclasses
import threading
import time

import pytest

from celery_redislock.ops.web import hub
from celery_redislock.protocol import calls, past
from tests.support.looking import claim, make_app
from tests.support.servers import free_port
from tests.support.site import Site, messages
from tests.support.waiting import eventually


def test_a_history_that_cannot_be_read_at_first_is_read_from_its_beginning_later(
    own_redis, label, monkeypatch
):
    monkeypatch.setattr(hub, "LOOK_BACK", 0.2)
    owner = make_app(own_redis.url, label)
    store = owner.tasks["sync"].app_locks.server
    made = dataclasses.replace(claim(owner, "sync", "x"), task="sync", history=50)
    fence = store.run(calls.acquire(made)).fence
    ended = calls.Release(run_end=past.end_text(fence, 0.1, past.FAILED))
    store.run(calls.settle(made, ended))
    time.sleep(0.6)  # it ended longer ago than the page looks back from the last moment known
    denied = "-zrangebyscore"
    with own_redis.client() as client:
        client.acl_setuser("some", True, passwords="+pw", keys="*", commands=["+@all", denied])
        with Site(make_app(own_redis.url.replace("://", "://some:pw@"), label)) as site:
            told = messages(site)
            first = next(told)
            assert (first["trouble"], first["past"]) == ("", [])
            assert first["forgetful"].startswith("no history: ")
            client.execute_command("ACL", "SETUSER", "some", denied.replace("-", "+"))
            (run,) = next(each["past"] for each in told if not each["forgetful"])
            assert (run["task_id"], run["how"]) == ("id-of-x", "failed")
            told.close()


def test_a_broker_that_is_away_is_said_and_forgotten_once_it_is_back(redis_server, proxy, label):
    proxy.cut_off()
    with Site(make_app(redis_server.url, label, broker_url=f"{proxy.url}/4")) as site:
        told = (each["events"] for each in messages(site))
        assert next(each for each in told if each["trouble"].startswith("no events: Operational"))
        proxy.reconnect()
        assert next(each for each in told if not each["trouble"])["any"] is False
        proxy.cut_off()
        assert next(each for each in told if each["trouble"])
        told.close()


@pytest.mark.parametrize("broker", ["there", "away"])
def test_it_listens_for_events_only_while_somebody_watches(
    redis_server, label, monkeypatch, broker
):
    before = set(threading.enumerate())  # those of other tests may be about to end

    def listening():
        new = set(threading.enumerate()) - before
        return [each for each in new if each.name == "redislock-ear"]

    monkeypatch.setattr(hub, "LINGER", 0.1)
    port = redis_server.port if broker == "there" else free_port()
    with Site(make_app(redis_server.url, label, broker_url=f"redis://127.0.0.1:{port}/4")) as site:
        for _ in range(2):
            viewers = [messages(site) for _ in range(2)]
            for told in viewers:
                assert next(told)["all"]
            assert len(listening()) == 1, "for both"
            for told in viewers:
                told.close()
            eventually(lambda: not listening(), "nobody watches, and nobody listens")
