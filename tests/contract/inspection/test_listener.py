"""The listener: what it hears, and what it says of a broker that is away."""

from __future__ import annotations

import contextlib
import logging
import threading

import pytest

from celery_redislock.inspection import listener as listening_to
from celery_redislock.inspection.listener import Listener
from celery_redislock.ops.watch import Rates
from tests.support.looking import make_app
from tests.support.servers import Proxy
from tests.support.waiting import eventually, never


def app_at(broker_url, label):
    """An app that sends and hears nobody else's events."""
    return make_app("redis://localhost", label, broker_url=broker_url, event_exchange=label)


def listening():
    return [each for each in threading.enumerate() if each.name == "redislock-listener"]


@pytest.fixture(params=["redis_server", "rabbitmq"])
def broker(request):
    """A real broker, behind a proxy that can be cut off."""
    server = request.getfixturevalue(request.param)
    with Proxy(server.port) as proxy:
        proxy.server_url = server.url
        yield proxy


@pytest.fixture
def types():
    """The types of the events that were heard."""
    return []


@pytest.fixture
def listener(broker, label, types, monkeypatch):
    monkeypatch.setattr(listening_to, "RETRY_EVERY", 0.1)
    app = app_at(broker.in_front_of(broker.server_url), label)
    listener = Listener(app, lambda event: types.append(event["type"]))
    yield listener
    listener.close()
    eventually(lambda: not listening(), "it has ended")


@pytest.fixture
def cut_off(broker):
    broker.cut_off()


@pytest.fixture
def hears(broker, label, types):
    """Sends events of a type, past the proxy, until one is heard."""
    with (
        app_at(broker.server_url, label) as app,
        app.connection_for_write() as connection,
        app.events.Dispatcher(connection) as events,
    ):

        def hears(kind):
            def is_heard():
                events.send(kind, uuid="x")
                return kind in types

            types.clear()
            return eventually(is_heard, f"{kind} is heard")

        yield hears


def test_a_broker_that_is_away_is_said_and_forgotten_once_it_is_back(
    broker, cut_off, listener, hears, caplog
):
    caplog.set_level(logging.WARNING)
    away = "no events: OperationalError: "
    eventually(lambda: listener.trouble.startswith(away), "it is away at the start")
    broker.reconnect()
    eventually(lambda: not listener.trouble, "it is back, without any event")
    assert not listener.any
    assert hears("task-lock-skipped")
    broker.cut_off()
    eventually(lambda: listener.trouble, "it went away")
    broker.reconnect()
    eventually(lambda: not listener.trouble, "it is back again")
    assert hears("task-lock-lost")
    assert caplog.messages == [], "or they would be written over the table of `watch`"


def test_a_broker_that_never_answers_is_said(broker, label):
    broker.to_client.block()
    with contextlib.closing(
        Listener(app_at(broker.in_front_of(broker.server_url), label), print)
    ) as listener:
        never(lambda: not listener.trouble, "it is taken for connected", 1.5)
        broker.to_client.unblock()
        eventually(lambda: not listener.trouble, "it answers")
    eventually(lambda: not listening(), "it has ended")


def test_only_what_workers_tell_of_tasks_shows_that_they_send_events(listener, hears):
    for kind in ("worker-heartbeat", "task-sent"):
        assert hears(kind)
    assert not listener.any
    assert hears("task-started")
    assert listener.any


@pytest.mark.parametrize("broker_is", ["there", "away"])
def test_it_ends_soon_after_it_was_closed(broker, listener, broker_is):
    if broker_is == "away":
        broker.cut_off()
        eventually(lambda: "OperationalError" in listener.trouble, "it is away")
    else:
        eventually(lambda: not listener.trouble, "it listens")
    assert listening()
    listener.close()
    eventually(lambda: not listening(), "it ends")


def test_the_live_table_counts_conflicts_and_lost_locks(label):
    rates = Rates(make_app("redis://localhost", label))
    with contextlib.closing(rates.listener):
        for kind in ("skipped", "deferred", "acquired", "recovered", "revoked", "lost"):
            rates._count({"type": f"task-lock-{kind}"})
        rates._count({"type": "task-sent"})
        taken = rates.since_last()
        assert taken["conflicts"] == 2 * taken["lost"] > 0
        assert rates.since_last()["conflicts"] == 0
