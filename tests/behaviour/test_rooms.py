"""The waiting room: duplicates run in order, or the newest alone; nothing is lost on the way."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import time
import uuid
from datetime import datetime, timedelta, timezone

import pytest
from celery import chord
from celery.exceptions import ChordError, WorkerLostError

from celery_redislock import Holder, LockConflict, RedisLock, SingletonTask, TaskSkipped
from celery_redislock.app.delivery import KEY
from celery_redislock.app.entries import Entry
from celery_redislock.app.housekeeper import housekeeper
from celery_redislock.app.settings import app_locks
from celery_redislock.protocol import calls, holders, rooms
from celery_redislock.protocol.claims import Acquired, Claim, Done, Parking
from celery_redislock.protocol.keys import lock_keys
from celery_redislock.protocol.tokens import new_token
from celery_redislock.servers.factory import server_at
from celery_redislock.servers.scripts import sha_of, text_of
from celery_redislock.servers.urls import source_from_url
from celery_redislock.tasks.room import look_after
from celery_redislock.worker.sweeper import Sweeper
from tests.support.servers import Proxy
from tests.support.waiting import eventually
from tests.support.workers import make_app

QUEUE = "rooms"
LOCKS = ("redis", "cluster")


@pytest.fixture(scope="module")
def worker(start_module_worker):
    return start_module_worker("-E", queues=QUEUE, concurrency=4)


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
        return Room(client, key)

    return room


class Room:
    def __init__(self, client, lock):
        self._client = client
        self.lock = lock

    def key(self, kind):
        head, _, name = self.lock.partition(":lock:")
        return f"{head}:{kind}:{name}"

    def ids(self):
        """The task ids of those that wait, in order."""
        members = self._client.lrange(self.key("room"), 0, -1)
        states = [self._client.hget(self.key("entries"), f"#{each}") or "||" for each in members]
        return [state.rpartition("|")[2].split(":")[0] for state in states]

    def leaves_nothing(self):
        kinds = ("lock", "room", "entries", "ended", "deadlines", "sent")
        mark = f"1|{self.lock.partition(':lock:')[2]}"
        rooms = self.lock.partition(":lock:")[0] + ":rooms"
        keys = [self.key(kind) for kind in kinds]
        return not self._client.exists(*keys) and self._client.zscore(rooms, mark) is None


def outcome_of(result, timeout=30):
    try:
        return result.get(timeout=timeout)
    except (TaskSkipped, LockConflict) as exc:
        return exc


@pytest.mark.usefixtures("worker")
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


@pytest.mark.usefixtures("worker")
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


@pytest.mark.usefixtures("worker")
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


@pytest.mark.usefixtures("worker")
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


@pytest.mark.usefixtures("worker")
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


def test_an_id_whose_entry_is_gone_blocks_nobody(store, inside, label):
    keys = lock_keys("redislock", label)
    inside.rpush(keys.room, "first:0.0")
    token = new_token()
    value = holders.encode(token, ttl_ms=5000, task="job", task_id="late")
    assert isinstance(store.run(calls.acquire(Claim(keys, token, 5.0, value, "late"))), Acquired)
    assert not inside.exists(keys.room)


def test_a_message_of_what_was_replaced_in_the_room_is_told_by_whom(store, label):
    """It had its turn before, perhaps."""
    keys = lock_keys("redislock", label)

    def claim(task_id):
        token = new_token()
        value = holders.encode(token, ttl_ms=5000, task="job", task_id=task_id)
        return Claim(keys, token, 5.0, value, task_id)

    store.run(calls.acquire(claim("first")))
    for task_id in ("old", "new"):
        by = holders.successor_text("job", task_id)
        store.run(rooms.park(claim(task_id), Parking("{}", "=job", replace=(by, None))))
    reply = store.run(calls.acquire(claim("old")))
    assert isinstance(reply, Done)
    assert reply.note.replaced_by == Holder(task="job", task_id="new")
    assert store.ask(calls.holder_of(keys, 5.0)).replaced_by is None


def test_what_has_begun_before_waits_before_all_and_is_not_replaced(store, inside, label):
    keys = lock_keys("redislock", label)

    def claim(task_id, attempt=0):
        token = new_token()
        run = {"task": "job", "task_id": task_id, "attempt": attempt}
        value = holders.encode(token, ttl_ms=5000, **run)
        return Claim(keys, token, 5.0, value, task_id, attempt)

    store.run(calls.acquire(claim("first")))
    store.run(rooms.park(claim("other"), Parking("{}", "other:0.0")))
    store.run(rooms.park(claim("new"), Parking("{}", "=job")))
    old = store.run(rooms.park(claim("old", 1), Parking("{}", "old:0.1", in_front=True)))
    assert old.replaced == {}
    newest = store.run(rooms.park(claim("newest"), Parking("{}", "=job")))
    assert set(newest.replaced) == {"new:0.0"}
    assert inside.lrange(keys.room, 0, -1) == ["old:0.1", "other:0.0", "=job"]
    assert inside.hget(keys.entries, "#=job").endswith("|newest:0.0")
    inside.delete(*(key for key in keys if isinstance(key, str) and key != keys.name))


@pytest.mark.usefixtures("worker")
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


@pytest.mark.usefixtures("worker")
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


@pytest.mark.usefixtures("worker")
def test_who_has_waited_long_enough_meets_the_next_policy(send, hold, room, label):
    first, _ = hold("queued_briefly", 8.0)
    here = room(first.id)
    second = send("queued_briefly", label, 0.05)
    with pytest.raises(LockConflict) as caught:
        second.get(timeout=7)
    assert caught.value.holder.task_id == first.id
    assert here.ids() == []
    assert first.get(timeout=20)


@pytest.mark.usefixtures("worker")
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


@pytest.mark.usefixtures("worker")
def test_a_refused_duplicate_leaves_the_room_and_so_does_every_copy(
    send, hold, room, client, label
):
    """Its time was not over when it was published, and was over when it met the lock."""
    first, _ = hold("queued_briefly", 5.0)
    here = room(first.id)
    task_id = str(uuid.uuid4())
    entry = f"{task_id}:0.0"
    mark = f"1|{here.lock.partition(':lock:')[2]}"
    header = {"v": 2, "parked": entry, "redelivered": True, "since": time.time() - 5.0}
    header["kept"] = [mark, ""]
    for _ in range(2):  # the second is a copy of what is done by then
        client.rpush(here.key("room"), entry)
        client.hset(here.key("entries"), entry, '|0|{"task":"queued_briefly"}')
        result = send("queued_briefly", label, 0.0, task_id=task_id, headers={"redislock": header})
        eventually(lambda: entry not in client.lrange(here.key("room"), 0, -1), "it has left")
        assert isinstance(outcome_of(result), LockConflict)
    assert first.get(timeout=20)


@pytest.mark.usefixtures("worker")
def test_a_task_in_the_room_keeps_everything_that_its_message_said(
    sender, send, hold, label, client
):
    first, _ = hold("queued_describes", 3.0, priority=3, headers={"tenant": "blue"}, shadow="dusk")
    second = send(
        "queued_describes", label, 0.0, priority=3, headers={"tenant": "blue"}, shadow="dusk"
    )
    told, again = first.get(timeout=20), second.get(timeout=20)
    assert again["headers"]["tenant"] == "blue"
    assert again["root_id"] == second.id
    assert {**again, "root_id": None} == {**told, "root_id": None}


@pytest.mark.usefixtures("worker")
def test_a_revoked_task_leaves_the_room_and_the_next_runs(sender, send, hold, room, label):
    first, _ = hold("queued", 4.0)
    here = room(first.id)
    second, third = send("queued", label, 0.05), None
    eventually(lambda: len(here.ids()) == 1, "it waits")
    third = send("queued", label, 0.05)
    eventually(lambda: len(here.ids()) == 2, "both wait")
    sender.control.revoke(second.id)
    assert third.get(timeout=30)
    assert second.state == "REVOKED"
    eventually(here.leaves_nothing, "nothing is left")


@pytest.mark.usefixtures("worker")
def test_a_task_that_expires_in_the_room_is_dropped_and_the_next_runs(send, hold, room, label):
    first, _ = hold("queued", 6.0)
    here = room(first.id)
    second = send("queued", label, 0.05, expires=3.0)
    eventually(lambda: len(here.ids()) == 1, "it waits")
    third = send("queued", label, 0.05)
    assert third.get(timeout=30)
    assert second.state == "REVOKED"
    eventually(here.leaves_nothing, "nothing is left")


def test_what_may_have_been_parked_is_a_copy_from_then_on(
    start_worker, sender, queue, own_redis, journal, label
):
    """The lock server executes what it cannot answer: the task is in the room, and is deferred."""
    with Proxy(own_redis.port) as way:
        conf = {"redislock_url": f"{way.url}/0"}
        worker = start_worker(queues=queue, concurrency=2, conf=conf)
        first = sender.send_task("queued_named", [label, 1.5], queue=queue)
        eventually(lambda: journal.count(label, "start") == 1, "the holder runs")
        with own_redis.client() as direct:
            direct.script_load(text_of("park"))  # else what is lost is that it is unknown
        way.lose_replies(to=sha_of("park").encode())
        second = sender.send_task("queued_named", [label, 0.1], queue=queue)
        eventually(lambda: "is deferred for" in worker.log(), "its parking is not answered", 20)
        way.heal()
        assert first.get(timeout=20)
        assert second.get(timeout=20)
        eventually(lambda: f"[{second.id}] already done" in worker.log(), "both have come")
    ran = [entry.task_id for entry in journal.read(label, "start")]
    assert ran == [first.id, second.id]


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
        assert client.lrange(keys.room, 0, -1) == [f"{label}-2:0.0"]
        with redis_server.client(db=1) as broker:
            (message,) = broker.lrange(queue, 0, -1)
            assert f"{label}-2" in message
            broker.delete(queue)
        client.delete(keys.room, keys.entries, keys.rooms)


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
        client.delete(keys.room, keys.entries, keys.rooms, keys.sent, *keys.slots, keys.lock)


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


@pytest.mark.parametrize("lock_id", ["no lock", "1000000000|name", "0|name", "|"])
def test_a_message_that_names_no_lock_keeps_no_room_waiting(
    start_worker, sender, client, queue, label, lock_id
):
    prefix = f"redislock:{label}"
    worker = start_worker(queues=queue, conf={"redislock_prefix": prefix})
    header = {"v": 2, "kept": [lock_id, "token"], "parked": "x:0.0"}
    sent = {"queue": queue, "headers": {KEY: header}}
    sender.send_task("queued", [label, 0.0], countdown=600, **sent)
    assert sender.send_task("queued", [label, 0.0], **sent).get(timeout=20)
    keys = lock_keys(prefix, "a")
    client.rpush(keys.room, "x:0.0")
    client.hset(keys.entries, "x:0.0", "||no JSON")
    client.zadd(keys.rooms, {lock_id: 0, keys.lock_id: 1})
    eventually(lambda: client.zcard(keys.sent) == 1, "a room is looked after", 10)
    assert "does not name a valid lock" in worker.log()


@pytest.mark.usefixtures("worker")
def test_what_cannot_be_read_is_said_and_blocks_nobody(send, hold, room, client, worker, label):
    first, _ = hold("queued", 4.0)
    here = room(first.id)
    corrupt = ["x:0.0", "y:0.0", "z:0.0"]
    client.rpush(here.key("room"), *corrupt)
    client.hset(here.key("entries"), "y:0.0", "||no JSON")
    client.hset(here.key("entries"), "z:0.0", '||{"task":"queued"}')
    second = send("queued", label, 0.05)
    assert second.get(timeout=30)[0] == label
    kept = client.hgetall(here.key("entries"))
    assert (kept["y:0.0"], kept["z:0.0"]) == ("||no JSON", '||{"task":"queued"}'), "all is kept"
    assert not any(field.endswith("x:0.0") for field in kept), "but for what is lost"
    for each in ("y", "queued[z]"):
        said = f"no worker has taken {each}, which waits for {here.lock}"
        eventually(lambda said=said: said in worker.log(), "it says so")
    assert send("queued", label, 0.05).get(timeout=30)[0] == label, "and others still run"
    client.delete(*(here.key(kind) for kind in ("room", "entries", "sent")))


@pytest.mark.usefixtures("worker")
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


@pytest.mark.usefixtures("worker")
def test_what_a_redis_lock_releases_goes_to_the_room(send, locks_at, client, label):
    with RedisLock(locks_at.url, f"named:{label}", ttl=6) as lock:
        here = Room(client, lock.key)
        result = send("queued_named", label, 0.0)
        eventually(lambda: here.ids() == [result.id], "it waits")
    assert result.get(timeout=20)[0] == label


@pytest.mark.usefixtures("worker")
def test_what_was_handed_over_and_never_published_is_published_by_others(
    send, locks_at, client, label
):
    """Whoever released died in between."""
    store = server_at(source_from_url(locks_at.url))
    with RedisLock(locks_at.url, f"named:{label}", ttl=6) as lock:
        here = Room(client, lock.key)
        results = [send("queued_named", label, 0.0) for _ in range(2)]
        eventually(lambda: len(here.ids()) == 2, "they wait")
        order = here.ids()
    following = store.run(rooms.look(lock_keys("redislock", f"named:{label}"), 6.0, 3600.0))
    # Unless a worker was quicker.
    offered = following.offered
    assert offered is None or offered.place.entry_id == f"{order[0]}:0.0"
    for result in results:
        assert result.get(timeout=30)[0] == label
    eventually(here.leaves_nothing, "nothing is left")
    store.close()


def test_a_waiting_task_outlives_the_worker_of_the_holder(
    start_worker, sender, queue, hold, room, journal, label
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


def test_a_killed_childs_lock_is_handed_over_at_once(start_worker, send, hold, room, label, queue):
    start_worker(queues=queue, concurrency=2)
    first, entry = hold("queued_long", 60.0, queue=queue)
    here = room(first.id)
    second = send("queued_long", label, 0.05, queue=queue)
    eventually(lambda: here.ids() == [second.id], "it waits")
    os.kill(entry.pid, signal.SIGKILL)
    assert second.get(timeout=20)[0] == label, "its ttl is a minute"


def test_a_child_killed_once_its_task_waits_takes_nothing_with_it(
    start_worker, send, hold, label, queue
):
    start_worker(queues=queue, concurrency=2)
    first, _ = hold("queued_and_killed", 6.0, queue=queue)  # Celery may notice after 5 s
    second = send("queued_and_killed", label, 0.05, queue=queue)
    # Not WorkerLostError, neither in between nor at the end: it waits, and has its run.
    assert second.get(timeout=20)[0] == label
    assert first.get(timeout=20)[0] == label


def test_a_worker_is_not_held_up_by_each_dead_child_while_the_lock_server_hangs(
    start_worker, sender, own_redis, journal, label, queue
):
    worker = start_worker(queues=queue, concurrency=4, conf={"redislock_url": own_redis.url})
    labels = [f"{label}-{number}" for number in range(4)]
    results = [sender.send_task("queued_long", [each, 60.0], queue=queue) for each in labels]
    pids = [
        eventually(lambda each=each: journal.read(each, "start"), "it runs")[0].pid
        for each in labels
    ]
    own_redis.stop()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for result in results:
        with pytest.raises(WorkerLostError):
            result.get(timeout=60)
    assert worker.log().count("cannot find out whether") == 1, "its main loop waits for each answer"


@pytest.mark.usefixtures("worker")
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


@pytest.mark.usefixtures("worker")
def test_beyond_the_limit_a_duplicate_is_skipped(send, journal, label):
    holders = [send("two_at_once", label, 4.0) for _ in range(2)]
    eventually(lambda: journal.count(label, "start") == 2, "two run")
    with pytest.raises(TaskSkipped) as caught:
        send("two_at_once", label, 0.0).get(timeout=20)
    assert caught.value.holder.task_id in {holder.id for holder in holders}
    for holder in holders:
        holder.get(timeout=20)


def test_a_crashed_holders_permit_comes_back_alone(start_worker, send, journal, label, queue):
    start_worker(queues=queue, concurrency=3)
    first = send("two_at_once_late", label, 3.0, queue=queue)
    second = send("two_at_once_late", label, 6.0, queue=queue)
    entries = eventually(
        lambda: len(journal.read(label, "start")) == 2 and journal.read(label, "start"), "two run"
    )
    (doomed,) = [entry for entry in entries if entry.task_id == first.id]
    os.kill(doomed.pid, signal.SIGKILL)
    # Its message comes back, and it takes the permit that its death gave back.
    assert first.get(timeout=20)[0] == label
    assert second.get(timeout=20)[0] == label


@pytest.mark.usefixtures("worker")
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


def test_a_clock_that_is_set_back_makes_no_pause_longer_than_it_is(own_redis, label):
    with (
        contextlib.closing(server_at(source_from_url(own_redis.url))) as store,
        own_redis.client() as client,
    ):
        keys = lock_keys("redislock", label)
        token = new_token()
        value = holders.encode(token, ttl_ms=60_000, task="job", task_id="one")
        claim = Claim(keys, token, 60.0, value, "one")
        store.run(calls.acquire(claim))
        held = client.get(keys.lock)
        before, _, since = held.rstrip("}").rpartition(":")
        client.set(keys.lock, f"{before}:{float(since) + 30:.6f}}}", keepttl=True)
        assert store.run(calls.settle(claim, calls.Release(min_hold=2.0))).ours
        assert 0 < client.pttl(keys.lock) <= 2000


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(("name", "stands"), [("pauses", False), ("pauses_always", True)])
def test_after_a_failure_it_stands_on_only_if_asked(send, locks_of, label, name, stands):
    failed = send(name, label, 0.0, "raise")
    with pytest.raises(ValueError, match="the body failed"):
        failed.get(timeout=20)
    assert bool(locks_of(failed.id)) is stands


@pytest.mark.usefixtures("worker")
def test_a_pause_delays_the_room_and_does_not_end_it(send, hold, room, journal, label):
    first, _ = hold("pauses_queued", 0.3)
    second = send("pauses_queued", label, 0.0)
    assert second.get(timeout=20)
    one, two = journal.read(label, "start")
    assert (one.task_id, two.task_id) == (first.id, second.id)
    assert two.at - one.at > 0.9
