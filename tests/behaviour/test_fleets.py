"""Several apps of one name look after the rooms on one lock server."""

from __future__ import annotations

import pytest

from tests.behaviour.apps.fleets import fleet
from tests.behaviour.looking import Room, starts
from tests.support.waiting import eventually, never
from tests.support.workers import make_app

A = "tests.behaviour.apps.fleet_a"
B = "tests.behaviour.apps.fleet_b"


def parked_in(app, room, journal, label, queue):
    """A task that waits behind a holder, of fleet a."""
    holder = app.send_task("a_job", [label, "stand"], queue=queue)
    eventually(lambda: starts(journal, label, holder.id), "the holder runs")
    result = app.send_task("a_job", [label, 0.1], queue=queue)
    eventually(lambda: room.ids() == [result.id], "it waits")
    return result


def room_of(label, conf, client):
    """The room of fleet a's task, and a way to see whether its lock is free."""
    with fleet("a", conf) as app:
        return Room(client, app.tasks["a_job"].lock_key_for(label))


def is_held(label, conf):
    with fleet("a", conf) as app:
        holder = app.tasks["a_job"].lock_holder(label)
        return holder is not None and not holder.queued  # else it is kept for the one that waits


def test_a_fleet_that_does_not_know_a_task_does_not_delay_its_turn(
    start_worker, sender, conf, lock_conf, lock_client, journal, label, queue
):
    start_worker(app=B, queues=f"{queue}-b", concurrency=1, conf=lock_conf)
    doomed = start_worker(app=A, queues=queue, conf=lock_conf)
    room = room_of(label, {**conf, **lock_conf}, lock_client)
    result = parked_in(sender, room, journal, label, queue)
    doomed.kill()
    eventually(lambda: not is_held(label, {**conf, **lock_conf}), "the lock has lapsed")
    # Time enough for the other fleet to look at the room again and again, ever more seldom.
    never(lambda: starts(journal, label, result.id), "somebody else ran it", 2)

    start_worker(app=A, queues=queue, concurrency=1, conf=lock_conf)
    eventually(lambda: starts(journal, label, result.id), "it runs", 15)

    assert result.get(timeout=20) == label
    eventually(room.is_empty, "the room is empty")
    assert starts(journal, label, result.id) == 1


def test_a_fleet_whose_tasks_always_wait_leaves_another_fleet_its_turns(
    start_worker, sender, conf, lock_conf, lock_client, journal, label, queue
):
    """They share a lock, and neither can publish the other's tasks."""
    start_worker(app=A, queues=queue, conf=lock_conf, concurrency=2)
    start_worker(app=B, queues=f"{queue}-b", conf=lock_conf, concurrency=1)
    with fleet("a", {**conf, **lock_conf}) as app:
        room = Room(lock_client, app.tasks["a_shared"].lock_key_for(label))
    holder = sender.send_task("a_shared", [label, "stand"], queue=queue)
    eventually(lambda: starts(journal, label, holder.id), "the holder runs")
    busy = [sender.send_task("a_shared", [label, 0.3], queue=queue) for _ in range(2)]
    eventually(lambda: len(room.ids()) == 2, "they wait")
    theirs = sender.send_task("b_shared", [label, 0.0], queue=f"{queue}-b")
    eventually(lambda: len(room.ids()) == 3, "it waits")
    busy += [sender.send_task("a_shared", [label, 0.3], queue=queue) for _ in range(40)]
    journal.let_go(holder.id)
    assert theirs.get(timeout=30) == label
    assert not busy[-1].ready(), "it had its turn among them"
    assert journal.overlaps(label) == []


@pytest.fixture
def brokers(own_redis, lock_conf):
    """The settings of two apps that share the names of app, tasks and queue, and the locks."""
    ours, theirs = ({"broker_url": f"{own_redis.url}/{db}"} for db in (1, 2))
    return {**lock_conf, **ours}, {**lock_conf, **theirs}


def test_an_app_with_another_broker_leaves_a_turn_to_those_who_have_the_broker(
    brokers, start_worker, conf, lock_client, journal, label, queue
):
    ours, theirs = brokers
    other = start_worker(app=A, queues=queue, concurrency=1, conf=theirs)
    doomed = start_worker(app=A, queues=queue, conf=ours)
    room = room_of(label, {**conf, **ours}, lock_client)
    with make_app({k: v for k, v in {**conf, **ours}.items() if k[:5] != "test_"}) as sender:
        result = parked_in(sender, room, journal, label, queue)
        doomed.kill()
        eventually(lambda: not is_held(label, {**conf, **ours}), "the lock has lapsed")
        never(lambda: starts(journal, label, result.id), "the other app ran it", 2)
        assert result.id not in other.log(), "the other app says nothing of it"
        assert room.ids() == [result.id], "it waits on"

        start_worker(app=A, queues=queue, concurrency=1, conf=ours)
        assert result.get(timeout=40) == label
        eventually(room.is_empty, "the room is empty")
    assert starts(journal, label, result.id) == 1
    assert result.id not in other.log()
