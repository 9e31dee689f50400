"""The waiting room: duplicates run in order, or the newest alone; nothing is lost on the way."""

from __future__ import annotations

import itertools
import os
import signal
import time
import uuid

import pytest
from celery import chord
from celery.exceptions import ChordError

from celery_redislock import LockConflict, RedisLock, TaskSkipped
from tests.behaviour.looking import Keys, Room
from tests.support.waiting import eventually

QUEUE = "rooms"
LOCKS = ("redis", "cluster")


@pytest.fixture(scope="module", autouse=True)
def worker(start_module_worker):
    return start_module_worker(queues=QUEUE, concurrency=4)


@pytest.fixture(scope="module")
def mortal(start_module_worker):
    """The queue of a worker whose children are killed."""
    start_module_worker(queues=f"{QUEUE}-mortal", concurrency=3)
    return f"{QUEUE}-mortal"


@pytest.fixture
def hold(send, journal, label):
    """Starts a run that holds the label's lock."""

    def hold(name, seconds=2.0, **options):
        result = send(name, label, seconds, **options)
        return result, journal.await_start(label, result.id)

    return hold


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


def outcome_of(result, timeout=30):
    try:
        return result.get(timeout=timeout)
    except (TaskSkipped, LockConflict) as exc:
        return exc


def test_queued_duplicates_run_one_after_another_in_their_order(send, hold, room, journal, label):
    first, _ = hold("queued", 4.0)
    here = room(first.id)
    others = []
    for count in range(1, 7):
        others.append(send("queued", label, 0.05))
        eventually(lambda count=count: len(here.ids()) == count, "it waits")
    assert here.ids() == [other.id for other in others]
    for result in (first, *others):
        assert result.get(timeout=30)[0] == label
    assert [e.task_id for e in journal.read(label, "start")] == [first.id, *(o.id for o in others)]
    assert journal.overlaps(label) == []
    eventually(here.leaves_nothing, "nothing is left")


def test_a_newcomer_does_not_overtake_the_room(send, hold, room, journal, label):
    first, _ = hold("queued", 3.0)
    here = room(first.id)
    waiting = [send("queued", label, 0.02) for _ in range(10)]
    eventually(lambda: len(here.ids()) == 10, "all wait")
    order = here.ids()
    late = []
    while not waiting[-1].ready() and len(late) < 200:
        late.append(send("queued", label, 0.0))
        eventually(lambda: late[-1].ready() or late[-1].id in here.ids(), "it is there")
    for result in (*waiting, *late):
        result.get(timeout=60)
    ran = [entry.task_id for entry in journal.read(label, "start")]
    assert ran[1 : 1 + len(order)] == order
    assert journal.overlaps(label) == []


def test_of_coalesced_duplicates_the_newest_runs_and_the_others_name_their_successor(
    send, hold, room, journal, label
):
    first, _ = hold("coalesced", 4.0)
    here = room(first.id)
    others = []
    for _ in range(5):
        others.append(send("coalesced", label, 0.05))
        eventually(lambda: here.ids() == [others[-1].id], "it is the one that waits")
    assert others[-1].get(timeout=30)[0] == label
    for replaced, successor in itertools.pairwise(others):
        with pytest.raises(TaskSkipped) as caught:
            replaced.get(timeout=20)
        assert replaced.state == "REVOKED"
        assert caught.value.holder.task_id == successor.id
    ran = [entry.task_id for entry in journal.read(label, "start")]
    assert ran == [first.id, others[-1].id]
    eventually(here.leaves_nothing, "nothing is left")


def test_the_last_trigger_always_gets_its_run(send, journal, label):
    results, sent_at = [], {}
    for _ in range(60):
        before = time.monotonic()
        results.append(send("coalesced", label, 0.02))
        sent_at[results[-1].id] = before
    outcomes = {result.id: outcome_of(result) for result in results}
    starts = {entry.task_id: entry.at for entry in journal.read(label, "start")}

    def of_whom(task_id):
        """Whose run it has: its own, or that of who took its place, and so on."""
        while isinstance(outcomes[task_id], TaskSkipped):
            task_id = outcomes[task_id].holder.task_id
        return task_id

    assert journal.count(label, "start") == len(starts)
    assert set(starts) == {of_whom(task_id) for task_id in outcomes}
    for task_id, at in sent_at.items():
        assert starts[of_whom(task_id)] > at, "it has no run that began after it was sent"
    assert journal.overlaps(label) == []


