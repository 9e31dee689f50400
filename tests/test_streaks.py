"""The skip streak: how many duplicates in a row a run turned away, and when that is warned of."""

from __future__ import annotations

import json
import re

import pytest
import redis

from celery_redislock import LockConflict, TaskSkipped, _holder, _store
from celery_redislock._connect import pools_from_url
from celery_redislock._keys import lock_keys
from celery_redislock._lock import new_token
from celery_redislock._store import EXTENDED, Acquired, Busy, Claim, Extension, Store, to_ms
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

QUEUE = "streaks"


@pytest.fixture(scope="module", autouse=True)
def workers(start_module_worker):
    """Two: the count is that of all workers."""
    return [start_module_worker(queues=QUEUE, concurrency=2) for _ in range(2)]


@pytest.fixture
def run(send, journal, label):
    """Starts a run that holds the label's lock until the test's end, or until it is killed."""
    runs = []

    def run(name, seconds=60.0):
        before = journal.count(label, "start")
        runs.append(send(name, label, seconds))
        eventually(lambda: journal.count(label, "start") > before, "it runs")
        return runs[-1]

    yield run
    for each in runs:
        kill(each)


def kill(run):
    run.revoke(terminate=True, signal="SIGKILL")


@pytest.fixture
def warned(workers, label):
    """The lengths that were warned of, by all workers, and the holder that was named."""

    def warned():
        pattern = r"(\d+) duplicates in a row were turned away, .*?: (\S+) is held by (\S+) on"
        lines = re.findall(pattern, "".join(worker.log() for worker in workers))
        return sorted((int(length), holder) for length, key, holder in lines if label in key)

    return warned


@pytest.fixture
def streaks(client, journal, label):
    """What the signal said, in the order of the counts."""

    def streaks():
        return sorted(entry.data["streak"] for entry in journal.read(label, "turned away"))

    return streaks


def turn_away(send, name, label, times):
    for _ in range(times):
        with pytest.raises((TaskSkipped, LockConflict)):
            send(name, label).get(timeout=20)


# -- in workers -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["counted", "counted_refusing"])
def test_a_row_of_duplicates_is_counted_across_workers_and_warned_of_at_doubling_lengths(
    send, run, warned, streaks, label, name
):
    holder = run(name)
    turn_away(send, name, label, 13)
    assert streaks() == list(range(1, 14))
    who = f"{name}[{holder.id}]"
    eventually(lambda: len(warned()) >= 3, "it is warned of")
    assert warned() == [(3, who), (6, who), (12, who)]


def test_a_run_between_ends_the_row(send, run, warned, streaks, locks_of, label):
    for _ in range(2):
        first = run("counted")
        turn_away(send, "counted", label, 2)
        kill(first)
        eventually(lambda first=first: not locks_of(first.id), "its lock is free")
    assert streaks() == [1, 1, 2, 2]
    assert warned() == []


def test_a_skip_with_a_result_counts_too(send, run, streaks, label):
    run("counted_result")
    assert [send("counted_result", label).get(timeout=20) for _ in range(3)] == ["skipped"] * 3
    assert streaks() == [1, 2, 3]


def test_who_is_deferred_or_waits_is_not_turned_away(send, run, streaks, journal, label):
    first = run("counted_deferring", 1.0)
    second = send("counted_deferring", label, 0.05)
    assert first.get(timeout=20)
    assert second.get(timeout=20)
    assert streaks() == []
    assert {entry.data["streak"] for entry in journal.read(label, "conflict")} == {0}


def test_a_pause_after_a_run_holds_nobody_up(send, streaks, warned, label):
    assert send("counted_pausing", label, 0.0).get(timeout=20)
    turn_away(send, "counted_pausing", label, 4)
    assert streaks() == [0] * 4
    assert warned() == []


# -- in the store -----------------------------------------------------------------------------


@pytest.fixture
def store(redis_server: RedisServer):
    store = Store(pools_from_url(redis_server.url))
    yield store
    store.close()


