"""Who looks after the waiting rooms: of the workers that know the same tasks, one at a time."""

from __future__ import annotations

import time

import pytest

from celery_redislock.app.housekeeper import housekeeper
from celery_redislock.app.settings import app_locks
from celery_redislock.protocol.keys import keys_of_lock_id
from celery_redislock.tasks.room import Looked
from celery_redislock.worker import sweeper
from celery_redislock.worker.sweeper import COMES_BACK, Sweeper
from tests.support.waiting import eventually

LOCK_ID = "1|pkg.task:one"


@pytest.fixture
def client(own_redis):
    with own_redis.client() as client:
        yield client


@pytest.fixture
def room_is_due(client):
    """Says when the next look at the room is due, in seconds."""
    rooms = keys_of_lock_id("redislock", LOCK_ID).rooms
    return lambda seconds: client.zadd(rooms, {LOCK_ID: (time.time() + seconds) * 1000})


@pytest.fixture
def looked(monkeypatch):
    """The apps that have looked at the room, and those that cannot publish its task."""

    class Looks(list):
        unable = ()

    looks = Looks()

    def look_after(app, keys, ttl):
        assert keys.lock_id == LOCK_ID
        looks.append(app)
        return Looked(due_in=None, passed_over=app in looks.unable)

    monkeypatch.setattr(sweeper, "look_after", look_after)
    return looks


def sweep(client, sweeper):
    """Its turn has come."""
    client.delete(sweeper._turn)
    sweeper.sweep()
    housekeeper.finish()


def test_one_of_a_fleets_workers_looks_and_the_others_need_not(
    make_app, own_redis, client, looked, room_is_due
):
    app = make_app(redislock_url=own_redis.url)
    ours, other = Sweeper(app), Sweeper(app)
    room_is_due(0)

    sweep(client, ours)
    assert len(looked) == 1
    other.sweep()
    housekeeper.finish()
    assert len(looked) == 1, "another one has looked"

    sweep(client, other)  # two seconds later
    assert len(looked) == 2


def test_on_a_full_server_which_keeps_no_turns_each_looks(
    make_app, own_redis, client, looked, room_is_due
):
    app = make_app(redislock_url=own_redis.url)
    room_is_due(0)
    client.set("big", "x" * 1_000_000)
    client.config_set("maxmemory", "1mb")

    for each in (Sweeper(app), Sweeper(app)):
        each.sweep()
        housekeeper.finish()
    assert len(looked) == 2


def test_who_comes_back_looks_at_rooms_that_others_have_put_off(
    make_app, own_redis, client, looked, room_is_due
):
    ours = Sweeper(make_app(redislock_url=own_redis.url))
    room_is_due(600)

    sweep(client, ours)
    assert len(looked) == 1, "it has just started"
    sweep(client, ours)
    assert len(looked) == 1, "the room is not due"

    ours._swept -= COMES_BACK  # its machine was suspended
    sweep(client, ours)
    assert len(looked) == 2


def test_who_could_not_publish_a_rooms_task_looks_after_those_who_can(
    make_app, own_redis, client, looked, room_is_due
):
    able, unable = (make_app(redislock_url=own_redis.url) for _ in "ab")
    unable.task(name="theirs", shared=False)(print)
    looked.unable = [unable]
    first, second = Sweeper(unable), Sweeper(able)
    room_is_due(0)
    sweep(client, first)
    assert looked == [unable]

    sweep(client, first)
    assert looked == [unable], "it gives way"
    sweep(client, second)
    eventually(lambda: len(looked) == 3, "all have looked")

    assert looked.count(unable) == 2, "and it looks once more, later"
    assert looked.count(able) == 1


def test_a_room_is_not_looked_at_before_it_is_due_though_the_server_is_slow(
    make_app, own_redis, client, monkeypatch, room_is_due
):
    app = make_app(redislock_url=own_redis.url)
    server = app_locks(app).server
    ask, looked = server.ask, []

    def slow(query, **kwargs):
        time.sleep(0.05)
        reply = ask(query, **kwargs)
        time.sleep(0.05)
        return reply

    def look_after(app, keys, ttl):
        looked.append(time.time())
        return Looked(due_in=None, passed_over=False)

    monkeypatch.setattr(server, "ask", slow)
    monkeypatch.setattr(sweeper, "look_after", look_after)
    due = time.time() + 1.0
    room_is_due(1.0)

    Sweeper(app).sweep()
    eventually(lambda: looked, "it has looked")

    assert looked[0] >= due, "the next look would be two seconds later"


def test_a_room_that_is_due_again_before_the_next_sweep_is_looked_at_then(
    make_app, own_redis, client, monkeypatch, room_is_due
):
    looked = []

    def look_after(app, keys, ttl):
        looked.append(time.monotonic())
        return Looked(due_in=0.3 if len(looked) < 3 else None, passed_over=False)

    monkeypatch.setattr(sweeper, "look_after", look_after)
    ours = Sweeper(make_app(redislock_url=own_redis.url))
    room_is_due(0)

    ours.sweep()
    eventually(lambda: len(looked) == 3, "it has looked again, without another sweep")

    assert looked[1] >= looked[0] + 0.3
    assert looked[2] >= looked[1] + 0.3
