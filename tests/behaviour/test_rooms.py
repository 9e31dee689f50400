"""The waiting room: duplicates run in order, or the newest alone; nothing is lost on the way."""

from __future__ import annotations

import itertools

import pytest

from celery_redislock import RedisLock, TaskSkipped
from tests.behaviour.looking import Keys, Room
from tests.support.waiting import eventually, never

QUEUE = "rooms"
#: Everything else here has one server.
LOCKS = ("cluster",)


@pytest.fixture(scope="module", autouse=True)
def worker(start_module_worker):
    return start_module_worker(queues=QUEUE, concurrency=4)


@pytest.fixture
def room(client, locks_of):
    """The waiting room of the lock that a task holds: its key's list of entry ids."""

    def room(task_id):
        (key,) = locks_of(task_id)
        return LockRoom(client, key)

    return room


class LockRoom(Room):
    """A waiting room, and what else there is of its lock."""

    def __init__(self, client, lock):
        super().__init__(client, lock)
        self.keys = Keys(lock)

    def leaves_nothing(self):
        keys = self.keys
        all_keys = (keys.lock, keys.room, keys.entries, keys.ended, keys.deadlines, keys.sent)
        is_listed = self._client.zscore(keys.rooms, keys.lock_id) is not None
        return not self._client.exists(*all_keys) and not is_listed


def test_queued_duplicates_run_one_after_another_in_their_order(
    send, hold_open, room, journal, label
):
    first = hold_open("queued")
    here = room(first.id)
    others = []
    for count in range(1, 4):
        others.append(send("queued", label, 0.05))
        eventually(lambda count=count: len(here.ids()) == count, "it waits")
    assert here.ids() == [other.id for other in others]
    journal.let_go(first.id)
    for result in (first, *others):
        assert result.get(timeout=30)[0] == label
    assert [e.task_id for e in journal.read(label, "start")] == [first.id, *(o.id for o in others)]
    assert journal.overlaps(label) == []
    eventually(here.leaves_nothing, "nothing is left")


def test_of_coalesced_duplicates_the_newest_runs_and_the_others_name_their_successor(
    send, hold_open, room, journal, label
):
    first = hold_open("coalesced")
    here = room(first.id)
    others = []
    for _ in range(3):
        others.append(send("coalesced", label, 0.05))
        eventually(lambda: here.ids() == [others[-1].id], "it is the one that waits")
    journal.let_go(first.id)
    assert others[-1].get(timeout=30)[0] == label
    for replaced, successor in itertools.pairwise(others):
        with pytest.raises(TaskSkipped) as caught:
            replaced.get(timeout=20)
        assert replaced.state == "REVOKED"
        assert caught.value.holder.task_id == successor.id
    ran = [entry.task_id for entry in journal.read(label, "start")]
    assert ran == [first.id, others[-1].id]
    eventually(here.leaves_nothing, "nothing is left")


def test_messages_that_name_no_lock_keep_no_room_waiting(
    start_worker, send, client, locks_at, queue, label
):
    prefix, bad = f"redislock:{label}", ["no lock", "1000000000|name", "0|name", "|"]
    worker = start_worker(queues=queue, conf={"redislock_prefix": prefix})
    rooms = []
    for number, lock_id in enumerate(bad):
        header = {"v": 2, "kept": [lock_id, "token"], "parked": "x:0.0"}
        sent = {"queue": queue, "headers": {"redislock": header}}
        send("queued", label, 0.0, countdown=600, **sent)
        assert send("queued", label, 0.0, **sent).get(timeout=30)
        keys = LockRoom(client, RedisLock(locks_at.url, f"a{number}", prefix=prefix).key).keys
        rooms.append(keys)
        client.rpush(keys.room, "x:0.0")
        client.hset(keys.entries, "x:0.0", "||no JSON")
        client.zadd(keys.rooms, {lock_id: 0, keys.lock_id: 1})
    for keys in rooms:
        eventually(lambda keys=keys: client.zcard(keys.sent) == 1, "a room is looked after")
    assert "does not name a valid lock" in worker.log()


def test_what_cannot_be_read_is_said_and_blocks_nobody(
    send, hold_open, room, client, worker, journal, label
):
    first = hold_open("queued")
    here = room(first.id)
    corrupt = ["x:0.0", "y:0.0", "z:0.0"]
    client.rpush(here.keys.room, *corrupt)
    client.hset(here.keys.entries, "y:0.0", "||no JSON")
    client.hset(here.keys.entries, "z:0.0", '||{"task":"queued"}')
    second = send("queued", label, 0.05)
    journal.let_go(first.id)
    assert second.get(timeout=30)[0] == label
    kept = client.hgetall(here.keys.entries)
    assert (kept["y:0.0"], kept["z:0.0"]) == ("||no JSON", '||{"task":"queued"}'), "all is kept"
    assert not any(field.endswith("x:0.0") for field in kept), "but for what is lost"
    for each in corrupt[1:]:
        client.zincrby(here.keys.sent, -61_000, each)  # for a minute nobody has taken it
    for each in ("y", "queued[z]"):
        said = f"no worker has taken {each}, which waits for {here.keys.lock}"
        eventually(lambda said=said: said in worker.log(), "it says so")
    assert send("queued", label, 0.05).get(timeout=30)[0] == label, "and others still run"
    client.delete(here.keys.room, here.keys.entries, here.keys.sent)


def test_a_child_killed_once_its_task_waits_takes_nothing_with_it(
    start_worker, sender, journal, queue, label
):
    start_worker(queues=queue, concurrency=3)
    first = sender.send_task("queued_and_killed", [label, "stand"], queue=queue)
    journal.await_start(label, first.id)
    second = sender.send_task("queued_and_killed", [label, 0.05], queue=queue)
    # Not WorkerLostError, neither in between nor at the end: it waits, and has its run.
    never(second.ready, "it ends", 5)  # Celery may notice after 5 s
    journal.let_go(first.id)
    assert second.get(timeout=20)[0] == label
    assert first.get(timeout=20)[0] == label
