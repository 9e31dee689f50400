"""Waiting rooms that no worker looks after: what whoever comes makes of them."""

from __future__ import annotations

import contextlib
import json
from datetime import datetime, timedelta, timezone

from celery_redislock import SingletonTask
from celery_redislock.app.entries import Entry
from celery_redislock.app.housekeeper import housekeeper
from celery_redislock.app.settings import app_locks
from celery_redislock.protocol import calls, holders, rooms
from celery_redislock.protocol.claims import Acquired, Claim, Done, Parking
from celery_redislock.protocol.keys import lock_keys
from celery_redislock.protocol.tokens import new_token
from celery_redislock.tasks.room import look_after
from celery_redislock.worker.sweeper import Sweeper
from tests.support.workers import make_app

LOCKS = ("redis", "cluster")


def test_who_has_expired_in_the_room_is_not_published_and_the_next_has_its_turn(
    conf, client, redis_server, queue, label
):
    """RabbitMQ drops a message that expires before somebody gets it, and nobody would know."""
    with make_app(conf) as app:

        @app.task(base=SingletonTask, name="expires_in_the_room", lock_key="{label}")
        def task(label):
            """Never runs."""

        keys = task.lock_keys_for([label], {})
        past = (datetime.now(timezone.utc) - timedelta(seconds=1)).isoformat()
        client.set(keys.lock, "held")
        for task_id, expires in ((f"{label}-1", past), (f"{label}-2", None)):
            options = {"task_id": task_id, "queue": queue, "expires": expires}
            entry = Entry.of(task, [label], {}, {**options, "headers": {"redislock": {}}})
            claim = Claim(keys, new_token(), 5.0, "", task_id)
            app_locks(app).server.run(rooms.park(claim, Parking(entry.dump(), claim.entry_id)))
        client.delete(keys.lock)
        look_after(app, keys, 5.0)
        assert app.AsyncResult(f"{label}-1").state == "REVOKED"
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

        keys = task.lock_keys_for([label], {})
        client.set(keys.lock, "held")
        headers = {"redislock": {"parked_at": 1.0}}
        entry = Entry.of(task, [label], {}, {"task_id": label, "queue": queue, "headers": headers})
        claim = Claim(keys, new_token(), 5.0, "", label)
        app_locks(app).server.run(rooms.park(claim, Parking(entry.dump(), claim.entry_id)))
        client.delete(keys.lock)
        with redis_server.client(db=1) as broker:
            for published in (1, 2):
                look_after(app, keys, 5.0)
                assert broker.llen(queue) == published
                client.zincrby(keys.sent, -20_000, claim.entry_id)
                client.hset(keys.entries, f"#{claim.entry_id}", f"2|||{claim.entry_id}")
            broker.delete(queue)
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