def test_a_retry_does_not_take_the_run_of_what_came_since(send, hold, room, journal, label):
    first, _ = hold("coalesced_retries", 3.0, kwargs={"times": 1})
    here = room(first.id)
    second = send("coalesced_retries", label)
    eventually(lambda: here.ids() == [second.id], "it waits")
    assert second.get(timeout=30) == 0
    assert first.get(timeout=30) == 1
    ran = {(entry.task_id, entry.retries) for entry in journal.read(label, "start")}
    assert ran == {(first.id, 0), (first.id, 1), (second.id, 0)}
    eventually(here.leaves_nothing, "nothing is left")


def test_a_chord_with_a_coalesced_member_fails_fast_and_one_with_queued_members_goes_on(
    sender, hold, label
):
    def chord_of(name, *labels):
        members = [sender.signature(name, args=(each, 0.05)).set(queue=QUEUE) for each in labels]
        return chord(members)(sender.signature("total").set(queue=QUEUE))

    assert chord_of("queued", *[label] * 5).get(timeout=30) == 5
    hold("coalesced", 3.0)
    with pytest.raises((ChordError, TaskSkipped)):
        chord_of("coalesced", *[label] * 3).get(timeout=30)


def test_one_more_than_the_limit_meets_the_next_policy(send, hold, room, label):
    first, _ = hold("queued_two", 4.0)
    here = room(first.id)
    waiting = [send("queued_two", label, 0.05) for _ in range(2)]
    eventually(lambda: len(here.ids()) == 2, "the room is full")
    with pytest.raises(LockConflict) as caught:
        send("queued_two", label, 0.05).get(timeout=20)
    assert caught.value.holder.task_id == first.id
    for result in waiting:
        assert result.get(timeout=20)


def test_who_has_waited_long_enough_meets_the_next_policy(send, hold, room, label):
    first, _ = hold("queued_briefly", 15.0)
    here = room(first.id)
    second = send("queued_briefly", label, 0.05)
    with pytest.raises(LockConflict) as caught:
        second.get(timeout=60)
    assert caught.value.holder.task_id == first.id, "it has the lock"
    assert here.ids() == []


@pytest.mark.parametrize("name", ["queued_briefly", "wait_late"])
def test_a_copy_of_a_refused_duplicate_does_not_run(send, hold, journal, worker, label, name):
    first, _ = hold(name, 4.0)
    second = send(name, label, 0.0)
    assert isinstance(outcome_of(second), LockConflict | TaskSkipped)
    state = second.state
    assert first.get(timeout=20)
    send(name, label, 0.0, task_id=second.id, headers={"redislock": {"redelivered": True}})
    eventually(lambda: f"{name}[{second.id}] already done" in worker.log(), "it is known")
    assert [entry.task_id for entry in journal.read(label, "start")] == [first.id]
    assert second.state == state


def test_a_refused_duplicate_leaves_the_room_and_so_does_every_copy(
    send, hold, room, client, label
):
    """Its time was not over when it was published, and was over when it met the lock."""
    first, _ = hold("queued_briefly", 5.0)
    here = room(first.id)
    task_id = str(uuid.uuid4())
    entry = f"{task_id}:0.0"
    header = {"v": 2, "parked": entry, "redelivered": True, "since": time.time() - 5.0}
    header["kept"] = [here.keys.lock_id, ""]
    for _ in range(2):  # the second is a copy of what is done by then
        client.rpush(here.keys.room, entry)
        client.hset(here.keys.entries, entry, '|0|{"task":"queued_briefly"}')
        result = send("queued_briefly", label, 0.0, task_id=task_id, headers={"redislock": header})
        eventually(lambda: entry not in client.lrange(here.keys.room, 0, -1), "it has left")
        assert isinstance(outcome_of(result), LockConflict)
    assert first.get(timeout=20)


