"""The page's bounds: how long a silent connection and an old look are kept; what is told of a
look that fails or comes too late; and which queues nobody reads, as RabbitMQ and the workers tell.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import sys
import time

import pytest

from celery_redislock.inspection.locks import snapshot
from celery_redislock.inspection.queues import in_queues
from celery_redislock.web import actions, hub, look, serve
from tests.support.looking import client_of, end, make_app, run, take
from tests.support.site import TOKEN, Site, messages
from tests.support.waiting import eventually


class Commanded(Site):
    """The page as the command serves it."""

    server = staticmethod(serve.server_of)


@pytest.fixture
def app(redis_server, label):
    return make_app(redis_server.url, label)


@pytest.fixture
def site(app):
    with Site(app) as site:
        yield site


def test_a_look_that_takes_its_time_tells_no_lease_again(app, monkeypatch):
    def slowly(*arguments):
        found = snapshot(*arguments)
        time.sleep(0.5)  # the machine is late
        return found

    take(app, "sync", "one")
    rows = look.rows_of(look.look(app), lambda slot: None, {})
    monkeypatch.setattr(look, "snapshot", slowly)
    assert look.rows_of(look.look(app), lambda slot: None, rows) == rows


@pytest.mark.parametrize("sent", [b"", b"GET /api/locks HTTP/1.1\r\nHost: loc"])
def test_a_connection_that_asks_for_nothing_is_closed(app, monkeypatch, sent):
    monkeypatch.setattr(serve, "SILENT", 0.4)
    with Commanded(app) as site:
        told = messages(site)
        next(told)
        with socket.create_connection(("127.0.0.1", site.port), timeout=20) as idle:
            idle.sendall(sent)
            assert idle.recv(1) == b"", "it is closed"
        assert next(told), "one that is served is not"
        told.close()


def test_a_connection_that_asks_now_and_then_is_not_closed(app, monkeypatch):
    monkeypatch.setattr(serve, "SILENT", 2.0)
    with (
        Commanded(app) as site,
        contextlib.closing(http.client.HTTPConnection("127.0.0.1", site.port, 20)) as asking,
    ):
        asking.connect()
        first = asking.sock
        for _ in range(8):
            time.sleep(0.6)  # less than half of what is silence
            asking.request("GET", "/static/icon.svg")
            assert asking.getresponse().read()
            assert asking.sock is first, "the same connection"


def test_a_history_that_cannot_be_read_at_first_is_read_later(own_redis, label):
    owner = make_app(own_redis.url, label)
    end(owner, take(owner, "sync", "x", history=True), "failed", took=0.1)
    denied = "-zrangebyscore"
    with own_redis.client() as client:
        client.acl_setuser("some", True, passwords="+pw", keys="*", commands=["+@all", denied])
        with Site(make_app(own_redis.url.replace("://", "://some:pw@"), label)) as site:
            told = messages(site)
            first = next(told)
            assert (first["trouble"], first["runs"], first["away"]) == ("", [], None)
            assert first["forgetful"].startswith("no history: ")
            client.execute_command("ACL", "SETUSER", "some", denied.replace("-", "+"))
            (run,) = next(each["runs"] for each in told if not each["forgetful"] and each["runs"])
            assert (run["task_id"], run["how"]) == ("id-of-x", "failed")
            told.close()


def test_a_look_that_fails_is_told_and_the_next_one_shows_the_locks(app, site, monkeypatch, caplog):
    def fails(*arguments):
        raise OSError("no way")

    caplog.set_level("DEBUG", "celery_redislock")
    told = messages(site)
    with monkeypatch.context() as patch:
        patch.setattr(hub, "in_queues", fails)
        assert next(told)["trouble"] == "", "without the broker the locks are shown"
        said = "who reads the queues is not known: OSError('no way')"
        eventually(lambda: said in caplog.text, "it is logged")
        patch.setattr(hub, "look", fails)
        said = "the page cannot show the locks: OSError: no way"
        eventually(lambda: next(told)["trouble"] == said, "it is told")
    eventually(lambda: next(told)["trouble"] == "", "it looks again")
    told.close()


def test_a_lock_that_is_freed_just_before_it_is_broken_is_not_said_to_be_broken(app, monkeypatch):
    made, lock = take(app, "sync", "x"), actions.lock

    def frees(*arguments):
        found = lock(*arguments)
        client_of(app).delete(made.key)
        return found

    with Site(app, TOKEN) as site:
        (shown,) = site.lock(key=made.key)["locks"]
        monkeypatch.setattr(actions, "lock", frees)
        answer = site.order({"key": made.key, "holder": shown["holder"]}, TOKEN)
    assert (answer.status_code, "not broken" in answer.text) == (409, True)


def test_the_command_says_who_can_read_the_page_and_what_it_needs(app, monkeypatch):
    monkeypatch.setattr(serve, "serve", lambda page, listening: listening.close())
    given = ("--host", "0.0.0.0", "--port", "0", "--allow-break", "--token", TOKEN)
    said = run(app, "web", *given).output
    assert "\nBreaking locks needs the token\n" in said
    assert "\nEverybody who reaches this address can read the page\n" in said
    assert TOKEN not in said
    monkeypatch.setitem(sys.modules, serve.__name__, None)
    lacks = "Error: web needs a server: pip install 'celery-redislock[web]'\n"
    assert run(app, "web").output == lacks


def test_a_queue_that_rabbitmq_knows_a_consumer_of_is_read(rabbitmq, redis_server, label):
    app = make_app(redis_server.url, label, broker_url=rabbitmq.url)
    own, other = f"own-{label}", f"other-{label}"
    app.conf.task_routes = {"unique": {"queue": f"gone-{label}"}}
    app.tasks["unique"].apply_async(("1",), queue=own)
    app.tasks["unique"].apply_async(("2",), queue=other)
    app.tasks["unique"].delay("3")
    with app.connection_for_write() as connection, connection.channel() as channel:
        channel.queue_delete(f"gone-{label}")
        found = snapshot(app)

        def told(later=60.0):
            seen = [each for each in in_queues(app, found, time.time() + later) if not each.is_read]
            assert all(each.messages == 1 for each in seen)
            return [(each.task, each.queue, each.is_named, each.count) for each in seen]

        assert told() == [("unique", other, True, 1), ("unique", own, True, 1)]
        assert told(later=0.0) == [], "they have just been sent"
        app.amqp.queues[own](channel).consume(
            callback=None
        )  # as a busy worker that does not answer
        assert told() == [("unique", other, True, 1)]
