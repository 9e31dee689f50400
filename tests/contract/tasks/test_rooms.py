"""Waiting rooms that no worker looks after: what whoever comes makes of them."""

from __future__ import annotations

import contextlib
import json
from datetime import datetime, timedelta, timezone

from celery_redislock import LockUnavailable, SingletonTask
from celery_redislock.app.entries import Entry
from celery_redislock.app.housekeeper import housekeeper
from celery_redislock.app.settings import app_locks
from celery_redislock.protocol import calls, holders, rooms
from celery_redislock.protocol.claims import Acquired, Claim, Done, Parking
from celery_redislock.protocol.keys import lock_keys
from celery_redislock.protocol.tokens import new_token
from celery_redislock.servers.server import Server
from celery_redislock.tasks.room import look_after
from celery_redislock.worker.sweeper import Sweeper
from tests.contract.clocks import clock
from tests.support.workers import make_app

LOCKS = ("redis", "cluster")


def ago(seconds):
    return (datetime.now(timezone.utc) - timedelta(seconds=seconds)).isoformat()


def park(app, client, task, label, task_id, **options):
    """A call that waited for a run, which ends. Returns the lock's keys and the entry's name."""
    keys = task.lock_keys_for([label], {})
    headers = {"redislock": {"parked_at": 1.0}}
    entry = Entry.of(task, [label], {}, {"task_id": task_id, "headers": headers, **options})
    claim = Claim(keys, new_token(), 5.0, "", task_id)
    client.set(keys.lock, "held")
    app_locks(app).server.run(rooms.park(claim, Parking(entry.dump(), claim.entry_id)))
    client.delete(keys.lock)
    return keys, claim.entry_id


def test_who_has_expired_in_the_room_is_not_published_and_the_next_has_its_turn(
    conf, client, redis_server, queue, label, monkeypatch, caplog
):
    """RabbitMQ drops a message that expires before somebody gets it, and nobody would know."""
    with make_app(conf) as app:

        @app.task(base=SingletonTask, name="expires_in_the_room", lock_key="{label}")
        def task(label):
            """Never runs."""

        keys = task.lock_keys_for([label], {})
        for task_id, expires in ((f"{label}-1", ago(1)), (f"{label}-2", None)):
            park(app, client, task, label, task_id, queue=queue, expires=expires)
        outage = (clock() - 3600.0, clock())  # an hour: the tasks above may have been parked slowly
        monkeypatch.setattr(type(app_locks(app).server), "outage", outage)
        look_after(app, keys, 5.0)
        assert app.AsyncResult(f"{label}-1").state == "REVOKED"
        assert f"[{label}-1] ends as expired without a run: the lock server was away" in caplog.text
        token = new_token()
        copy = Claim(keys, token, 5.0, holders.encode(token, ttl_ms=5000), f"{label}-1")
        reply = app_locks(app).server.run(calls.acquire(copy))
        assert isinstance(reply, Done), "a message that was published before may yet come"
        assert client.lrange(keys.room, 0, -1) == [f"{label}-2:0.0"]
        with redis_server.client(db=1) as broker:
            (message,) = broker.lrange(queue, 0, -1)
            assert f"{label}-2" in message
            broker.delete(queue)
        client.delete(keys.room, keys.entries)
        client.zrem(keys.rooms, keys.lock_id)  # it has other rooms of the bucket, too


def test_one_whose_message_was_lost_is_published_again_also_where_no_results_are_stored(
    conf, client, redis_server, queue, label
):
    with make_app({**conf, "result_backend": None}) as app:

        @app.task(base=SingletonTask, name="stores_nothing", lock_key="{label}")
        def task(label):
            """Never runs."""

        keys, entry_id = park(app, client, task, label, label, queue=queue)
        with redis_server.client(db=1) as broker:
            for published in (1, 2):
                look_after(app, keys, 5.0)
                assert broker.llen(queue) == published
                client.zincrby(keys.sent, -20_000, entry_id)
                client.hset(keys.entries, f"#{entry_id}", f"2|||{entry_id}")
            broker.delete(queue)
        client.delete(keys.room, keys.entries, keys.sent)
        client.zrem(keys.rooms, keys.lock_id)