def test_a_task_in_the_room_keeps_everything_that_its_message_said(send, hold, label):
    first, _ = hold("queued_describes", 3.0, priority=3, headers={"tenant": "blue"}, shadow="dusk")
    second = send(
        "queued_describes", label, 0.0, priority=3, headers={"tenant": "blue"}, shadow="dusk"
    )
    told, again = first.get(timeout=20), second.get(timeout=20)
    assert again["headers"]["tenant"] == "blue"
    assert again["root_id"] == second.id
    assert {**again, "root_id": None} == {**told, "root_id": None}


def test_messages_that_name_no_lock_keep_no_room_waiting(
    start_worker, send, client, locks_at, queue, label
):
    prefix, bad = f"redislock:{label}", ["no lock", "1000000000|name", "0|name", "|"]
    worker = start_worker(queues=queue, conf={"redislock_prefix": prefix})
    for number, lock_id in enumerate(bad):
        header = {"v": 2, "kept": [lock_id, "token"], "parked": "x:0.0"}
        sent = {"queue": queue, "headers": {"redislock": header}}
        send("queued", label, 0.0, countdown=600, **sent)
        assert send("queued", label, 0.0, **sent).get(timeout=30)
        here = LockRoom(client, RedisLock(locks_at.url, f"a{number}", prefix=prefix).key)
        client.rpush(here.keys.room, "x:0.0")
        client.hset(here.keys.entries, "x:0.0", "||no JSON")
        client.zadd(here.keys.rooms, {lock_id: 0, here.keys.lock_id: 1})
        eventually(lambda at=here: client.zcard(at.keys.sent) == 1, "a room is looked after")
    assert "does not name a valid lock" in worker.log()


def test_what_cannot_be_read_is_said_and_blocks_nobody(send, hold, room, client, worker, label):
    first, _ = hold("queued", 4.0)
    here = room(first.id)
    corrupt = ["x:0.0", "y:0.0", "z:0.0"]
    client.rpush(here.keys.room, *corrupt)
    client.hset(here.keys.entries, "y:0.0", "||no JSON")
    client.hset(here.keys.entries, "z:0.0", '||{"task":"queued"}')
    second = send("queued", label, 0.05)
    assert second.get(timeout=30)[0] == label
    kept = client.hgetall(here.keys.entries)
    assert (kept["y:0.0"], kept["z:0.0"]) == ("||no JSON", '||{"task":"queued"}'), "all is kept"
    assert not any(field.endswith("x:0.0") for field in kept), "but for what is lost"
    for each in ("y", "queued[z]"):
        said = f"no worker has taken {each}, which waits for {here.keys.lock}"
        eventually(lambda said=said: said in worker.log(), "it says so")
    assert send("queued", label, 0.05).get(timeout=30)[0] == label, "and others still run"
    client.delete(here.keys.room, here.keys.entries, here.keys.sent)


def test_a_redis_lock_of_the_same_name_waits_until_the_room_is_empty(
    send, hold, room, locks_at, label
):
    first, _ = hold("queued_named", 4.0)
    here = room(first.id)
    waiting = [send("queued_named", label, 0.3) for _ in range(2)]
    eventually(lambda: len(here.ids()) == 2, "both wait")
    lock = RedisLock(locks_at.url, f"named:{label}", ttl=6)
    assert lock.acquire(30)
    assert here.ids() == []
    assert lock.release()
    for result in (first, *waiting):
        assert result.get(timeout=20)


def test_what_a_redis_lock_releases_goes_to_the_room(send, locks_at, client, label):
    with RedisLock(locks_at.url, f"named:{label}", ttl=6) as lock:
        here = LockRoom(client, lock.key)
        result = send("queued_named", label, 0.0)
        eventually(lambda: here.ids() == [result.id], "it waits")
    assert result.get(timeout=20)[0] == label


