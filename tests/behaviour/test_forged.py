"""Records of somebody who may write the lock's keys, and not send tasks by the broker."""

from __future__ import annotations

import json
import time
from typing import NamedTuple

import pytest

from celery_redislock import RedisLock
from tests.behaviour.looking import Keys, Room, untaken
from tests.support.waiting import eventually, never

QUEUE = "forged"
QUEUED = "queued_named"
LINK = {"task": "plain", "args": ["L"], "kwargs": {}, "options": {"queue": QUEUE}}
#: A task that nobody has taken for a minute is remarkable.
UNTAKEN_AFTER = 60
CHORD = {**LINK, "options": {"queue": QUEUE, "link_error": [LINK]}, "chord_size": 1}


@pytest.fixture(scope="module")
def worker(start_module_worker):
    return start_module_worker(queues=QUEUE, concurrency=2)


@pytest.fixture
def keys(conf, label):
    return Keys(RedisLock(conf["redislock_url"], f"named:{label}").key)


class Record(NamedTuple):
    """What a worker parks, but without its seal."""

    task: str
    task_id: str
    content_type: str
    encoding: str
    body: str

    def dump(self):
        return json.dumps(self._asdict())


def record(task_id, args, task=QUEUED, **options):
    options = {"task_id": task_id, "queue": QUEUE, "headers": {}, **options}
    body = json.dumps([args, {}, options])
    return Record(task, task_id, "application/json", "utf-8", body)


def plant(client, keys, *entries, age=0):
    """Put them into the room, which is due. The first was published first `age` seconds ago."""
    for entry in entries:
        client.rpush(keys.room, f"{entry.task_id}:0.0")
        client.hset(keys.entries, f"{entry.task_id}:0.0", f"||{entry.dump()}")
    if age:
        first = int((time.time() - age) * 1000)
        client.zadd(keys.sent, {f"{entries[0].task_id}:0.0": first})
    client.zadd(keys.rooms, {keys.lock_id: int(time.time() * 1000)})


#: Of each forged record: its task, its options, and why it is refused.
FORGED = {
    "unlocked": ("plain", {}, "plain takes no lock"),
    "of_celery": ("celery.chord_unlock", {}, "celery.chord_unlock takes no lock"),
    "other_lock": ("skip", {}, "its arguments give another lock"),
    "lacks_arguments": ("named", {}, "its arguments give no lock"),
    "link": (QUEUED, {"link": [LINK]}, "it brings callbacks"),
    "chord": (QUEUED, {"chord": LINK, "group_id": "g"}, "it brings callbacks"),
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_record_that_no_worker_has_parked_runs_no_task_of_its_choice(
    worker, sender, client, journal, label, keys, kind
):
    task, options, why = FORGED[kind]
    args = [] if kind == "lacks_arguments" else [label, 0.0]
    forged = record(f"{label}-forged", args, task, **options)
    honest = record(f"{label}-next", [label, 0.0])
    plant(client, keys, forged, honest, age=UNTAKEN_AFTER + 1)
    assert sender.AsyncResult(honest.task_id).get(timeout=30)[0] == label, "the next runs"
    line, *_ = eventually(lambda: untaken(worker.log(), forged.task_id), "it is said")
    assert why in line
    assert task in line
    assert keys.lock in line
    assert client.zrange(keys.sent, 0, -1) == [f"{forged.task_id}:0.0"], "it is not dropped"
    never(lambda: sender.AsyncResult(forged.task_id).ready(), "it has run", 0.3)
    assert [run.task_id for run in journal.read(label, "start")] == [honest.task_id]
    client.delete(keys.room, keys.entries, keys.sent)


def test_a_record_runs_no_other_task_by_its_headers(worker, sender, client, journal, label, keys):
    headers = {"task": "plain", "id": f"{label}-other", "tenant": "t"}
    forged = record(f"{label}-forged", [label, 0.0], headers=headers)
    plant(client, keys, forged)
    assert sender.AsyncResult(forged.task_id).get(timeout=30)[0] == label
    (run,) = journal.read(label, "start")
    assert run.task_id == forged.task_id
    assert f"{QUEUED}[{forged.task_id}] received" in worker.log()


def test_a_parked_message_that_was_changed_is_refused_and_one_with_callbacks_runs_as_it_came(
    worker, sender, client, journal, label, keys
):
    link = sender.signature("plain", [f"{label}-link", 0.0], queue=QUEUE, immutable=True)
    sender.send_task(QUEUED, [label, 2.0], queue=QUEUE)
    eventually(lambda: journal.read(label, "start"), "it runs")
    waits = sender.send_task(QUEUED, [label, 0.0], queue=QUEUE, link=link)
    room = Room(client, keys.lock)
    eventually(lambda: room.ids() == [waits.id], "one waits")
    changed = sender.send_task(QUEUED, [label, 0.0], queue=QUEUE)
    eventually(lambda: room.ids() == [waits.id, changed.id], "both wait")
    field = f"{changed.id}:0.0"
    head, text = client.hget(keys.entries, field).split("{", 1)
    entry = json.loads("{" + text)
    args, kwargs, options = json.loads(entry["body"])
    options["link"] = [{**LINK, "args": [f"{label}-evil", 0.0]}]
    entry["body"] = json.dumps([args, kwargs, options])
    client.hset(keys.entries, field, head + json.dumps(entry))
    client.zadd(keys.sent, {field: int((time.time() - UNTAKEN_AFTER - 1) * 1000)})
    assert waits.get(timeout=30)[0] == label
    eventually(lambda: journal.read(f"{label}-link", "start"), "its callback runs")
    line, *_ = eventually(lambda: untaken(worker.log(), changed.id), "it is said")
    assert "its seal is not valid" in line
    assert "it brings callbacks" in line
    assert not journal.read(f"{label}-evil")
    client.delete(keys.room, keys.entries, keys.sent)


def test_a_record_of_what_was_replaced_stores_no_result_of_an_unlocked_task(
    worker, sender, client, label, keys
):
    """And a chord in it does not call its body, or that one's errbacks."""
    ended = {
        "unlocked": record(f"{label}-unlocked", [label], "plain"),
        "chord": record(f"{label}-chord", [label], chord=CHORD, group_id=label),
        "honest": record(f"{label}-honest", [label]),
    }
    for each in ended.values():
        text = json.dumps(["its successor", f"||{each.dump()}"])
        client.hset(keys.ended, f"{each.task_id}:0.0", text)
    plant(client, keys, record(f"{label}-next", [label, 0.0]))
    eventually(lambda: not client.exists(keys.ended), "they are looked at", 30)
    assert sender.AsyncResult(ended["honest"].task_id).state == "REVOKED"
    for kind in ("unlocked", "chord"):
        assert sender.AsyncResult(ended[kind].task_id).state == "PENDING"
        (line,) = [each for each in worker.log().splitlines() if ended[kind].task_id in each]
        assert "ERROR" in line
        assert "its seal is not valid" in line