def test_what_no_worker_takes_ends_after_a_while(conf, client, redis_server, queue, label, caplog):
    with make_app({**conf, "redislock_offer_for": 60}) as app, redis_server.client(db=1) as broker:

        @app.task(base=SingletonTask, name="taken_by_nobody", lock_key="{label}")
        def task(label):
            """Never runs."""

        keys, entry_id = park(app, client, task, label, label, queue=queue)
        look_after(app, keys, 5.0)
        assert broker.llen(queue) == 1
        client.zincrby(keys.sent, -70_000, entry_id)
        look_after(app, keys, 5.0)
        assert app.AsyncResult(label).state == "REVOKED"
        assert not client.exists(keys.room, keys.entries, keys.sent)
        (said,) = [each for each in caplog.records if each.levelname == "ERROR"]
        assert "no worker has taken it for 60 s (redislock_offer_for)" in said.getMessage()
        broker.delete(queue)


def test_an_outage_as_a_task_that_expired_is_to_leave_the_room_is_no_error(
    conf, client, label, monkeypatch, caplog
):
    run = Server.run

    def fails(server, call, **options):
        if call.script == "settle":
            raise LockUnavailable(None, None, "no answer")
        return run(server, call, **options)

    with make_app(conf) as app:

        @app.task(base=SingletonTask, name="expires_in_an_outage", lock_key="{label}")
        def task(label):
            """Never runs."""

        keys, _ = park(app, client, task, label, label, queue="q", expires=ago(1))
        monkeypatch.setattr(Server, "run", fails)
        look_after(app, keys, 5.0)
        assert caplog.messages == [f"redislock: could not hand over {keys.lock} yet: no answer"]
        client.delete(keys.room, keys.entries, keys.sent)
        client.zrem(keys.rooms, keys.lock_id)


def test_two_that_are_for_others_to_publish_are_left_to_them(conf, client, label):
    """On a lock of several, whoever cannot publish them is offered each once."""
    with contextlib.closing(make_app(conf)) as app:
        keys = lock_keys("redislock", f"fleets:{label}", 2)
        store = app_locks(app).server
        claims = [
            Claim(keys, token, 5.0, holders.encode(token, ttl_ms=5000))
            for token in (new_token(), new_token())
        ]
        assert all(isinstance(store.run(calls.acquire(holder)), Acquired) for holder in claims)
        for name in "ab":
            task_id = f"{label}-{name}"
            fields = {"content_type": "application/json", "encoding": "utf-8", "body": "[]"}
            entry = json.dumps({"task": "of.another.fleet", "task_id": task_id, **fields})
            claim = Claim(keys, new_token(), 5.0, "", task_id)
            store.run(rooms.park(claim, Parking(entry, claim.entry_id)))
        for holder in claims:
            store.run(calls.settle(holder, calls.Release(publishes=False)))
        look_after(app, keys, 5.0)
        assert client.lrange(keys.room, 0, -1) == [f"{label}-a:0.0", f"{label}-b:0.0"]
        client.delete(keys.room, keys.entries, keys.sent, *keys.slots, keys.lock)
        client.zrem(keys.rooms, keys.lock_id)


def test_a_room_that_cannot_be_looked_at_keeps_no_other_waiting(conf, client, label):
    prefix = f"redislock:{label}"
    with contextlib.closing(make_app({**conf, "redislock_prefix": prefix})) as app:
        keys = lock_keys(prefix, "a")
        client.rpush(keys.room, "x:0.0")
        client.hset(keys.entries, "x:0.0", "||no JSON")
        client.zadd(keys.rooms, {"no mark": 0, keys.lock_id: 1})
        Sweeper(app).sweep()
        housekeeper.finish()
        assert client.zrange(keys.sent, 0, -1) == ["x:0.0"]
        client.delete(*client.keys(f"{prefix}:*"))