def test_a_waiting_task_outlives_the_worker_of_the_holder(
    start_worker, sender, queue, hold, room, label
):
    doomed = start_worker(queues=queue, concurrency=2)
    first, _ = hold("queued_late", 60.0, queue=queue)
    here = room(first.id)
    second = sender.send_task("queued_late", [label, 0.05], queue=queue)
    eventually(lambda: here.ids() == [second.id], "it waits")
    doomed.kill()
    start_worker(queues=queue, concurrency=2)
    # Its lock lapses after its ttl of 6 s; then whoever looks after rooms hands over.
    assert second.get(timeout=40)[0] == label


def test_a_killed_childs_lock_is_handed_over_at_once(mortal, send, hold, room, label):
    first, entry = hold("queued_long", 60.0, queue=mortal)
    here = room(first.id)
    second = send("queued_long", label, 0.05, queue=mortal)
    eventually(lambda: here.ids() == [second.id], "it waits")
    os.kill(entry.pid, signal.SIGKILL)
    assert second.get(timeout=40)[0] == label, "its ttl is a minute"


def test_a_child_killed_once_its_task_waits_takes_nothing_with_it(mortal, send, hold, label):
    first, _ = hold("queued_and_killed", 6.0, queue=mortal)  # Celery may notice after 5 s
    second = send("queued_and_killed", label, 0.05, queue=mortal)
    # Not WorkerLostError, neither in between nor at the end: it waits, and has its run.
    assert second.get(timeout=20)[0] == label
    assert first.get(timeout=20)[0] == label


def test_as_many_as_the_limit_says_run_at_once(send, journal, label):
    results = [send("two_at_once_queued", label, 0.4) for _ in range(6)]
    for result in results:
        assert result.get(timeout=40)[0] == label
    most = 0
    inside = set()
    for entry in sorted(journal.read(label), key=lambda e: e.at):
        (inside.add if entry.event == "start" else inside.discard)(entry.task_id)
        most = max(most, len(inside))
    assert most == 2
    fences = [entry.data["fence"] for entry in journal.read(label, "start")]
    assert len(set(fences)) == 6


def test_beyond_the_limit_a_duplicate_is_skipped(send, journal, label):
    holders = [send("two_at_once", label, 4.0) for _ in range(2)]
    eventually(lambda: journal.count(label, "start") == 2, "two run")
    with pytest.raises(TaskSkipped) as caught:
        send("two_at_once", label, 0.0).get(timeout=20)
    assert caught.value.holder.task_id in {holder.id for holder in holders}
    for holder in holders:
        holder.get(timeout=20)


def test_a_crashed_holders_permit_comes_back_alone(mortal, send, journal, label):
    first = send("two_at_once_late", label, 3.0, queue=mortal)
    second = send("two_at_once_late", label, 6.0, queue=mortal)
    doomed, _ = (journal.await_start(label, each.id) for each in (first, second))
    os.kill(doomed.pid, signal.SIGKILL)
    # Its message comes back, and it takes the permit that its death gave back.
    assert first.get(timeout=20)[0] == label
    assert second.get(timeout=20)[0] == label


def test_the_lock_stands_on_after_a_success(send, hold, client, locks_of, label):
    first, _ = hold("pauses", 0.0)
    assert first.get(timeout=20)
    with pytest.raises(TaskSkipped) as caught:
        send("pauses", label, 0.0).get(timeout=20)
    assert caught.value.holder.cooling_down
    assert caught.value.holder.task_id == first.id
    (key,) = locks_of(first.id)
    assert 0 < client.pttl(key) <= 6000
    eventually(lambda: not client.exists(key), "the pause ends")
    assert send("pauses", label, 0.0).get(timeout=20)


def test_a_failure_causes_no_pause(send, locks_of, label):
    failed = send("pauses", label, 0.0, "raise")
    with pytest.raises(ValueError, match="the body failed"):
        failed.get(timeout=20)
    assert not locks_of(failed.id)
