"""A worker of this release beside messages, locks and waiting rooms of another one.

What the release before wrote is given as it wrote it (6a81d5a, on a real worker), but for names.
"""

from __future__ import annotations

import json
import time
import uuid

import pytest

from celery_redislock import ConfigError, TaskSkipped
from celery_redislock.app.canonical import digest
from celery_redislock.protocol.keys import lock_keys
from tests.acceptance.looking import Room
from tests.support.waiting import eventually, never

QUEUE = "other-releases"


@pytest.fixture(scope="module")
def worker(start_module_worker):
    return start_module_worker(queues=QUEUE, concurrency=2)


@pytest.fixture
def keys(label):
    return lock_keys("redislock", f"named:{label}")


def value_of_old(task_id: str, more: str = "") -> str:
    """What the release before wrote under a lock's key."""
    return (
        f'{{"token":"6697b39d1f7f0c3ef38a324064a8919b","task":"queued_named","task_id":"{task_id}"'
        ',"attempt":0,"nesting":0,"node":"wa5429e86@test","pid":19361,"ttl_ms":6000'
        f'{more},"received_ms":1795372627267,"fence":1795372627279292'
        ',"acquired_at":1795372627.279292}'
    )


def entry_of_old(task_id: str, label: str) -> str:
    """What the release before wrote for a task that waits."""
    options = {
        "task_id": task_id,
        "root_id": task_id,
        "headers": {
            "redislock": {
                "deferrals": 0,
                "since": time.time(),
                "first_received": time.time(),
                "redelivered": True,
                "parked": True,
            }
        },
        "retries": 0,
        "reply_to": "2c6073f7-5c11-3244-8af7-b884c1bbf3bd",
        "replaced_task_nesting": 0,
        "origin": "gen19344@vm",
        "ignore_result": None,
        "priority": 0,
        "queue": QUEUE,
    }
    entry = {
        "task": "queued_named",
        "task_id": task_id,
        "content_type": "application/json",
        "encoding": "utf-8",
        "body": json.dumps([[label, 0.1], {}, options]),
    }
    return f"||{json.dumps(entry, separators=(',', ':'))}"


def test_what_waits_in_a_room_of_the_release_before_runs_in_its_order(
    worker, sender, client, journal, label, keys
):
    """Its holder is dead; the counter of offers was a field of its own."""
    ids = [str(uuid.uuid4()) for _ in range(2)]
    for task_id in ids:
        client.rpush(keys.room, f"{task_id}:0.0")
        client.hset(keys.entries, f"{task_id}:0.0", entry_of_old(task_id, label))
    client.hset(keys.entries, "#", 3)
    client.set(keys.lock, value_of_old(str(uuid.uuid4())), px=500)
    client.zadd(keys.rooms, {keys.mark: int(time.time() * 1000)})
    for task_id in ids:
        assert sender.AsyncResult(task_id).get(timeout=30)[0] == label
    assert [run.task_id for run in journal.read(label, "start")] == ids
    eventually(Room(client, keys.lock).is_empty, "the room is empty")


@pytest.mark.parametrize(
    "header",
    [
        {"deferrals": 1, "outages": 0, "since": 1.0, "first_received": 1.0, "redelivered": False,
         "chain": "a2", "step": 1},
        {"deferrals": 0, "since": 1.0, "first_received": 1.0, "redelivered": True, "parked": True},
        {"reserved": ["1|named:nobody", "6697b39d1f7f0c3ef38a324064a8919c"]},
    ],
    ids=["deferred", "parked", "reserved"],
)  # fmt: skip
def test_a_message_of_the_release_before_runs_once(worker, sender, journal, label, header):
    options = {"queue": QUEUE, "headers": {"redislock": header}}
    result = sender.send_task("queued_named", [label, 0.0], **options)
    assert result.get(timeout=20)[0] == label
    never(lambda: journal.count(label, "start") > 1, "it ran again", 1.0)


def test_what_the_release_before_kept_for_a_message_is_taken_over(
    worker, sender, client, label, keys
):
    task_id = str(uuid.uuid4())
    client.set(keys.lock, value_of_old(task_id, ',"queued":true'), ex=60)
    header = {"reserved": [keys.mark, "6697b39d1f7f0c3ef38a324064a8919b"]}
    options = {"queue": QUEUE, "headers": {"redislock": header}, "task_id": task_id}
    assert sender.send_task("queued_named", [label, 0.0], **options).get(timeout=20)[0] == label
    eventually(lambda: not client.exists(keys.lock), "the lock is free")


def test_a_lock_of_the_release_before_is_held(worker, sender, client, label):
    keys = lock_keys("redislock", f"skip:v1:{digest({'label': label})}")
    holder = str(uuid.uuid4())
    client.set(keys.lock, value_of_old(holder), ex=60)
    result = sender.send_task("skip", [label], queue=QUEUE)
    with pytest.raises(TaskSkipped) as found:
        result.get(timeout=20)
    assert found.value.holder.task_id == holder
    client.delete(keys.lock)


def test_a_message_of_a_newer_release_is_refused_aloud(worker, sender, journal, label):
    header = {"v": 3, "kept": ["1|x", "y"], "what": "we cannot know"}
    options = {"queue": QUEUE, "headers": {"redislock": header}}
    result = sender.send_task("queued_named", [label, 0.0], **options)
    with pytest.raises(ConfigError, match=r"newer celery-redislock.*version 3.*up to 2"):
        result.get(timeout=20)
    assert journal.count(label, "start") == 0


def test_a_task_that_takes_no_lock_as_it_runs_needs_no_header(worker, sender, journal, label):
    header = {"v": 3, "kept": ["1|x", "y"], "what": "we cannot know"}
    options = {"queue": QUEUE, "headers": {"redislock": header}}
    assert sender.send_task("unique_queued", [label, 0.0], **options).get(timeout=20)
    assert journal.count(label, "start") == 1