@pytest.fixture
def claim(label):
    def claim(task_id=""):
        token = new_token()
        value = _holder.encode(token, ttl_ms=to_ms(30), task="task", task_id=task_id)
        return Claim(lock_keys("redislock", label), token, 30, value, task_id)

    return claim


def test_the_count_stands_in_the_lock_and_harms_nothing_there(store, client, claim):
    holder, other = claim("a"), claim("b")
    taken = store.acquire(holder)
    assert isinstance(taken, Acquired)
    client.pexpire(holder.keys.lock, 5000)
    assert [store.count_streak(other.keys, 30) for _ in range(11)] == list(range(1, 12))
    assert client.pttl(holder.keys.lock) <= 5000, "who is turned away does not extend it"
    record = json.loads(client.get(holder.keys.lock))
    assert record["streak"] == 11
    assert {name: record[name] for name in json.loads(taken.value)} == json.loads(taken.value)
    busy = store.acquire(other)
    assert isinstance(busy, Busy)
    assert busy.holder.task_id == "a"
    # Another copy of the holder's message leaves a note in the value as well.
    assert store.acquire(claim("a")).relation == "own"
    assert store.count_streak(other.keys, 30) == 12
    assert store.acquire(claim("a")).relation == "own"
    assert client.get(holder.keys.lock).count("redelivered") == 1
    assert store.extend([Extension(holder, taken.value, taken.fence, True)])[0].outcome == EXTENDED
    assert store.count_streak(other.keys, 30) == 13, "it lives for as long as the lock"
    assert store.release(holder).ours
    assert store.count_streak(other.keys, 30) == 0, "nobody is in the way"
    store.acquire(other)
    assert store.count_streak(holder.keys, 30) == 1


def test_of_several_holders_the_newest_begins_a_new_row(redis_server, client, label):
    """The lock's slots, as the script is given them."""
    slots = [f"{{{label}}}:{i}" for i in range(3)]
    script = client.register_script(_script())

    def take(slot, fence, more=""):
        client.set(slots[slot], f'{{"token":"t{fence}"{more},"fence":{fence}}}', px=60_000)

    take(0, 7)
    take(1, 9)
    assert [script(keys=slots), script(keys=slots)] == [1, 2]
    take(2, 10)
    assert [script(keys=slots), script(keys=slots)] == [1, 2]
    take(0, 11, ',"cooling":true')
    assert script(keys=slots) == 3, "no run has begun since"
    for slot in slots[1:]:
        client.delete(slot)
    assert script(keys=slots) == 0


@pytest.mark.parametrize(
    "value", ["", "5", "[]", '{"owner":"x"}', '{"token":5}', '{"token":"","reserved":true}']
)
def test_what_is_no_run_of_ours_counts_nothing(store, client, claim, value):
    key = claim().keys.lock
    client.set(key, value, px=60_000)
    assert store.count_streak(claim().keys, 30) == 0
    assert client.get(key) == value


def test_no_type_of_value_is_touched(store, client, claim):
    key = claim().keys.lock
    client.rpush(key, "x")
    assert store.count_streak(claim().keys, 30) == 0
    assert client.lrange(key, 0, -1) == ["x"]


def test_a_server_that_cannot_count_changes_nothing_for_the_duplicate(
    start_worker, sender, journal, queue, label
):
    """A user that may not run the script's commands, say; here, a server without memory."""
    with RedisServer() as server, server.client() as admin:
        admin.config_set("maxmemory-policy", "noeviction")
        start_worker(queues=queue, conf={"redislock_url": server.url})
        first = sender.send_task("counted", [label, 3.0], queue=queue)
        eventually(lambda: journal.count(label, "start"), "it runs")
        admin.set("big", "x" * 1_000_000)
        admin.config_set("maxmemory", "1mb")
        with pytest.raises(redis.OutOfMemoryError):
            admin.set("more", "x")
        with pytest.raises(TaskSkipped):
            sender.send_task("counted", [label], queue=queue).get(timeout=20)
        assert [entry.data["streak"] for entry in journal.read(label, "turned away")] == [0]
        admin.config_set("maxmemory", "0")
        assert first.get(timeout=20)


def _script() -> str:
    return _store._STREAK.text
