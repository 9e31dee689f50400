"""A full server (`noeviction`): it refuses what needs memory, such as a new lock. Whatever frees or
prolongs what is there works all the same.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator

import pytest
import redis

from celery_redislock import LockUnavailable
from celery_redislock.protocol import calls, holders, notes
from celery_redislock.protocol.claims import (
    EXTENDED,
    RETAKEN,
    Busy,
    Done,
    Extension,
    Parked,
    Reserved,
)
from celery_redislock.servers.server import Server
from tests.contract.claims import taken
from tests.support.servers import RedisServer

from .a_room import KEPT, Room


@pytest.fixture
def client(own_redis: RedisServer) -> Iterator[redis.Redis]:
    with own_redis.client() as client:
        yield client


@pytest.fixture
def room(own_store: Server, client: redis.Redis, label: str) -> Room:
    return Room(own_store, client, label)


@pytest.fixture
def fill(client: redis.Redis, own_store: Server, room: Room) -> Callable[[], None]:
    """Fills the server, and proves that it is full."""
    others = [Room(own_store, client, f"{room.label} {limit}", limit) for limit in (1, 2)]
    client.set("big", "x" * 1_000_000)

    def fill() -> None:
        client.config_set("maxmemory", "1mb")
        for other in others:  # of one slot and of more, which the script takes in two ways
            with pytest.raises(LockUnavailable, match=r"OOM|used memory"):
                other.take("newcomer")

    return fill


def value_of(room: Room) -> dict[str, object]:
    value = room.client.get(room.keys.lock)
    assert value is not None
    return json.loads(value)


def test_a_run_that_describes_itself_is_extended_and_described(room, fill, client):
    claim = room.claim("runs")
    reply = taken(room.store.run(calls.acquire(claim)))
    fill()
    client.pexpire(room.keys.lock, 1000)
    said = Extension(claim, reply.value, reply.fence, True, reply.fence, description="page 3")
    assert room.store.run(calls.extend(said)).outcome == EXTENDED
    assert client.pttl(room.keys.lock) > 1000
    assert value_of(room)["description"] == "page 3"


def test_a_description_that_is_refused_costs_nobody_his_lock(room, own_redis, client, own_store):
    """Whatever the reason is: here a user may not write it."""
    claim = room.claim("runs")
    reply = taken(room.store.run(calls.acquire(claim)))
    client.pexpire(room.keys.lock, 1000)
    client.execute_command("ACL", "SETUSER", "default", "-set")
    said = Extension(claim, reply.value, reply.fence, True, reply.fence, description="page 3")
    assert room.store.run(calls.extend(said)).outcome == EXTENDED
    assert client.pttl(room.keys.lock) > 1000


def test_a_lock_that_vanished_is_taken_again_by_its_holder(room, fill, client):
    claim = room.claim("runs")
    reply = taken(room.store.run(calls.acquire(claim)))
    fill()
    client.delete(room.keys.lock)
    again = Extension(claim, reply.value, reply.fence, True, reply.fence)
    assert room.store.run(calls.extend(again)).outcome == RETAKEN
    assert client.get(room.keys.lock) == reply.value


@pytest.mark.parametrize("options", [{"pause": 60.0}, {"min_hold": 60.0}], ids=["pause", "hold"])
def test_a_lock_stays_taken_after_its_run_and_says_why(room, fill, client, options):
    claim = room.take("runs")
    fill()
    assert room.settle(claim, **options).ours
    assert 50_000 < client.pttl(room.keys.lock) <= 60_000
    holder = room.ask("other").holder
    assert holder is not None
    assert holder.cooling_down


@pytest.mark.parametrize("note", [notes.lasting(notes.ENDED), ""], ids=["left", "of-a-dead-one"])
def test_a_lock_is_left_to_a_retry_which_takes_it_over(room, fill, client, note):
    claim = room.take("runs")
    fill()
    value = holders.held_for_retry(client.get(room.keys.lock))
    if not note:
        value = holders.opening_of_held("retry")
    assert room.settle(claim, note=note, always=bool(note), heir=(value, 600)).ours
    assert client.pttl(room.keys.lock) > 500_000
    holder = room.ask("other").holder
    assert holder is not None
    assert holder.held_for_retry

    retry = room.claim("runs", attempt=1, kept="" if note else "retry")
    taken(room.store.run(calls.acquire(retry)))
    assert client.pttl(room.keys.lock) <= retry.ttl * 1000
    assert room.settle(retry).ours


def test_a_lock_that_was_not_ours_any_more_is_no_trouble(room, fill, client):
    claim = room.take("runs")
    fill()
    client.delete(room.keys.lock)
    left = (holders.held_for_retry("{}"), 600.0)
    assert not room.settle(claim, note=notes.ENDED, always=True, heir=left).ours
    assert not room.settle(claim, note=notes.ENDED, always=True, pause=60.0).ours
    assert isinstance(room.store.run(calls.acquire(claim)), Done)


def test_an_operator_breaks_a_lock_and_its_holder_hears_of_it(room, fill, client):
    claim = room.claim("runs")
    reply = taken(room.store.run(calls.acquire(claim)))
    fill()
    assert room.store.run(calls.break_lock(room.keys, 30, by="anna")) is not None
    assert not client.exists(room.keys.lock)
    extension = Extension(claim, reply.value, reply.fence, True, reply.fence)
    assert room.store.run(calls.extend(extension)).broken_by == "anna"


def test_the_end_of_an_attempt_is_noted(room, fill):
    ended, replaced, turned_away = (room.claim(each) for each in ("ended", "replaced", "again"))
    room.take("runs")
    fill()
    room.store.run(calls.mark_done(ended, notes.ENDED), once=True)
    by = holders.successor_text("pkg.task", "newer")
    room.store.run(calls.note_replaced(replaced, 1, by, 5.0), once=True)
    for note in (notes.ENDED, notes.lasting(notes.ENDED)):
        assert isinstance(room.store.run(calls.acquire(turned_away, note=note)), Busy | Done)
    retry = dataclasses.replace(replaced, attempt=1)
    for claim in (ended, retry, turned_away):
        assert isinstance(room.store.run(calls.acquire(claim)), Done)


def test_a_copy_of_what_runs_is_told_so_and_marks_the_lock(room, fill):
    room.take("runs")
    fill()
    assert room.ask("runs").relation == "own"
    assert value_of(room)["redelivered"] is True


def test_a_reservation_is_asked_for_again_and_kept_for_longer(room, fill, client):
    claim = room.claim("sent", says={"queued": True})
    assert isinstance(room.store.run(calls.reserve(claim, 5)), Reserved)
    fill()
    assert isinstance(room.store.run(calls.reserve(claim, 50)), Reserved)
    assert client.pttl(room.keys.lock) > 5000
    assert room.store.run(calls.keep_reserved(claim, 500)).outcome == EXTENDED
    assert client.pttl(room.keys.lock) > 50_000


def test_a_room_is_looked_after_and_whose_turn_it_is_takes_the_lock(room, fill):
    room.take("holder")
    room.park("first", "second")
    fill()
    room.dies()
    room.published(room.look(), "first")
    claim = room.take("first")
    assert room.waiting == ["second"]
    room.published(room.settle(claim), "second")


def test_who_waits_is_taken_out(room, fill):
    """What frees memory comes first: the server refuses other commands then."""
    holder = room.take("holder")
    room.park("revoked", "dropped", "too")
    room.replaces("in the slot")
    fill()
    room.leave("revoked")
    assert len(room.drop_all()) == 3
    assert room.settle(holder).ours


def test_what_comes_back_to_its_room_and_must_wait_on_keeps_its_place(room, fill):
    holder = room.take("holder")
    room.park("first")
    room.published(room.settle(holder), "first")
    room.pass_time(KEPT + 1)
    room.take("overtakes")
    fill()
    assert isinstance(room.parks("first"), Parked)
    assert room.waiting == ["first"]


def test_who_begins_to_wait_is_refused(room, fill):
    room.take("holder")
    room.ask("waits", "wait")
    fill()
    with pytest.raises(LockUnavailable, match=r"OOM|used memory"):
        room.ask("newcomer", "wait")
